"""Traces as SVG: a row per SM, a bar per tile, its waiting hatched. No scripts; titles show on hover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilegen.codegen.environment import render
from tilegen.schedule.plan import Plan
from tilegen.tools.drawing import LINE, Swatch, legend, palette, text_width, ticks, wrapped
from tilegen.tools.trace import Trace
from tilegen.tools.trace_export import awaited

WIDTH, MARGIN, FONT, SMALL = 780.0, 12.0, 12.0, 10.5  # WIDTH: pixels of the time axis
ROWS, LEAST_ROW, MOST_ROW = 400.0, 3.0, 12.0  # pixels that the rows of a panel should take; limits of one row
# of a panel: title, a line of the subtitle, room for the end's label, axis
HEAD, SUBTITLE, OVER, AXIS = 20.0, 15.0, 20.0, 44.0
GROUP = 22.0  # pixels of a group of rows that are too thin for a label each
MOST_TILES = 4  # ops whose tile sizes are listed; of larger plans the digest says enough
WAITING, IDLE = "url(#wait)", "#ededed"


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    wait: float  # width of the part in which it waits
    colour: str
    title: str


@dataclass(frozen=True)
class Label:
    """A text at a place along an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One trace. y: of its title; top: of its first row; end: x of the makespan, with its label."""

    title: str
    subtitle: tuple[str, ...]
    y: float
    top: float
    height: float
    row: float
    groups: tuple[Label, ...]
    ticks: tuple[Label, ...]
    bars: tuple[Bar, ...]
    end: Label

    @property
    def gap(self) -> float:
        """Between two rows: none where rows are thin."""
        return 2.0 if self.row >= 8 else 0.0

    @property
    def bottom(self) -> float:
        return self.top + self.height


def svg(traces: Sequence[tuple[str, Trace]], notes: Sequence[str] = ()) -> str:
    """The titled traces below each other on one time axis, then a legend of all ops, then the notes."""
    axis = ticks(max(t.makespan for _, t in traces))
    names = list(dict.fromkeys(op.name for _, t in traces for op in t.plan.graph.ops))
    colours = dict(zip(names, palette(len(names)), strict=True))
    left = MARGIN + 6 + max(text_width(g.text, SMALL) for _, t in traces for g in _groups(t, _row(t), 0.0))
    panels: list[Panel] = []
    y = MARGIN
    for title, t in traces:
        panels.append(_panel(title, t, y, left, axis, colours))
        y = panels[-1].bottom + AXIS
    width = left + WIDTH + 40
    swatches = [Swatch(name, colour) for name, colour in colours.items()]
    swatches += [Swatch("waiting for a semaphore", WAITING), Swatch("idle", IDLE)]
    entries = legend(swatches, left, y + 4, width - left - MARGIN, FONT)
    y = entries[-1].y + LINE
    lines = [line for note in notes for line in wrapped(note, width - left - MARGIN, FONT)]
    said = [Label(y + 16 * n + 8, line) for n, line in enumerate(lines)]
    height = y + 16 * len(lines) + MARGIN
    places = {"width": width, "height": height, "left": left, "right": left + WIDTH}
    styles = {"idle": IDLE, "waiting": WAITING, "small": SMALL, "subtitle": SUBTITLE}
    return render("timeline.svg.j2", panels=panels, legend=entries, notes=said, **places, **styles)


def _panel(
    title: str, trace: Trace, y: float, left: float, axis: Sequence[float], colours: Mapping[str, str]
) -> Panel:
    row = _row(trace)
    subtitle = wrapped(origin(trace), WIDTH, SMALL)
    top = y + HEAD + SUBTITLE * len(subtitle) + OVER
    scale = WIDTH / (axis[-1] or 1.0)
    return Panel(
        f"{title}: {trace.makespan:.0f} µs, {trace.busy:.0%} busy",
        subtitle,
        y,
        top,
        row * len(trace.span),
        row,
        _groups(trace, row, top),
        tuple(Label(left + t * scale, f"{t:g} µs") for t in axis),
        _bars(trace, row, top, left, scale, colours),
        Label(left + trace.makespan * scale, f"{trace.makespan:.1f} µs"),
    )


def _row(trace: Trace) -> float:
    """The height of a row: all of a large machine still fit on a screen."""
    return min(MOST_ROW, max(LEAST_ROW, ROWS / len(trace.span)))


def origin(trace: Trace) -> str:
    """Whether it was simulated or measured, and of which plan."""
    plan, machine = trace.plan, trace.plan.machine
    simulated = "Simulated by tilegen's cost model, not measured"
    how = "Measured inside the kernel" if trace.measured else simulated
    workers = "threads" if machine.arch == "cpu" else "SMs"
    sizes = ", ".join(f"{k} = {v}" for k, v in plan.sizes)
    where = f"on {machine.sms} {workers} (machine {machine.name})"
    return f"{how}: {plan.program} ({sizes}) {where}; {_tiles(plan)}plan {plan.digest[:12]}"


def _tiles(plan: Plan) -> str:
    if len(plan.bounds) > MOST_TILES:
        return ""
    return "tiles " + ", ".join(f"{b.op.name} {'×'.join(map(str, b.tile))}" for b in plan.bounds) + "; "


def _groups(trace: Trace, row: float, top: float) -> tuple[Label, ...]:
    """A label for each row, or where rows are thin for each few of them (whole clusters), at their middle."""
    count, cluster = len(trace.span), trace.plan.cluster
    word = "thread" if trace.plan.machine.arch == "cpu" else "SM"
    size = 1 if row >= SMALL else cluster * math.ceil(GROUP / row / cluster)  # rows
    found: list[Label] = []
    for first in range(0, count, size):
        last = min(first + size, count) - 1
        if (last + 1 - first) * row >= SMALL or not found:  # a short last group has no room for a text
            text = f"{word} {first}" if first == last else f"{word} {first}–{last}"
            found.append(Label(top + row * (first + last + 1) / 2, text))
    return tuple(found)


def _bars(
    trace: Trace, row: float, top: float, left: float, scale: float, colours: Mapping[str, str]
) -> tuple[Bar, ...]:
    """A bar lasts from when the math warps are free for its tile until they are done with it.

    A tile of which these times were not noted has none.
    """
    waits = awaited(trace)
    bars = []
    for t, ready in zip(trace.tiles, trace.ready, strict=True):
        if math.isnan(t.end - ready):
            continue
        waited = max(0.0, t.times["arrived"] - ready)
        last = max(waits.get((t.rank, trace.cta_rank(t)), []), key=lambda w: w.posted, default=None)
        text = f"{t.name}: {ready:.1f} to {t.end:.1f} µs"
        text += f", waiting {waited:.1f}" if waited > 0.05 else ""
        text += f"; {last.text}" if last else ""
        x, y, width = left + ready * scale, top + row * t.cta, (t.end - ready) * scale
        bars.append(Bar(x, y, width, waited * scale, colours[t.op], text))
    return tuple(bars)
