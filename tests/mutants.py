"""Mutants: right plans with one thing wrong each, and which layer catches them: proof, interpreter, ThreadSanitizer, or the run itself.

A mutant counts when the element-wise oracle finds a race, a deadlock, an unwritten read or a bad reuse in it. The oracle knows direct
waits only: where it finds nothing but races, and every pair of tiles is ordered all the same (`ordered`), no run can show anything and
the mutant is harmless. The proof refuses some of the harmless ones, by rules that are stricter than need be on purpose (RULES).

`python -m tests.mutants` builds and runs everything and writes docs/mutants.md.
"""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from tests.oracles import element_kinds, elements
from tilegen.analysis.proof import check
from tilegen.data import random_arguments, relative_error
from tilegen.errors import TilegenError
from tilegen.expand import expanded
from tilegen.interpret import Interpreter
from tilegen.kernel import Kernel
from tilegen.loader import load_program
from tilegen.plan import Plan
from tilegen.spec import Program

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Data = dict[str, Any]

# --- the plans ---------------------------------------------------------------------------------------------------------------


@tg.spec
def convs():
    """Two 3x3 convolutions with their halos, the second with stride 2."""
    x = tg.input("x", (1, 6, 6, 2), "float32")
    w1, w2 = (tg.weight(name, (3, 3, 3, c), "float32") for name, c in (("w1", 2), ("w2", 3)))
    h = tg.relu(tg.conv2d(x, w1, padding=1, name="one"))
    return tg.conv2d(h, w2, stride=2, padding=1, name="two")


@dataclass(frozen=True, eq=False)
class Subject:
    """A program, small enough for the element-wise oracle, and how it is planned."""

    name: str
    program: Program
    on: str
    options: dict[str, Any]

    @cached_property
    def plan(self) -> Plan:
        return tg.plan(self.program, self.on, **self.options)

    @cached_property
    def data(self) -> Data:
        return expanded(self.plan)

    @cached_property
    def blob(self) -> bytes:
        return pickle.dumps({"tiles": self.data["tiles"], "semaphores": self.data["semaphores"], "placement": self.data["placement"]})

    def fresh(self) -> Data:
        """A copy of which everything that a mutant changes may be changed."""
        return {**self.data, **pickle.loads(self.blob)}

    @cached_property
    def arguments(self) -> list[torch.Tensor]:
        return random_arguments(self.program)

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        result = tg.reference(self.program, *self.arguments)
        return list(result) if isinstance(result, tuple) else [result]


def example(name: str, **sizes: int) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), {"dtype": "float32", **sizes})


@cache
def subjects() -> dict[str, Subject]:
    """Small plans of every shape: policies, split sum, gang, halo, attention, append, static lists, bands."""
    mlp, small = example("gpt3_mlp", M=10, H=6, I=7), example("gpt3_mlp", M=6, H=5, I=4)
    tiles = {"up": (4, 3, 4), "down": (3, 2, 2)}
    tiny = {"up": (3, 2, 5), "down": (4, 3, 2)}
    heads = {"H": 4, "heads": 2, "kv_heads": 1, "D": 2}
    made = (
        Subject("mlp by row", small, "cpu:3", {"tiles": tiny, "policies": {"h": "row"}, "order": "phase"}),
        Subject("mlp by tile", small, "cpu:3", {"tiles": tiny, "policies": {"h": "tile"}, "order": "phase"}),
        Subject("mlp by chunk", mlp, "cpu:3", {"tiles": tiles, "policies": {"h": "chunk:2"}, "order": "phase"}),
        Subject("mlp in bands", mlp, "cpu:3", {"tiles": tiles, "policies": {"h": "row"}, "order": "bands:2"}),
        Subject("mlp static", mlp, "cpu:3", {"tiles": tiles, "policies": {"h": "class"}, "placement": "static", "order": "phase"}),
        Subject("split sum", mlp, "cpu:3", {"tiles": tiles, "split": {"down": 2}, "policies": {"h": "tile"}, "order": "phase"}),
        Subject("gangs", mlp, "6", {"tiles": {"up": (4, 4, 3), "down": (5, 4, 2)}, "parts": {"up": 2, "down": 2}, "policies": {"h": "row"}}),
        Subject("convs", convs(), "cpu:3", {"tiles": {"one": (1, 2, 3, 2, 2), "two": (1, 1, 2, 2, 2)}, "policies": {"*": "tile"}}),
        Subject("attention", example("llama_attention", B=1, S=6, **heads), "cpu:3",
                {"tiles": {"qkv": (2, 3, 4), "attn": (2, 2), "out": (3, 2, 4), "q_rope": (3, 1), "k_rope": (3, 1)}, "policies": {"*": "tile"}}),
        Subject("decode", example("llama_layer", B=1, S=1, S_max=4, I=3, **heads), "cpu:3",
                {"tiles": {"qkv": (1, 3, 2), "attn": (1, 2), "gate_up": (1, 2, 2), "down": (1, 2, 2), "out": (1, 2, 2)}, "order": "phase"}),
    )  # fmt: skip
    return {s.name: s for s in made}


SMALLEST = ("mlp by row", "mlp by tile")

# --- the operators -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A change of the expanded plan, and the same change as switches of the generated code (tests/mutant_code.py)."""

    operator: str
    what: str
    change: Callable[[Data], None]
    switches: dict[str, Any]
    late: int | None = None  # the rank to delay, so that what is not awaited comes late

    def data(self, subject: Subject) -> Data:
        data = subject.fresh()
        self.change(data)
        return data


def part_of(data: Data, rank: int, part: int) -> Data:
    one: Data = data["tiles"][rank]["parts"][part]
    return one


def waits_of(subject: Subject) -> Iterator[tuple[int, int, int, int, dict[str, int]]]:
    """Every wait: rank, part, number of its read, its place there, and where the generated code has it."""
    t = subject.plan.wait_table
    rows = iter(zip(*(c.tolist() for c in (t.rank, t.part, t.step, t.operand, t.semaphore)), strict=True))
    for tile in subject.data["tiles"]:
        for p, part in enumerate(tile["parts"]):
            for r, read in enumerate(part["reads"]):
                for w, (semaphore, _) in enumerate(read["waits"]):
                    rank, own, step, operand, known = next(rows)
                    assert (rank, own, known) == (tile["rank"], p, semaphore)
                    yield rank, p, r, w, {"rank": rank, "part": p, "operand": operand, "step": step, "semaphore": semaphore}


def posters(data: Data, semaphore: int) -> list[int]:
    """Ranks of the tiles that post to a semaphore, once for each post."""
    return [t["rank"] for t in data["tiles"] for part in t["parts"] for s, n in part["posts"] for _ in range(n) if s == semaphore]


def wait_mutants(subject: Subject) -> Iterator[Mutant]:
    data = subject.data
    targets, count = data["semaphores"], len(data["semaphores"])
    for rank, p, r, w, at in waits_of(subject):
        reads, semaphore = part_of(data, rank, p)["reads"], at["semaphore"]
        late, who = posters(data, semaphore)[-1], f"{data['tiles'][rank]['op']} rank {rank} part {p} read {r} semaphore {semaphore}"

        def replaced(new: list[list[int]], rank: int = rank, p: int = p, r: int = r, w: int = w) -> Callable[[Data], None]:
            def change(d: Data) -> None:
                part_of(d, rank, p)["reads"][r]["waits"][w : w + 1] = new

            return change

        yield Mutant("dropped wait", who, replaced([]), {"kind": "drop", **at}, late)
        for sign in (-1, 1):
            new = [semaphore, targets[semaphore] + sign]
            yield Mutant(f"wait target {sign:+}", who, replaced([new]), {"kind": "wait", **at, "a": new[0], "b": new[1]}, late)
        for other in sorted({(semaphore + 1) % count, (semaphore - 1) % count} - {semaphore}):
            new = [other, targets[other]]
            switches = {"kind": "wait", **at, "a": new[0], "b": new[1]}
            yield Mutant("wait for another semaphore", f"{who} -> {other}", replaced([new]), switches, late)
        if r + 1 < len(reads):

            def moved(d: Data, rank: int = rank, p: int = p, r: int = r, w: int = w) -> None:
                reads = part_of(d, rank, p)["reads"]
                reads[r + 1]["waits"].append(reads[r]["waits"].pop(w))

            yield Mutant("wait moved to the next read", who, moved, {"kind": "late", **at}, late)


def post_mutants(subject: Subject) -> Iterator[Mutant]:
    data, count = subject.data, len(subject.data["semaphores"])
    for tile in data["tiles"]:
        for p, part in enumerate(tile["parts"]):
            for n, (semaphore, _) in enumerate(part["posts"]):
                rank = tile["rank"]
                who, at = f"{tile['op']} rank {rank} part {p} semaphore {semaphore}", {"rank": rank, "part": p, "semaphore": semaphore}

                def replaced(new: list[list[int]], rank: int = rank, p: int = p, n: int = n) -> Callable[[Data], None]:
                    def change(d: Data) -> None:
                        part_of(d, rank, p)["posts"][n : n + 1] = new

                    return change

                yield Mutant("missing post", who, replaced([]), {"kind": "silent", **at})
                yield Mutant("extra post", who, replaced([[semaphore, 2]]), {"kind": "twice", **at}, posters(data, semaphore)[-1])
                for other in sorted({(semaphore + 1) % count, (semaphore - 1) % count} - {semaphore}):
                    yield Mutant("post to another semaphore", f"{who} -> {other}", replaced([[other, 1]]), {"kind": "post", **at, "a": other})


def semaphore_mutants(subject: Subject) -> Iterator[Mutant]:
    data = subject.data
    for semaphore, target in enumerate(data["semaphores"]):
        ranks = posters(data, semaphore)
        for sign in (-1, 1):
            if target + sign:
                who, switches = f"semaphore {semaphore}", {"kind": "target", "semaphore": semaphore, "a": sign}
                yield Mutant(f"semaphore target {sign:+}", who, _shift(semaphore, sign), switches, ranks[-1])
        if ranks[0] != ranks[-1]:
            cut = sorted(set(ranks))[len(set(ranks)) // 2]
            waiting = sorted({t["rank"] for t in data["tiles"] for part in t["parts"] for r in part["reads"] for s, _ in r["waits"] if s == semaphore})
            turn = waiting[(len(waiting) + 1) // 2] if len(waiting) > 1 else len(data["tiles"])
            first = sum(r < cut for r in ranks)
            switches = {"kind": "split", "semaphore": semaphore, "rank": turn, "operand": len(ranks) - first, "a": cut, "b": first}
            yield Mutant("semaphore split too finely", f"semaphore {semaphore}", _split(semaphore, cut, turn), switches, ranks[-1])


def _shift(semaphore: int, sign: int) -> Callable[[Data], None]:
    """Another target, and every wait asks for it."""

    def change(d: Data) -> None:
        d["semaphores"][semaphore] += sign
        for wait in (w for t in d["tiles"] for part in t["parts"] for r in part["reads"] for w in r["waits"] if w[0] == semaphore):
            wait[1] += sign

    return change


def _split(semaphore: int, cut: int, turn: int) -> Callable[[Data], None]:
    """Posters of rank `cut` on get a semaphore of their own; waiters before rank `turn` wait for the first half only, the others for it."""

    def change(d: Data) -> None:
        other, ranks = len(d["semaphores"]), posters(d, semaphore)
        d["semaphores"].append(sum(r >= cut for r in ranks))
        d["semaphores"][semaphore] -= d["semaphores"][other]
        for tile in d["tiles"]:
            for part in tile["parts"]:
                for post in part["posts"]:
                    if post[0] == semaphore and tile["rank"] >= cut:
                        post[0] = other
                for wait in (w for r in part["reads"] for w in r["waits"] if w[0] == semaphore):
                    wait[0] = other if tile["rank"] >= turn else semaphore
                    wait[1] = d["semaphores"][wait[0]]

    return change


def order_mutants(subject: Subject) -> Iterator[Mutant]:
    tiles, lists = subject.data["tiles"], subject.data["placement"]

    def swapped(a: int, b: int) -> Callable[[Data], None]:
        def change(d: Data) -> None:
            t = d["tiles"]
            t[a], t[b] = t[b], t[a]
            t[a]["rank"], t[b]["rank"] = a, b

        return change

    def listed(sm: int, at: int, to: int) -> Callable[[Data], None]:
        def change(d: Data) -> None:
            ranks = d["placement"][sm]
            ranks[at], ranks[to] = ranks[to], ranks[at]

        return change

    for a, b in combinations(range(len(tiles)), 2):
        yield Mutant("swapped ranks", f"ranks {a} and {b}", swapped(a, b), {"kind": "swap", "a": a, "b": b})
    for sm, ranks in enumerate(lists if lists != "ticket" else []):
        for at, to in combinations(range(len(ranks)), 2):
            a, b = ranks[at], ranks[to]
            yield Mutant("swapped in a static list", f"SM {sm}: ranks {a} and {b}", listed(sm, at, to), {"kind": "swap", "a": a, "b": b})


def mutants(subject: Subject) -> Iterator[Mutant]:
    """All of a plan."""
    for make in (wait_mutants, post_mutants, semaphore_mutants, order_mutants):
        yield from make(subject)


# --- what a mutant is --------------------------------------------------------------------------------------------------------


def ordered(data: Data) -> bool:
    """Whether every read comes after the writes it needs: by full waits, through other tiles, and along static lists."""
    parts, posts, lists = elements._parts(data), elements._posts(data), data["placement"]
    posting: dict[int, int] = defaultdict(int)  # semaphore -> its posters, a bit each
    of_tile: dict[int, list[int]] = defaultdict(list)
    writer = {}
    for n, part in enumerate(parts):
        of_tile[part.rank].append(n)
        for semaphore, _ in part.listed["posts"]:
            posting[semaphore] |= 1 << n
        writer.update({e: n for e in part.work.writes})
    before = {b: a for ranks in (lists if lists != "ticket" else []) for a, b in pairwise(ranks)}
    ends, changed = [1 << n for n in range(len(parts))], True  # what has ended when a part has ended

    def passing(n: int) -> Iterator[tuple[Data, int]]:
        """Each read of a part and what has ended before it."""
        rank = parts[n].rank
        known = ends[of_tile[before[rank]][parts[n].listed is not data["tiles"][rank]["parts"][0]]] if rank in before else 0
        for read in parts[n].listed["reads"]:
            for semaphore, value in read["waits"]:
                if value == posts[semaphore]:
                    for poster in (m for m in range(len(parts)) if posting[semaphore] >> m & 1):
                        known |= ends[poster]
            yield read, known

    while changed:
        changed = False
        for rank in sorted(of_tile):
            gathered = 0
            for n in of_tile[rank]:
                for _, known in passing(n):
                    gathered |= known
            for n in of_tile[rank]:
                changed |= bool(gathered & ~ends[n])
                ends[n] |= gathered
    return all(known >> writer[e] & 1 for n in range(len(parts)) for read, known in passing(n)
               for e in elements._elements(read["tensor"], read["box"]) if e in writer)  # fmt: skip


RULES = {
    "nothing": "no tile depends on what changed: neither oracle nor proof objects",
    "ordered": "ordered all the same, through other tiles or along a static list; the proof asks for a direct wait",
    "static": "the static lists still run to their end; the proof asks that ranks ascend, as tickets need it",
}


def harmless(data: Data) -> str:
    """Why a mutant does not count (a key of RULES), or nothing when it does."""
    report, tickets = elements.examine(data), data["placement"] == "ticket"
    deadlocks = {d for d in report.deadlocks if tickets or d.startswith("static")}
    if deadlocks or report.unwritten or report.bad_reuse or report.mislisted:
        return ""
    if report.races:
        return "ordered" if ordered(data) else ""
    return "static" if not tickets and proof_objects(data) else "nothing"


def remember_work() -> None:
    """Mutants leave the ops alone: what their tiles read and write is the same for all mutants of a plan."""
    known: dict[Any, Any] = {}
    plain = element_kinds.work_of

    def work_of(plan: Data, op: Data, coord: tuple[int, ...], part: int) -> Any:
        key = (id(plan["ops"]), op["result"], id(op), coord, part)
        if key not in known:
            known[key] = (plain(plan, op, coord, part), plan["ops"])
        return known[key][0]

    elements.work_of = work_of


def proof_objects(data: Data) -> bool:
    return not check(data).ok


# --- the interpreter ---------------------------------------------------------------------------------------------------------

TRIES = (("random", 0, 0), ("reverse", 0, 0), ("starve", 0, 1), ("round-robin", 0, 0), ("starve", 0, 0), *(("random", s, 0) for s in range(1, 9)))


def interpreter_objects(subject: Subject, data: Data, strategy: str, seed: int, workers: int) -> str:
    """What a run of the plan ends in: an error's name, "wrong result", or nothing."""
    arguments = [a.clone() for a in subject.arguments]
    kernel = Kernel(subject.plan, None, Interpreter(subject.plan, strategy, seed, data), workers or 16)
    try:
        result = kernel(*arguments)
    except TilegenError as error:
        return f"{type(error).__name__}: {error}"
    results = list(result) if isinstance(result, tuple) else [result]
    results += [a for t, a in zip(subject.program.arguments, arguments, strict=True) if t.role == "state"]
    good = all(relative_error(r, e) < 1e-5 for r, e in zip(results, subject.expected, strict=True))
    return "" if good else "wrong result"


def interpreted(subject: Subject, data: Data, tries: int = len(TRIES)) -> str:
    """The first objection in several runs."""
    return next((o for strategy, seed, workers in TRIES[:tries] if (o := interpreter_objects(subject, data, strategy, seed, workers))), "")


def sample(found: list[Any], count: int, seed: Any) -> list[Any]:
    return random.Random(str(seed)).sample(found, min(count, len(found)))


if __name__ == "__main__":
    from tests.mutant_table import main

    main()
