"""Element by element: does some read of a small plan happen before, or beside, the write it needs?

A deliberately naive second opinion on a plan. It loops over single elements of every tile and step, as
docs/plan-format.md describes them, runs the semaphores in a little simulation, and knows nothing of boxes,
cells or grids of writers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.oracles.element_kinds import Element, Work, work_of

Plan = dict[str, Any]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Report:
    """What is wrong; a right plan has nothing in any of these."""

    races: frozenset[Pair]  # (writer, reader or second writer) of one element with no order between them
    deadlocks: frozenset[str]  # "dynamic on 1 SM: down (0, 0) never ends"
    unwritten: frozenset[tuple[str, Element]]  # (reader or "output", element) that nobody writes
    bad_reuse: frozenset[int]  # semaphores that cannot be zeroed safely at exit
    mislisted: frozenset[str]  # tiles whose listed reads or writes are not what their op does

    @property
    def ok(self) -> bool:
        return not (self.races or self.deadlocks or self.unwritten or self.bad_reuse or self.mislisted)


@dataclass(frozen=True)
class _Part:
    name: str
    rank: int
    listed: dict[str, Any]
    work: Work
    op: dict[str, Any]


def _elements(tensor: str, box: list[list[int]]) -> Iterator[Element]:
    return ((tensor, at) for at in product(*(range(*r) for r in box)))


def _parts(plan: Plan) -> list[_Part]:
    out = []
    for tile in plan["tiles"]:
        op = plan["ops"][tile["op"]]
        for index, listed in enumerate(tile["ctas"]):
            name = f"{tile['op']} ({', '.join(map(str, tile['coord']))})"
            out.append(_Part(name, tile["rank"], listed, work_of(plan, op, tuple(tile["coord"]), index), op))
    return out


def _posts(plan: Plan) -> dict[int, int]:
    """All posts that each semaphore can get."""
    total: dict[int, int] = defaultdict(int)
    for tile in plan["tiles"]:
        for part in tile["ctas"]:
            for semaphore, amount in part["posts"]:
                total[semaphore] += amount
    return total


def _reads_after(
    part: _Part, posts: dict[int, int], free: set[Element]
) -> tuple[list[tuple[Element, frozenset[int]]], bool]:
    """Every element read, with the semaphores all of whose posts come before; and whether the list lacks one
    that is not `free`."""
    forwarded: frozenset[int] = frozenset()
    out, seen = [], set()
    for read in part.listed["reads"]:
        forwarded |= {s for s, value in read["waits"] if value == posts[s]}
        for element in _elements(read["tensor"], read["box"]):
            out.append((element, forwarded))
            seen.add(element)
    unlisted = part.work.reads - seen - free
    return out + [(e, frozenset()) for e in unlisted], bool(unlisted)


def _apart(writer: _Part, reader: _Part, element: Element) -> bool:
    """Whether one writes only rows of a cache from a position on, and the other reads only rows before it."""
    a, w = reader.op["attributes"], writer.op["attributes"]
    if (
        (reader.op["kind"], writer.op["kind"]) != ("attention", "append")
        or not a.get("forwarded")
        or w["at"] >= 0
    ):
        return False
    cached = [
        o for o in reader.op["operands"] if element[0] in (o, o["tensor"] if isinstance(o, dict) else o)
    ]
    alike = (a["k_len"], reader.op["operands"][3]) == (w["max_len"], writer.op["operands"][2])
    return alike and cached == [element[0]] and cached[0] in reader.op["operands"][1:3]


def examine(plan: Plan) -> Report:
    """The report on a small expanded plan (a dict as its JSON)."""
    parts, posts, roles = _parts(plan), _posts(plan), {name: t["role"] for name, t in plan["tensors"].items()}
    writers: dict[Element, list[_Part]] = defaultdict(list)
    for part in parts:
        for element in part.work.writes:
            writers[element].append(part)
    positions: set[Element] = {
        (name, (0,))
        for name, t in plan["tensors"].items()
        if t["dtype"] == "int32" and not writers[name, (0,)]
    }
    races = {(w[0].name, other.name) for w in writers.values() for other in w[1:]}
    unwritten: set[tuple[str, Element]] = set()
    mislisted = set()
    for part in parts:
        reads, missing = _reads_after(part, posts, positions)
        written = [e for w in part.listed["writes"] for e in _elements(w["tensor"], w["box"])]
        if missing or len(written) != len(set(written)) or set(written) != part.work.writes:
            mislisted.add(part.name)
        for element, forwarded in reads:
            if not writers[element] and roles[element[0]] not in ("input", "weight", "state"):
                unwritten.add((part.name, element))
            races |= {
                (w.name, part.name)
                for w in writers[element]
                if not forwarded & {s for s, _ in w.listed["posts"]} and not _apart(w, part, element)
            }
    for name, tensor in plan["tensors"].items():
        if tensor["role"] == "output":
            unwritten |= {
                ("output", (name, at))
                for at in product(*map(range, tensor["shape"]))
                if not writers[name, at]
            }
    return Report(
        frozenset(races),
        frozenset(_deadlocks(plan)),
        frozenset(unwritten),
        frozenset(_bad_reuse(plan, posts)),
        frozenset(mislisted),
    )


def _bad_reuse(plan: Plan, posts: dict[int, int]) -> set[int]:
    """Semaphores off their target at exit, or of which some post is not ordered before each wait has
    passed."""
    waits: dict[int, list[int]] = defaultdict(list)
    for tile in plan["tiles"]:
        for part in tile["ctas"]:
            for read in part["reads"]:
                for semaphore, value in read["waits"]:
                    waits[semaphore].append(value)
    return {
        s
        for s, target in enumerate(plan["semaphores"])
        if posts.get(s, 0) != target or not waits[s] or any(value != posts.get(s, 0) for value in waits[s])
    }


def _deadlocks(plan: Plan) -> set[str]:
    """Tiles that never end: dynamically with one SM and with all, and by the static lists where there are
    any."""
    sms, tiles, lists = plan["machine"]["sms"], plan["tiles"], plan["scheduling"]
    static = _run(tiles, [list(ranks) for ranks in lists]) if lists != "dynamic" else []
    return {f"static lists: {name} never ends" for name in static} | {
        f"dynamic on {n} SMs: {name} never ends" for n in {1, sms} for name in _run(tiles, None, n)
    }


def _run(tiles: list[dict[str, Any]], lists: list[list[int]] | None, sms: int = 1) -> list[str]:
    """Runs the tiles, a part as soon as all it waits for has come; the names of those that are left."""
    counters: dict[int, int] = defaultdict(int)
    drawn = list(range(len(tiles)))
    queues = lists if lists is not None else [drawn] * sms  # dynamic: one queue for all
    held: list[tuple[int, list[dict[str, Any]]] | None] = [None] * len(queues)
    ended: set[int] = set()
    moving = True
    while moving:
        moving = False
        for sm, queue in enumerate(queues):
            if held[sm] is None and queue:
                rank = queue.pop(0)
                held[sm] = (rank, list(tiles[rank]["ctas"]))
                moving = True
            now = held[sm]
            if now is None:
                continue
            for part in [
                p for p in now[1] if all(counters[s] >= v for r in p["reads"] for s, v in r["waits"])
            ]:
                now[1].remove(part)
                moving = True
                for semaphore, amount in part["posts"]:
                    counters[semaphore] += amount
            if not now[1]:
                ended.add(now[0])
                held[sm] = None
    return [f"{t['op']} {tuple(t['coord'])}" for t in tiles if t["rank"] not in ended]
