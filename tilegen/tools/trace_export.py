"""What a trace shows: for whom each tile waited, what that cost edge by edge, and all of it as JSON for
Perfetto or chrome://tracing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegen.analysis.regions import tiles_of
from tilegen.tools.trace import TileTrace, Trace

TRACKS = ("activations", "weights", "maths", "results")


@dataclass(frozen=True)
class Awaited:
    """A semaphore that a CTA of a tile waits for, after `share` of its steps, and the last tile to post to
    it."""

    edge: str
    semaphore: int
    share: float
    poster: TileTrace

    @property
    def posted(self) -> float:
        return self.poster.times["posted"]

    @property
    def text(self) -> str:
        return f"{self.edge}: semaphore {self.semaphore}, last posted by {self.poster.name}"


@dataclass(frozen=True)
class Lost:
    """What an edge cost: µs of all CTAs together, the most of one, and which tile that was."""

    edge: str
    tiles: int
    sum_us: float
    max_us: float
    worst: str


def last_posters(trace: Trace) -> dict[int, TileTrace]:
    """semaphore -> the tile that posted to it last."""
    runs: dict[int, list[TileTrace]] = defaultdict(list)
    for t in trace.tiles:
        runs[t.rank].append(t)
    last: dict[int, TileTrace] = {}
    for m in trace.plan.semaphores:
        for rank, semaphore in zip(
            trace.plan.ranks[m.producer].tolist(), trace.plan.posted(m).tolist(), strict=True
        ):
            for t in runs[rank]:
                if t.times["posted"] > (last[semaphore].times["posted"] if semaphore in last else -np.inf):
                    last[semaphore] = t
    return last


def awaited(trace: Trace) -> dict[tuple[int, int], list[Awaited]]:
    """(rank, CTA rank) -> what it waits for; semaphores whose posts were not noted are left out."""
    plan, last = trace.plan, last_posters(trace)
    steps = np.ones(plan.order.count)
    op_of: dict[int, str] = {}
    for b in plan.bounds:
        steps[plan.ranks[b.op.name]] = np.maximum(tiles_of(b).steps, 1)
        op_of |= dict.fromkeys(plan.ranks[b.op.name].tolist(), b.op.name)
    edges: dict[tuple[str, int, int], str] = {}
    for w in plan.waits:
        numbers = range(w.semaphores.base, w.semaphores.base + w.semaphores.count)
        edges |= {(w.edge.consumer.op.name, w.edge.access.operand, n): w.edge.name for n in numbers}
    found: dict[tuple[int, int], list[Awaited]] = defaultdict(list)
    table = plan.wait_table
    columns = (table.rank, table.cta_rank, table.step, table.operand, table.semaphore)
    for rank, cta_rank, step, operand, semaphore in zip(*(c.tolist() for c in columns), strict=True):
        if semaphore in last:
            share = min(max(step / steps[rank], 0.0), 1.0)
            found[rank, cta_rank].append(
                Awaited(edges[op_of[rank], operand, semaphore], semaphore, share, last[semaphore])
            )
    return found


def lost(trace: Trace) -> list[Lost]:
    """For each edge, the time from when a tile's maths could have come to a wait until the awaited post,
    summed over tiles.

    Maths could come to a wait at ready + share·(the op's shortest main loop). Edges that hold back one tile
    together count each.
    """
    waits = awaited(trace)
    loops: dict[str, float] = {}
    for t in trace.tiles:
        loops[t.op] = float(np.fmin(loops.get(t.op, np.inf), t.times["multiplied"] - t.times["arrived"]))
    cost: dict[str, list[tuple[float, str]]] = {e.name: [] for e in trace.plan.edges}
    for t, ready in zip(trace.tiles, trace.ready, strict=True):
        late: dict[str, tuple[float, str]] = {}
        for w in waits.get((t.rank, trace.cta_rank(t)), []):
            us = w.posted - ready - (w.share * loops[t.op] if w.share else 0.0)
            if us > 0:
                late[w.edge] = max(late.get(w.edge, (0.0, "")), (us, f"{t.name} for {w.poster.name}"))
        for edge, one in late.items():
            cost[edge].append(one)
    return [
        Lost(edge, len(c), sum(us for us, _ in c), *max(c, default=(0.0, ""))) for edge, c in cost.items()
    ]


def lost_text(trace: Trace) -> str:
    """Edge by edge, the tiles that it held back, µs in all (of one CTA's time) and at most, and where."""
    lines = [f"{'edge':<22}{'held back':>10}{'sum':>10}{'greatest':>10}  µs"]
    lines += [
        f"{r.edge:<22}{r.tiles:>10}{r.sum_us:>10.1f}{r.max_us:>10.2f}  {r.worst}".rstrip()
        for r in lost(trace)
    ]
    return "\n".join(lines)


def chrome(trace: Trace) -> dict[str, Any]:
    """Trace Event Format: a process for each CTA, in it a track each for activations, weights, maths and
    results."""
    events: list[dict[str, Any]] = []
    for cta in range(len(trace.span)):
        clock = f", {trace.clocks[cta]:.0f} MHz" if trace.clocks else ""
        events.append(
            {"ph": "M", "name": "process_name", "pid": cta, "tid": 0, "args": {"name": f"SM {cta}{clock}"}}
        )
        events += [
            {"ph": "M", "name": "thread_name", "pid": cta, "tid": n, "args": {"name": name}}
            for n, name in enumerate(TRACKS)
        ]
    waits = awaited(trace)
    for t, before in zip(trace.tiles, trace.before, strict=True):
        last = max(waits.get((t.rank, trace.cta_rank(t)), []), key=lambda w: w.posted, default=None)
        for track, what, start, end in _slices(trace, t, before):
            if end > start:  # not where either was not noted
                args: dict[str, Any] = {"tile": t.name, "rank": t.rank}
                if what == "wait" and last is not None:
                    args |= {"for": last.text, "posted": round(last.posted, 3)}
                where = {
                    "ts": round(start, 3),
                    "dur": round(end - start, 3),
                    "pid": t.cta,
                    "tid": TRACKS.index(track),
                }
                events.append({"ph": "X", "name": f"{what} {t.op}", "cat": what, **where, "args": args})
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _slices(trace: Trace, t: TileTrace, before: TileTrace | None) -> Iterator[tuple[str, str, float, float]]:
    """(track, what, from, to)"""
    free = before.at("loaded", "finished", "multiplied") if before is not None else trace.span[t.cta][0]
    yield "activations", "wait", free, t.times["waited"]
    yield "activations", "load", t.times["waited"], t.times["loaded"]
    yield "weights", "load", t.times["ahead"], t.times["ahead_last"]
    yield "maths", "maths", t.times["arrived"], t.times["multiplied"]
    yield "results", "store", t.times["multiplied"], t.at("posted", "finished")
