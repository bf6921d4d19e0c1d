"""Where the time of a launch went: per tile, when it waited, loaded, multiplied and stored, from time stamps taken inside the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilegen.analysis.regions import Array
from tilegen.plan import Plan
from tilegen.targets.cpu import tile_at

# the events of a tile in the order of the kernel's notes (codegen.hopper.NOTES)
EVENTS = ("waited", "loaded", "ahead", "ahead_last", "arrived", "multiplied", "finished", "posted")
RANK = 8


@dataclass(frozen=True)
class TileTrace:
    """One tile on one CTA; times in µs from the launch's start, NaN where the role has no such event.

    waited: first load of activations issued, all waits over; loaded: the last; ahead, ahead_last: the same of weights; arrived: first
    stage at the math warps; multiplied: main loop over; finished: results out of the registers; posted: stored and posted.
    """

    rank: int
    op: str
    coord: tuple[int, ...]
    cta: int
    turn: int
    times: dict[str, float]


@dataclass(frozen=True)
class Trace:
    """All tiles of a launch, by CTA and turn; `span`: first and last µs of each CTA."""

    plan: Plan
    tiles: tuple[TileTrace, ...]
    span: tuple[tuple[float, float], ...]

    @staticmethod
    def read(plan: Plan, notes: Array, ctas: int, turns: int) -> Trace:
        """From the words that the traced kernel wrote: clocks of each SM, set right by two looks at the global timer."""
        notes = notes.astype(np.int64) & 0xFFFFFFFF
        anchors = notes[ctas * turns :]
        begin = int(anchors[:ctas, 0].min())
        tiles, span = [], []
        for cta in range(ctas):
            ns0, clock0, ns1, clock1 = (int(n) for n in anchors[cta, :4])
            rate = (ns1 - ns0) / max(1, (clock1 - clock0) & 0xFFFFFFFF) / 1000  # µs per clock
            offset = (ns0 - begin) / 1000
            span.append((offset, (ns1 - begin) / 1000))
            for turn in range(turns):
                words = notes[cta * turns + turn]
                if words[RANK] == 0:
                    break
                op, coord = tile_at(plan, int(words[RANK]) - 1)
                times = {e: offset + ((int(w) - clock0) & 0xFFFFFFFF) * rate if w else float("nan") for e, w in zip(EVENTS, words, strict=False)}
                tiles.append(TileTrace(int(words[RANK]) - 1, op, coord, cta, turn, times))
        return Trace(plan, tuple(tiles), tuple(span))

    def text(self) -> str:
        """Least, mean and greatest time of each event, op by op."""
        lines = [f"{'op':<14}{'event':<12}{'least':>9}{'mean':>9}{'greatest':>10}  µs"]
        for op in self.plan.graph.ops:
            for event in EVENTS:
                at = np.array([t.times[event] for t in self.tiles if t.op == op.name])
                if len(at) and not np.isnan(at).all():
                    lines.append(f"{op.name:<14}{event:<12}{np.nanmin(at):>9.2f}{np.nanmean(at):>9.2f}{np.nanmax(at):>10.2f}")
        ends = [end for _, end in self.span]
        lines.append(f"{'':<14}{'start':<12}{min(a for a, _ in self.span):>9.2f}{np.mean([a for a, _ in self.span]):>9.2f}{max(a for a, _ in self.span):>10.2f}")
        lines.append(f"{'':<14}{'exit':<12}{min(ends):>9.2f}{np.mean(ends):>9.2f}{max(ends):>10.2f}")
        return "\n".join(lines)
