"""Traces as SVG: a row per SM, a bar per tile, with the time it stood waiting hatched. No scripts; titles show on hover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegen.codegen.environment import render
from tilegen.trace import Trace
from tilegen.trace_export import awaited

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")
WIDTH, ROW, LEFT, TOP = 900.0, 12.0, 44.0, 26.0


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    wait: float  # width of the part in which it waits
    colour: str
    title: str


@dataclass(frozen=True)
class Panel:
    """One trace: its title, its bars, its height."""

    title: str
    y: float
    rows: int
    bars: tuple[Bar, ...]
    end: float  # x of the makespan


def svg(traces: Sequence[tuple[str, Trace]]) -> str:
    """The traces below each other on one time axis."""
    longest = max(t.makespan for _, t in traces)
    panels, y = [], 0.0
    for title, t in traces:
        panels.append(_panel(title, t, y, WIDTH / longest))
        y += TOP + ROW * len(t.span) + 14
    ops = [op.name for op in traces[0][1].plan.graph.ops]
    legend = [(name, COLOURS[n % len(COLOURS)], LEFT + 110 * n) for n, name in enumerate(ops[:8])]
    return render("timeline.svg.j2", panels=panels, legend=legend, width=LEFT + WIDTH + 80, height=y + 24, row=ROW, left=LEFT, top=TOP)


def _panel(title: str, trace: Trace, y: float, scale: float) -> Panel:
    """A bar lasts from when the math warps are free for its tile until they are done with it."""
    names, waits = [op.name for op in trace.plan.graph.ops], awaited(trace)
    bars = []
    for t, ready in zip(trace.tiles, trace.ready, strict=True):
        waited = max(0.0, t.times["arrived"] - ready)
        last = max(waits.get((t.rank, t.cta % trace.plan.gang), []), key=lambda w: w.posted, default=None)
        text = f"{t.name}: {ready:.1f} to {t.end:.1f} µs" + (f", waiting {waited:.1f}" if waited > 0.05 else "")
        text += f"; {last.text}" if last else ""
        colour = COLOURS[names.index(t.op) % len(COLOURS)]
        bars.append(Bar(LEFT + ready * scale, y + TOP + ROW * t.cta, (t.end - ready) * scale, waited * scale, colour, text))
    full = f"{title}: {trace.makespan:.0f} µs, {trace.busy:.0%} busy"
    return Panel(full, y, len(trace.span), tuple(bars), LEFT + trace.makespan * scale)
