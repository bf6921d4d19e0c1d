"""Mutants: right plans with one thing wrong each, and which layer catches them: proof, interpreter,
ThreadSanitizer, or the run itself.

A mutant counts when the element-wise oracle finds a race, a deadlock, an unwritten read or a bad reuse in it.
The oracle knows direct waits only: where it finds nothing but races, and every pair of tiles is ordered all
the same (`ordered`), no run can show anything and the mutant is harmless. The proof refuses some of the
harmless ones, by rules that are stricter than need be on purpose (RULES).

`python -m tests.mutants` builds and runs everything and writes docs/mutants.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tests.mutant_plans import Data, Subject


@dataclass(frozen=True)
class Mutant:
    """A change of the expanded plan, and the same change as switches of the generated code
    (tests/mutant_code.py)."""

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
    one: Data = data["tiles"][rank]["ctas"][part]
    return one


def waits_of(subject: Subject) -> Iterator[tuple[int, int, int, int, dict[str, int]]]:
    """Every wait: rank, part, number of its read, its place there, and where the generated code has it."""
    t = subject.plan.wait_table
    rows = iter(zip(*(c.tolist() for c in (t.rank, t.cta_rank, t.step, t.operand, t.semaphore)), strict=True))
    for tile in subject.data["tiles"]:
        for p, part in enumerate(tile["ctas"]):
            for r, read in enumerate(part["reads"]):
                for w, (semaphore, _) in enumerate(read["waits"]):
                    rank, own, step, operand, known = next(rows)
                    assert (rank, own, known) == (tile["rank"], p, semaphore)
                    yield (
                        rank,
                        p,
                        r,
                        w,
                        {
                            "rank": rank,
                            "cta_rank": p,
                            "operand": operand,
                            "step": step,
                            "semaphore": semaphore,
                        },
                    )


def posters(data: Data, semaphore: int) -> list[int]:
    """Ranks of the tiles that post to a semaphore, once for each post."""
    return [
        t["rank"]
        for t in data["tiles"]
        for part in t["ctas"]
        for s, n in part["posts"]
        for _ in range(n)
        if s == semaphore
    ]


def late_poster(data: Data, semaphore: int, rank: int, reads: list[Data] | None = None) -> int:
    """A poster that may come late without holding up `rank` (on another SM, where the lists are static), of
    what the reads need."""
    ranks = posters(data, semaphore)
    own = (
        next((ranks for ranks in data["scheduling"] if rank in ranks), [])
        if data["scheduling"] != "dynamic"
        else []
    )

    def needed(poster: int) -> bool:
        writes = [w for part in data["tiles"][poster]["ctas"] for w in part["writes"]]
        return any(
            w["tensor"] == r["tensor"] and meet(w["box"], r["box"]) for w in writes for r in reads or []
        )

    others = [r for r in reversed(ranks) if r != rank and r not in own]
    return next((r for r in others if needed(r)), (others or ranks)[0])


def meet(a: list[list[int]], b: list[list[int]]) -> bool:
    return all(x[0] < y[1] and y[0] < x[1] for x, y in zip(a, b, strict=True))


def wait_mutants(subject: Subject) -> Iterator[Mutant]:
    data = subject.data
    targets, count = data["semaphores"], len(data["semaphores"])
    for rank, p, r, w, at in waits_of(subject):
        reads, semaphore = part_of(data, rank, p)["reads"], at["semaphore"]
        who = f"{data['tiles'][rank]['op']} rank {rank} part {p} read {r} semaphore {semaphore}"
        late = late_poster(data, semaphore, rank, reads[r:])

        def replaced(
            new: list[list[int]], rank: int = rank, p: int = p, r: int = r, w: int = w
        ) -> Callable[[Data], None]:
            def change(d: Data) -> None:
                part_of(d, rank, p)["reads"][r]["waits"][w : w + 1] = new

            return change

        yield Mutant("dropped wait", who, replaced([]), {"kind": "drop", **at}, late)
        for sign in (-1, 1):
            new = [semaphore, targets[semaphore] + sign]
            yield Mutant(
                f"wait target {sign:+}",
                who,
                replaced([new]),
                {"kind": "wait", **at, "a": new[0], "b": new[1]},
                late,
            )
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
        for p, part in enumerate(tile["ctas"]):
            for n, (semaphore, _) in enumerate(part["posts"]):
                rank = tile["rank"]
                who, at = (
                    f"{tile['op']} rank {rank} part {p} semaphore {semaphore}",
                    {"rank": rank, "cta_rank": p, "semaphore": semaphore},
                )

                def replaced(
                    new: list[list[int]], rank: int = rank, p: int = p, n: int = n
                ) -> Callable[[Data], None]:
                    def change(d: Data) -> None:
                        part_of(d, rank, p)["posts"][n : n + 1] = new

                    return change

                yield Mutant("missing post", who, replaced([]), {"kind": "silent", **at})
                yield Mutant(
                    "extra post",
                    who,
                    replaced([[semaphore, 2]]),
                    {"kind": "twice", **at},
                    late_poster(data, semaphore, rank),
                )
                for other in sorted({(semaphore + 1) % count, (semaphore - 1) % count} - {semaphore}):
                    switches = {"kind": "post", **at, "a": other}
                    yield Mutant(
                        "post to another semaphore", f"{who} -> {other}", replaced([[other, 1]]), switches
                    )


def semaphore_mutants(subject: Subject) -> Iterator[Mutant]:
    data = subject.data
    for semaphore, target in enumerate(data["semaphores"]):
        ranks = posters(data, semaphore)
        for sign in (-1, 1):
            if target + sign:
                who, switches = (
                    f"semaphore {semaphore}",
                    {"kind": "target", "semaphore": semaphore, "a": sign},
                )
                yield Mutant(f"semaphore target {sign:+}", who, _shift(semaphore, sign), switches, ranks[-1])
        if ranks[0] != ranks[-1]:
            cut = sorted(set(ranks))[len(set(ranks)) // 2]
            reads = [(t["rank"], read) for t in data["tiles"] for part in t["ctas"] for read in part["reads"]]
            waiting = sorted({rank for rank, read in reads for s, _ in read["waits"] if s == semaphore})
            turn = waiting[(len(waiting) + 1) // 2] if len(waiting) > 1 else len(data["tiles"])
            first = sum(r < cut for r in ranks)
            switches = {
                "kind": "split",
                "semaphore": semaphore,
                "rank": turn,
                "operand": len(ranks) - first,
                "a": cut,
                "b": first,
            }
            yield Mutant(
                "semaphore split too finely",
                f"semaphore {semaphore}",
                _split(semaphore, cut, turn),
                switches,
                ranks[-1],
            )


def _shift(semaphore: int, sign: int) -> Callable[[Data], None]:
    """Another target, and every wait asks for it."""

    def change(d: Data) -> None:
        d["semaphores"][semaphore] += sign
        for wait in (
            w
            for t in d["tiles"]
            for part in t["ctas"]
            for r in part["reads"]
            for w in r["waits"]
            if w[0] == semaphore
        ):
            wait[1] += sign

    return change


def _split(semaphore: int, cut: int, turn: int) -> Callable[[Data], None]:
    """Posters of rank `cut` on get a semaphore of their own; waiters before rank `turn` wait for the first
    half only, the others for it."""

    def change(d: Data) -> None:
        other, ranks = len(d["semaphores"]), posters(d, semaphore)
        d["semaphores"].append(sum(r >= cut for r in ranks))
        d["semaphores"][semaphore] -= d["semaphores"][other]
        for tile in d["tiles"]:
            for part in tile["ctas"]:
                for post in part["posts"]:
                    if post[0] == semaphore and tile["rank"] >= cut:
                        post[0] = other
                for wait in (w for r in part["reads"] for w in r["waits"] if w[0] == semaphore):
                    wait[0] = other if tile["rank"] >= turn else semaphore
                    wait[1] = d["semaphores"][wait[0]]

    return change


def order_mutants(subject: Subject) -> Iterator[Mutant]:
    tiles, lists = subject.data["tiles"], subject.data["scheduling"]

    def swapped(a: int, b: int) -> Callable[[Data], None]:
        def change(d: Data) -> None:
            t = d["tiles"]
            t[a], t[b] = t[b], t[a]
            t[a]["rank"], t[b]["rank"] = a, b

        return change

    def listed(sm: int, at: int, to: int) -> Callable[[Data], None]:
        def change(d: Data) -> None:
            ranks = d["scheduling"][sm]
            ranks[at], ranks[to] = ranks[to], ranks[at]

        return change

    for a, b in combinations(range(len(tiles)), 2):
        yield Mutant("swapped ranks", f"ranks {a} and {b}", swapped(a, b), {"kind": "swap", "a": a, "b": b})
    for sm, ranks in enumerate(lists if lists != "dynamic" else []):
        for at, to in combinations(range(len(ranks)), 2):
            a, b = ranks[at], ranks[to]
            yield Mutant(
                "swapped in a static list",
                f"SM {sm}: ranks {a} and {b}",
                listed(sm, at, to),
                {"kind": "swap", "a": a, "b": b},
            )


def mutants(subject: Subject) -> Iterator[Mutant]:
    """All of a plan."""
    for make in (wait_mutants, post_mutants, semaphore_mutants, order_mutants):
        yield from make(subject)


if __name__ == "__main__":
    from tests.mutant_table import main

    raise SystemExit(main())
