"""Speed as an SVG bar chart: a group per workload, a cell per size, a bar per contender.

Length of a bar = time of the best peer / its time, so that 1 is the best peer.

python -m tilegen.bench.chart RESULT.json OUT.svg draws a result file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tilegen.bench.names import CONTENDERS, OTHERS, names
from tilegen.bench.results import rows_of
from tilegen.bench.rows import PEERS, Key, Row, key
from tilegen.bench.table import best_us
from tilegen.codegen.environment import render
from tilegen.tools.drawing import LINE, Swatch, legend, text_width, wrapped

MARGIN, COLUMNS, GUTTER, WIDTH = 14.0, 3, 16.0, 900.0
INNER = WIDTH - 2 * MARGIN
CELL = (INNER - GUTTER * (COLUMNS - 1)) / COLUMNS  # width
# of a cell: padding, a line of its heading, a bar; the room below it
PAD, HEADING, BAR, BETWEEN = 5.0, 15.0, 13.0, 8.0
# of a group: its title, the 1 below its last cells; the room after it
TITLE, SCALE, AFTER = 24.0, 14.0, 6.0
FONT, TEXT, SMALL = 12.0, 11.0, 10.0  # sizes: titles and legend, headings of cells, bars
LONGEST = "0.998×, slower"  # ratio
SIZES = {"margin": MARGIN, "line": LINE, "cell": CELL, "small": SMALL}
SIZES |= {"pad": PAD, "heading": HEADING, "bar": BAR}


@dataclass(frozen=True)
class Bar:
    y: float
    name: str
    length: float
    colour: str
    value: str  # µs, or why there is no bar
    title: str
    wrong: bool
    own: bool  # tilegen itself


@dataclass(frozen=True)
class Cell:
    """One size. ratio: tilegen's speed; lost where it is below the best peer's."""

    x: float
    y: float
    height: float
    heading: tuple[str, ...]
    ratio: str
    lost: bool
    bars: tuple[Bar, ...]
    last: bool = False  # of its column

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True)
class Group:
    """One workload, its cells down the columns."""

    title: str
    y: float
    bottom: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Scale:
    """Where bars begin in a cell, pixels of speed 1, and each contender's colour in their order."""

    start: float
    unit: float
    colours: Mapping[str, str]


def chart(rows: Sequence[Row]) -> str:
    """The chart of these rows; cells in which no peer was measured are named below it."""
    cells: dict[Key, list[Row]] = {}
    for r in rows:
        cells.setdefault(key(r), []).append(r)
    drawn = {k: of_cell for k, of_cell in cells.items() if best_us(of_cell, PEERS) is not None}
    name_of, scale = names(rows), _scale(list(drawn.values()))
    caption = _lines(*_caption(scale)) if drawn else ()
    swatches = [Swatch(_said(v), c) for v, c in scale.colours.items()]
    entries = legend(swatches, MARGIN, MARGIN + LINE * len(caption) + 12, INNER, FONT)
    y = max((e.y for e in entries), default=0.0) + LINE
    groups: list[Group] = []
    for title in dict.fromkeys(name_of[k].group for k in drawn):
        keys = [k for k in drawn if name_of[k].group == title]
        groups.append(_group(title, {name_of[k].label: drawn[k] for k in keys}, y, scale))
        y = groups[-1].bottom + AFTER
    missing = ", ".join(f"{name_of[k].group} ({name_of[k].label})" for k in cells if k not in drawn)
    notes = _lines(f"Not drawn, since no peer was measured: {missing}") if missing else ()
    texts = {"caption": caption, "legend": entries, "groups": groups, "notes": notes, "notes_y": y + 12}
    height = y + LINE * len(notes) + MARGIN
    places = {"width": WIDTH, "height": height, "start": scale.start, "unit": scale.unit}
    return render("chart.svg.j2", **texts, **places, **SIZES)


def _scale(cells: Sequence[Sequence[Row]]) -> Scale:
    """One for all cells: the longest name, the longest bar and the longest value just fit into a line."""
    rows = [r for of_cell in cells for r in of_cell]
    found = dict.fromkeys(r.variant for r in rows)
    others = sorted(v for v in found if v not in CONTENDERS)
    own = {v: OTHERS[n % len(OTHERS)] for n, v in enumerate(others)}
    colours = own | {v: c.colour for v, c in CONTENDERS.items() if v in found}
    start = 2 * PAD + max((text_width(v, SMALL) for v in colours), default=0.0)
    value = max((text_width(_micro(r.us), SMALL) for r in rows), default=0.0)
    top = max([1.0, *(_speed(r, of_cell) for of_cell in cells for r in of_cell)])
    return Scale(start, max(40.0, CELL - start - value - 3 * PAD) / top, colours)


def _caption(scale: Scale) -> tuple[str, str]:
    peers = ", ".join(v for v in scale.colours if v in PEERS)
    return (
        f"Bars show speed: longer is faster. The dashed line, 1, is the best peer: the fastest of {peers}.",
        "The number at the top right of a cell is the best peer's time over tilegen's. "
        "Where tilegen is slower, the cell is red and says so.",
    )


def _lines(*texts: str) -> tuple[str, ...]:
    return tuple(line for text in texts for line in wrapped(text, INNER, FONT))


def _said(variant: str) -> str:
    return f"{variant}: {CONTENDERS[variant].words}" if variant in CONTENDERS else variant


def _speed(row: Row, of_cell: Sequence[Row]) -> float:
    return 0.0 if row.wrong else (best_us(of_cell, PEERS) or 0.0) / row.us


def _group(title: str, cells: Mapping[str, Sequence[Row]], y: float, scale: Scale) -> Group:
    """Cells run down the columns; those of a line are as high as its highest."""
    lines, labels = -(-len(cells) // COLUMNS), list(cells)
    found: list[Cell] = []
    top = y + TITLE
    for line in range(lines):
        beside = [_cell(label, cells[label], top, scale) for label in labels[line::lines]]
        height = max(c.height for c in beside)
        for column, cell in enumerate(beside):
            number = column * lines + line + 1
            last = number == len(labels) or number % lines == 0
            found.append(replace(cell, x=MARGIN + column * (CELL + GUTTER), height=height, last=last))
        top += height + BETWEEN
    return Group(title, y, top + SCALE, tuple(found))


def _cell(label: str, rows: Sequence[Row], y: float, scale: Scale) -> Cell:
    """A cell of its least height in the first column."""
    peer, it = best_us(rows, PEERS), best_us(rows, ["tilegen"])
    lost = peer is not None and it is not None and peer < it
    heading = wrapped(label, CELL - 3 * PAD - text_width(LONGEST, TEXT), TEXT)
    first = y + PAD + HEADING * len(heading)
    ordered = sorted(rows, key=lambda r: list(scale.colours).index(r.variant))
    bars = tuple(_bar(r, label, _speed(r, rows), first + BAR * n, scale) for n, r in enumerate(ordered))
    return Cell(MARGIN, y, first + BAR * len(bars) + PAD - y, heading, _ratio(peer, it), lost, bars)


def _bar(row: Row, label: str, speed: float, y: float, scale: Scale) -> Bar:
    rates = f"speed {speed:.2f}, error {row.error:.1e}, {row.tflops:.1f} TFLOP/s"
    title = f"{row.variant}, {label}: {row.us:.1f} µs, {rates}"
    value = "wrong" if row.wrong else _micro(row.us)
    own, colour = row.variant == "tilegen", scale.colours[row.variant]
    return Bar(y, row.variant, scale.unit * speed, colour, value, title, row.wrong, own)


def _ratio(peer: float | None, it: float | None) -> str:
    """1.25×; 0.90×, slower; 0.998×, slower: so that no loss reads as 1.00."""
    if peer is None or it is None:
        return ""
    if peer >= it:
        return f"{peer / it:.2f}×"
    return f"{peer / it:.3f}×, slower" if peer / it >= 0.995 else f"{peer / it:.2f}×, slower"


def _micro(us: float) -> str:
    return f"{us:.1f} µs" if us < 1000 else f"{us:,.0f} µs"


def main(arguments: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser("python -m tilegen.bench.chart", description="a chart of a results file")
    p.add_argument("results", type=Path, metavar="RESULTS.json")
    p.add_argument("svg", type=Path, metavar="CHART.svg")
    o = p.parse_args(arguments)
    rows = json.loads(o.results.read_text()).get("rows", [])
    missing = [k for k in ("workload", "sizes", "variant", "us", "error") if any(k not in r for r in rows)]
    if missing or not rows:
        p.error(f"{o.results} holds no comparison: its rows have no {' and no '.join(missing) or 'entries'}")
    known = {f.name for f in fields(Row)}  # a file may say more of a row
    o.svg.write_text(chart(rows_of({"rows": [{k: v for k, v in r.items() if k in known} for r in rows]})))


if __name__ == "__main__":
    main()
