"""Where the time of a launch went: per tile, when it waited, loaded, multiplied and stored, by time stamps
from inside or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilegen.analysis.regions import Array
from tilegen.schedule.hang import tile_at
from tilegen.schedule.plan import Plan
from tilegen.schedule.simulate import simulate, workers

# the events of a tile in the order of the kernel's notes (targets.sm90.emit.NOTES)
EVENTS = ("waited", "loaded", "ahead", "ahead_last", "arrived", "multiplied", "finished", "posted")
RANK = 8
WORD = 1 << 32  # clocks and the low word of the global timer start again after so many
NEVER = float("nan")


@dataclass(frozen=True)
class TileTrace:
    """One tile on one CTA; times in µs from the launch's start, NaN where the role has no such event.

    waited: first load of activations issued, all waits over; loaded: the last; ahead, ahead_last: the same of
    weights; arrived: first stage at the math warps; multiplied: main loop over; finished: results out of the
    registers; posted: stored and posted.
    """

    rank: int
    op: str
    coord: tuple[int, ...]
    cta: int
    turn: int
    times: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.op}({', '.join(map(str, self.coord))})"

    def at(self, *events: str) -> float:
        """The first of these events that was noted."""
        return next((self.times[e] for e in events if not np.isnan(self.times[e])), NEVER)

    @property
    def end(self) -> float:
        """When the math warps are done with it."""
        return self.at("finished", "multiplied", "arrived")


@dataclass(frozen=True)
class Trace:
    """All tiles of a launch, by CTA and turn; `span`: first and last µs of each CTA; `clocks`: its SM's MHz,
    where they were measured."""

    plan: Plan
    tiles: tuple[TileTrace, ...]
    span: tuple[tuple[float, float], ...]
    clocks: tuple[float, ...] = ()

    @staticmethod
    def read(plan: Plan, notes: Array, ctas: int, turns: int) -> Trace:
        """From the words that the traced kernel wrote: clocks of each SM, set right by two looks at the
        global timer."""
        notes = notes.astype(np.int64) & (WORD - 1)
        tiles, span, clocks = [], [], []
        for cta, (start, took, clock, ticks) in enumerate(_anchors(notes[ctas * turns :])):
            span.append((start, start + took))
            clocks.append(ticks / took)
            for turn in range(turns):
                words = notes[cta * turns + turn]
                if words[RANK] == 0:
                    break
                op, coord = tile_at(plan, int(words[RANK]) - 1)
                since = {
                    e: start + (int(w) - clock) % WORD / clocks[-1] if w else NEVER
                    for e, w in zip(EVENTS, words, strict=False)
                }
                if not all(map(np.isnan, since.values())):  # else the other CTA of the pair ran it
                    tiles.append(TileTrace(int(words[RANK]) - 1, op, coord, cta, turn, since))
        return Trace(plan, tuple(tiles), tuple(span), tuple(clocks))

    @staticmethod
    def simulated(plan: Plan) -> Trace:
        """The plan on its machine's model, in the form of a measured launch. A cluster's CTAs do the same;
        roles have no own times."""
        t = simulate(plan)
        turns = [0] * (int(t.sm.max()) + 1)
        tiles = []
        for rank in np.lexsort((t.start, t.sm)).tolist():
            sm, end = int(t.sm[rank]), float(t.end[rank])
            op, coord = tile_at(plan, rank)
            ready = float(t.start[rank] + t.waited[rank])
            times = dict.fromkeys(EVENTS, NEVER) | {
                "waited": ready,
                "arrived": ready,
                "multiplied": end,
                "finished": end,
            }
            times["posted"] = end if plan.posts_of(op) else NEVER
            place = 0 if isinstance(plan.scheduling, str) else turns[sm]  # who drew the rank runs it
            tiles += [
                TileTrace(rank, op, coord, sm * plan.cluster + n, turns[sm], times)
                for n in plan.sms_of(plan.graph.op(op), place)
            ]
            turns[sm] += 1
        tiles.sort(key=lambda tile: (tile.cta, tile.turn))
        return Trace(plan, tuple(tiles), ((0.0, t.makespan),) * (plan.cluster * workers(plan)))

    def cta_rank(self, tile: TileTrace) -> int:
        """The rank of its CTA in the cluster."""
        return tile.cta % self.plan.cluster if self.plan.graph.op(tile.op).cluster > 1 else 0

    @cached_property
    def before(self) -> tuple[TileTrace | None, ...]:
        """The tile that the same CTA ran before each tile."""
        return tuple(
            a if a is not None and a.cta == b.cta else None
            for a, b in zip((None, *self.tiles), self.tiles, strict=False)
        )

    @cached_property
    def ready(self) -> tuple[float, ...]:
        """When the math warps could have begun with each tile: they had ended the one before, or the CTA was
        there."""
        return tuple(
            a.end if a is not None else self.span[b.cta][0]
            for a, b in zip(self.before, self.tiles, strict=True)
        )

    @property
    def measured(self) -> bool:
        """Whether it was noted on a GPU: only there SMs have clocks."""
        return bool(self.clocks)

    @property
    def makespan(self) -> float:
        return max(end for _, end in self.span)

    @property
    def busy(self) -> float:
        """Share of the SM time in which math warps multiply or store."""
        return float(np.nansum([t.end - t.times["arrived"] for t in self.tiles])) / (
            self.makespan * len(self.span)
        )

    def text(self) -> str:
        """Least, mean and greatest time of each event, op by op, and the SMs' clocks."""
        lines = [f"{'op':<14}{'event':<12}{'least':>9}{'mean':>9}{'greatest':>10}  µs"]
        for op in self.plan.graph.ops:
            for event in EVENTS:
                lines += _row(op.name, event, [t.times[event] for t in self.tiles if t.op == op.name])
        lines += _row("", "start", [start for start, _ in self.span]) + _row(
            "", "exit", [end for _, end in self.span]
        )
        if self.clocks:
            lines += _row("", "SM clock", self.clocks) + [
                "",
                f"MHz of each CTA's SM, {np.mean(self.clocks):.0f} on average:",
            ]
            lines += [
                " ".join(f"{mhz:.0f}" for mhz in self.clocks[n : n + 24])
                for n in range(0, len(self.clocks), 24)
            ]
        return "\n".join(lines)


def _anchors(words: Array) -> list[tuple[float, float, int, int]]:
    """(start, duration in µs, clock at the start, clocks until the end) of each CTA; the first starts at
    0."""
    # the timer's word may have started again between two CTAs
    ns = (words[:, 0] - words[0, 0] + WORD // 2) % WORD - WORD // 2
    start, took = (ns - ns.min()) / 1000, np.maximum((words[:, 2] - words[:, 0]) % WORD, 1) / 1000
    ticks = np.maximum((words[:, 3] - words[:, 1]) % WORD, 1)
    return list(zip(start.tolist(), took.tolist(), words[:, 1].tolist(), ticks.tolist(), strict=True))


def _row(op: str, event: str, values: Sequence[float]) -> list[str]:
    known = np.array([v for v in values if not np.isnan(v)])
    return (
        [f"{op:<14}{event:<12}{known.min():>9.2f}{known.mean():>9.2f}{known.max():>10.2f}"]
        if len(known)
        else []
    )
