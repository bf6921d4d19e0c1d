"""Timelines as SVG: a row per SM, a bar per tile, with the time it stood waiting hatched. No scripts; titles show on hover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegen.codegen.environment import render
from tilegen.simulate import Timeline, workers
from tilegen.targets.cpu import tile_at

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
    """One timeline: its title, its bars, its height."""

    title: str
    y: float
    rows: int
    bars: tuple[Bar, ...]
    end: float  # x of the makespan


def svg(timelines: Sequence[tuple[str, Timeline]]) -> str:
    """The timelines below each other on one time axis."""
    longest = max(t.makespan for _, t in timelines)
    panels, y = [], 0.0
    for title, t in timelines:
        panels.append(_panel(title, t, y, WIDTH / longest))
        y += TOP + ROW * workers(t.plan) + 14
    ops = [op.name for op in timelines[0][1].plan.graph.ops]
    legend = [(name, COLOURS[n % len(COLOURS)], LEFT + 110 * n) for n, name in enumerate(ops[:8])]
    return render("timeline.svg.j2", panels=panels, legend=legend, width=LEFT + WIDTH + 80, height=y + 24, row=ROW, left=LEFT, top=TOP)


def _panel(title: str, t: Timeline, y: float, scale: float) -> Panel:
    names = [op.name for op in t.plan.graph.ops]
    bars = []
    for rank, (sm, start, end, waited) in enumerate(zip(t.sm.tolist(), t.start.tolist(), t.end.tolist(), t.waited.tolist(), strict=True)):
        op, coord = tile_at(t.plan, rank)
        text = f"{op}{coord}: {start:.1f} to {end:.1f} µs" + (f", waiting {waited:.1f}" if waited > 0.05 else "")
        bars.append(
            Bar(
                LEFT + start * scale,
                y + TOP + ROW * sm,
                (end - start) * scale,
                waited * scale,
                COLOURS[names.index(op) % len(COLOURS)],
                text,
            )
        )
    full = f"{title}: {t.makespan:.0f} µs, {t.busy:.0%} busy"
    return Panel(full, y, workers(t.plan), tuple(bars), LEFT + t.makespan * scale)
