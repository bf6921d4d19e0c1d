"""Speed as an SVG bar chart: a panel per workload, a group of bars per size, height = best(a-d) / time, so that 1.0 is the best peer.

python -m tilegen.bench.chart RESULT.json OUT.svg draws a result file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilegen.bench.compare import PEERS, Row, best_us, key, rows_of, size_labels
from tilegen.codegen.environment import render

COLOURS = {
    "eager": "#d5dae1",
    "graph": "#b3bcc8",
    "cublaslt": "#8fa6c4",
    "cudnn": "#a9bcd4",
    "inductor": "#5f83b5",
    "tilegen-kernel": "#f6d7b0",
    "tilegen-pdl": "#f0bd85",
    "tilegen-barrier": "#e89a4c",
    "tilegen": "#c8502b",
}
OTHERS = ("#72b7b2", "#54a24b", "#b279a2", "#9d755d")  # variants of a caller's own
BAR, GAP, LEFT, UNIT = 15.0, 24.0, 48.0, 150.0  # UNIT: pixels of speed 1.0
ABOVE, BELOW, TITLE, LEGEND = 56.0, 42.0, 30.0, 26.0  # room for the times above bars, the sizes below them
LEAST_WIDTH = 640.0


@dataclass(frozen=True)
class Bar:
    x: float
    height: float
    colour: str
    label: str  # µs, or why there is no bar
    title: str
    wrong: bool


@dataclass(frozen=True)
class Group:
    """One size. ratio: tilegen's speed, lost where it is below the best peer's."""

    centre: float
    label: str
    ratio: str
    lost: bool
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Panel:
    """One workload. base: y of speed 0."""

    title: str
    y: float
    base: float
    lines: tuple[tuple[float, float], ...]  # (y, speed)
    groups: tuple[Group, ...]


def chart(rows: Sequence[Row]) -> str:
    """The chart of these rows; cells in which no peer was measured are left out."""
    variants = list(dict.fromkeys(r.variant for r in rows))
    variants.sort(key=lambda v: list(COLOURS).index(v) if v in COLOURS else -1)
    others = [v for v in variants if v not in COLOURS]
    colours = {v: COLOURS.get(v) or OTHERS[others.index(v) % len(OTHERS)] for v in variants}
    panels: list[Panel] = []
    y = LEGEND
    for workload in dict.fromkeys(r.workload for r in rows):
        made = _panel([r for r in rows if r.workload == workload], workload, y, colours)
        if made.groups:
            panels.append(made)
            y = made.base + BELOW
    right = max((b.x + BAR for p in panels for g in p.groups for b in g.bars), default=LEFT)
    width = max(LEAST_WIDTH, right + GAP)
    step = (width - LEFT) / max(1, len(variants))
    legend = [(v, colours[v], LEFT + step * n) for n, v in enumerate(variants)]
    return render("chart.svg.j2", panels=panels, legend=legend, width=width, height=y + 6, left=LEFT, bar=BAR)


def _panel(rows: Sequence[Row], workload: str, y: float, colours: dict[str, str]) -> Panel:
    labels = size_labels(rows)
    cells = [(label, [r for r in rows if key(r) == k]) for k, label in labels.items()]
    best = {label: best_us(of_cell, PEERS) for label, of_cell in cells}
    speeds = [(best[label] or 0.0) / r.us for label, of_cell in cells for r in of_cell if not r.wrong]
    top = max([1.0, *speeds])
    base = y + TITLE + ABOVE + UNIT * top
    groups, x = [], LEFT + GAP / 2
    for label, of_cell in cells:
        peer = best[label]
        if peer is not None:
            groups.append(_group(of_cell, label, peer, x, colours))
            x += BAR * len(of_cell) + GAP
    lines = tuple((base - UNIT * n / 2, n / 2) for n in range(math.floor(2 * top) + 1))
    return Panel(f"{workload}: speed, best peer = 1.0", y, base, lines, tuple(groups))


def _group(rows: Sequence[Row], label: str, peer: float, x: float, colours: dict[str, str]) -> Group:
    bars = []
    ordered = sorted(rows, key=lambda r: list(colours).index(r.variant))
    for n, r in enumerate(ordered):
        speed = 0.0 if r.wrong else peer / r.us
        title = f"{r.variant}, {label}: {r.us:.1f} µs, speed {speed:.2f}, error {r.error:.1e}, {r.tflops:.1f} TFLOP/s"
        bars.append(Bar(x + BAR * n, UNIT * speed, colours[r.variant], "wrong" if r.wrong else _micro(r.us), title, r.wrong))
    it = best_us(rows, ["tilegen"])
    ratio = "" if it is None else f"{peer / it:.2f}×"
    return Group(x + BAR * len(rows) / 2, label, ratio, it is not None and peer < it, tuple(bars))


def _micro(us: float) -> str:
    return f"{us:.1f} µs" if us < 1000 else f"{us:.0f} µs"


def main(arguments: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser("python -m tilegen.bench.chart", description="a chart of a results file")
    p.add_argument("results", type=Path, metavar="RESULTS.json")
    p.add_argument("svg", type=Path, metavar="CHART.svg")
    o = p.parse_args(arguments)
    o.svg.write_text(chart(rows_of(json.loads(o.results.read_text()))))


if __name__ == "__main__":
    main()
