"""What catches a mutant without a compiler: whether it counts at all, the proof, and the interpreter."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from tests.mutant_plans import Data, Subject
from tests.oracles import element_kinds, elements
from tilegen.errors import TilegenError
from tilegen.kernels.kernel import Kernel
from tilegen.proof.checker import check
from tilegen.runtime.data import relative_error
from tilegen.schedule.plan import Plan
from tilegen.targets.interpret.interpreter import Interpreter


def ordered(data: Data) -> bool:
    """Whether every read comes after the writes it needs: by full waits, through other tiles, and along
    static lists."""
    parts, posts, lists = elements._parts(data), elements._posts(data), data["scheduling"]
    posting: dict[int, int] = defaultdict(int)  # semaphore -> its posters, a bit each
    of_tile: dict[int, list[int]] = defaultdict(list)
    writer = {}
    for n, part in enumerate(parts):
        of_tile[part.rank].append(n)
        for semaphore, _ in part.listed["posts"]:
            posting[semaphore] |= 1 << n
        writer.update({e: n for e in part.work.writes})
    before = {b: a for ranks in (lists if lists != "dynamic" else []) for a, b in pairwise(ranks)}
    ends, changed = [1 << n for n in range(len(parts))], True  # what has ended when a part has ended

    def passing(n: int) -> Iterator[tuple[Data, int]]:
        """Each read of a part and what has ended before it."""
        rank = parts[n].rank
        known = (
            ends[of_tile[before[rank]][parts[n].listed is not data["tiles"][rank]["ctas"][0]]]
            if rank in before
            else 0
        )
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
    "ordered": (
        "ordered all the same, through other tiles or along a static list; the proof asks for a direct wait"
    ),
    "static": (
        "the static lists still run to their end; the proof asks that ranks ascend, as dynamic scheduling"
        " needs"
    ),
}


def harmless(data: Data) -> str:
    """Why a mutant does not count (a key of RULES), or nothing when it does."""
    report, dynamic = elements.examine(data), data["scheduling"] == "dynamic"
    deadlocks = {d for d in report.deadlocks if dynamic or d.startswith("static")}
    if deadlocks or report.unwritten or report.bad_reuse or report.mislisted:
        return ""
    if report.races:
        return "ordered" if ordered(data) else ""
    return "static" if not dynamic and proof_objects(data) else "nothing"


@contextmanager
def remembered_work() -> Iterator[None]:
    """Mutants leave the ops alone: what tiles read and write is the same for all mutants of a plan, and
    inside here found out once."""
    known: dict[Any, Any] = {}
    plain = element_kinds.work_of

    def work_of(plan: Data, op: Data, coord: tuple[int, ...], part: int) -> Any:
        key = (id(plan["ops"]), op["result"], id(op), coord, part)
        if key not in known:
            known[key] = (plain(plan, op, coord, part), plan["ops"])
        return known[key][0]

    elements.work_of = work_of
    try:
        yield
    finally:
        elements.work_of = plain


def proof_objects(data: Data) -> bool:
    return not check(data).ok


# --- the interpreter ----------------------------------------------------------------------------------------

TRIES = (
    ("round-robin", 0, 0),
    ("starve", 0, 1),
    ("random", 0, 0),
    ("reverse", 0, 0),
    ("starve", 0, 0),
    ("random", 1, 0),
)


class Holding(Interpreter):
    """An interleaving in which the tile of one rank comes to a stand, until nothing else can go on: as soon
    as it is drawn, or, in a cluster, when all parts but the last have posted."""

    def __init__(self, plan: Plan, strategy: str, seed: int, data: Data, rank: int | None):
        super().__init__(plan, strategy, seed, data)
        self.rank, self.held = rank, -1

    def _tile(self, run: Any, cluster: int, turn: int, tile: Any) -> Any:
        parts, mine = tile["ctas"], tile["rank"] == self.rank
        events = 0 if len(parts) == 1 else sum(1 + len(r["waits"]) for p in parts for r in p["reads"])
        events += sum(len(p["writes"]) + len(p["posts"]) for p in parts[:-1])
        if mine and not events:
            self.held = cluster
            yield None
        for event in super()._tile(run, cluster, turn, tile):
            events -= 1
            self.held = cluster if mine and events <= 0 else self.held
            yield event
        self.held = -1 if mine else self.held

    def _pick(self, ready: list[int], turn: int, chance: random.Random) -> int:
        return super()._pick([g for g in ready if g != self.held] or ready, turn, chance)


def interpreter_objects(
    subject: Subject, data: Data, strategy: str, seed: int, workers: int, held: int | None = None
) -> str:
    """What a run of the plan ends in: an error's name and words, "wrong result", or nothing."""
    arguments = [a.clone() for a in subject.arguments]
    kernel = Kernel(
        subject.plan, None, Holding(subject.plan, strategy, seed, data, held), subject.workers(workers)
    )
    try:
        result = kernel(*arguments)
    except TilegenError as error:
        return f"{type(error).__name__}: {error}"
    results = list(result) if isinstance(result, tuple) else [result]
    results += [a for t, a in zip(subject.program.arguments, arguments, strict=True) if t.role == "state"]
    good = all(relative_error(r, e) < 1e-5 for r, e in zip(results, subject.expected, strict=True))
    return "" if good else "wrong result"


def interpreted(subject: Subject, data: Data, held: int | None, tries: int = len(TRIES)) -> str:
    """The first objection in several runs."""
    return next((o for t in TRIES[:tries] if (o := interpreter_objects(subject, data, *t, held))), "")


def sample(found: list[Any], count: int, seed: Any) -> list[Any]:
    return random.Random(str(seed)).sample(found, min(count, len(found)))
