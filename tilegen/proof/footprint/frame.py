"""The CTAs of an op's tiles as array rows, and the boxes of a tensor behind a range of a view: what
`footprint` is written in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
DIMENSIONS = 4
LIMIT = 1 << 31  # of every size, attribute and tile entry, so that no product of two of them leaves int64
FIRST, EPILOGUE = -1, 1 << 40  # the steps of reads before the first and after the last step


class Malformed(Exception):
    """An op that the format does not allow; the message says what was given and what was expected."""


def ceil_div(a: Any, b: int) -> Any:
    return -(-a // b)


def is_int(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value < LIMIT


def expect(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise Malformed(f"{what} is {value!r:.60}, expected a {kind.__name__}")
    return value


@dataclass(frozen=True)
class Span:
    """A range along one dimension for every row (CTA); empty where high <= low."""

    low: Array
    high: Array
    stride: Array | int = 1


# a position: its tensor and place there; and the rows of a batch in which it counts
Cut = tuple[str, int, int]


@dataclass(frozen=True)
class Access:
    """One box of a tensor per row; no access where a dimension is empty. A box that begins at `low` on `axis`
    begins with step `base + (low - origin) // size`."""

    tensor: str
    rows: Array
    low: Array
    high: Array
    stride: Array
    axis: int = 0
    origin: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    size: int = 1 << 62
    base: int = 0
    required: bool = True  # False: a run-time position, listed only where a tile writes it
    before: Cut | None = None  # only rows of each batch before the position


@dataclass(frozen=True)
class View:
    """An operand: a tensor, some columns of it, or a spatial tensor seen as a matrix."""

    tensor: str
    full: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int = 0
    flat: bool = False


@dataclass(frozen=True)
class Footprint:
    reads: tuple[Access, ...]
    write: Access
    exact: bool  # False: the write is a may-write (position known at run time only)
    since: Cut | None = None  # only rows of each batch at the position or later


@dataclass(frozen=True)
class Op:
    """One entry of `ops`, its types checked, with the coordinates of the tiles that the plan lists for it."""

    name: str
    kind: str
    attributes: dict[str, Any]
    views: tuple[View, ...]
    result: View
    tile: tuple[int, ...]
    cluster: int
    # what its CTAs split between them: k, of which each finishes columns, or rows (km); m or n; or 2x4: two
    # rows of four
    cluster_split: str
    coords: Sequence[Sequence[int]]
    # of a linear of pixels: the sizes of its images and of its filters
    images: tuple[Sequence[int], Sequence[int]] | None = None
    pingpong: bool = False  # its math warpgroups take tiles in turn

    @property
    def ctas(self) -> tuple[int, int]:
        """How many CTAs share out the tile's rows, and how many the columns of each share."""
        if "x" in self.cluster_split:
            down, across = self.cluster_split.split("x")
            return int(down), int(across)
        return (self.cluster, 1) if self.cluster_split in ("m", "km") else (1, self.cluster)

    def integer(self, key: str, least: int = 1) -> int:
        value = self.attributes.get(key)
        if not is_int(value, least):
            raise Malformed(f"attribute {key!r} is {value!r}, expected an int >= {least}")
        return int(value)  # type: ignore[arg-type]

    def pair(self, key: str, least: int = 0) -> tuple[int, int]:
        value = self.attributes.get(key)
        if not (
            isinstance(value, (list, tuple)) and len(value) == 2 and all(is_int(v, least) for v in value)
        ):
            raise Malformed(f"attribute {key!r} is {value!r}, expected two ints >= {least}")
        return value[0], value[1]

    def integers(self, key: str, least: int) -> tuple[int, ...]:
        value = self.attributes.get(key)
        if not (isinstance(value, (list, tuple)) and value and all(is_int(v, least) for v in value)):
            raise Malformed(f"attribute {key!r} is {value!r}, expected ints >= {least}")
        return tuple(value)

    def flag(self, key: str) -> bool:
        value = self.attributes.get(key, False)
        if type(value) is not bool:
            raise Malformed(f"attribute {key!r} is {value!r}, expected true or false")
        return value

    def tiles(self, count: int) -> tuple[int, ...]:
        if len(self.tile) != count:
            raise Malformed(f"tile {list(self.tile)} has {len(self.tile)} entries, a {self.kind} has {count}")
        return self.tile

    def operand(self, index: int, *shape: int | None) -> View:
        """Operand `index`, whose view must have this shape (None: any size)."""
        if index >= len(self.views):
            raise Malformed(f"{len(self.views)} operands given, operand {index} expected")
        return _fits(self.views[index], f"operand {index}", shape)

    def target(self, *shape: int | None) -> View:
        return _fits(self.result, "the result", shape)

    def frame(self, *grid: int) -> Frame:
        return Frame(self, grid)


def _fits(view: View, what: str, shape: Sequence[int | None]) -> View:
    if len(view.shape) != len(shape) or any(
        w is not None and w != g for g, w in zip(view.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        raise Malformed(f"{what} ({view.tensor}) has shape {list(view.shape)}, expected [{wanted}]")
    return view


class Frame:
    """The CTAs of all listed tiles of an op, in plan order: one row each. Every point of the grid must be
    listed once."""

    def __init__(self, op: Op, grid: tuple[int, ...]):
        self.op = op
        coords = self._coords(grid)
        tiles = len(coords)
        self.coord = tuple(np.repeat(coords[:, d], op.cluster) for d in range(len(grid)))
        self.cta = np.tile(np.arange(op.cluster, dtype=np.int64), tiles)
        self.rows = np.arange(tiles * op.cluster, dtype=np.int64)

    def _coords(self, grid: tuple[int, ...]) -> Array:
        listed = self.op.coords
        for c in listed:
            if len(c) != len(grid) or not all(
                type(v) is int and 0 <= v < g for v, g in zip(c, grid, strict=True)
            ):
                raise Malformed(f"tile {_point(c)} is outside the grid {' x '.join(map(str, grid))}")
        seen = {tuple(c) for c in listed}
        if len(seen) < len(listed):
            twice = next(c for i, c in enumerate(listed) if c in listed[:i])
            raise Malformed(f"tile {_point(twice)} is listed twice")
        if len(seen) < math.prod(grid):
            missing = next(p for p in (_unravel(i, grid) for i in range(len(seen) + 1)) if p not in seen)
            raise Malformed(
                f"tile {_point(missing)} is missing: the grid {' x '.join(map(str, grid))} has"
                f" {math.prod(grid)} tiles, {len(seen)} are listed"
            )
        return np.array(listed, np.int64).reshape(len(listed), len(grid))

    def span(self, low: Array | int, high: Array | int, limit: int, stride: Array | int = 1) -> Span:
        zero = np.zeros_like(self.rows)
        return Span(zero + low, np.minimum(zero + high, limit), stride)

    def block(self, axis: int, size: int, limit: int) -> Span:
        """The tile's block along one grid axis."""
        start = self.coord[axis] * size
        return self.span(start, start + size, limit)

    def nested(self, batch: int, axis: int, size: int, limit: int) -> Span:
        """Block `axis` of the rows inside each of the batches that grid axis `batch` counts."""
        start = self.coord[axis] * size
        return self.span(
            self.coord[batch] * limit + start,
            self.coord[batch] * limit + np.minimum(start + size, limit),
            LIMIT,
        )

    def lines(self, start: Array | int, size: int, limit: Array | int) -> Span:
        """The CTA's share of the tile's rows: all of them unless rows are shared out."""
        down, across = self.op.ctas
        return self._cut(self.cta // across, down, start, size, limit)

    def columns(self, start: Array | int, width: int, limit: Array | int) -> Span:
        """The CTA's share of the tile's columns: all of them where rows alone are shared out."""
        _, across = self.op.ctas
        return self._cut(self.cta % across, across, start, width, limit)

    def _cut(self, cta: Array, ctas: int, start: Array | int, size: int, limit: Array | int) -> Span:
        return Span(start + cta * size // ctas, np.minimum(start + (cta + 1) * size // ctas, limit))

    def split_k(self, steps: Array | int) -> tuple[Array, Array]:
        """The steps [first, end) that the CTA runs: its share, or all where rows or columns are shared
        out."""
        if self.op.cluster_split not in ("k", "km"):
            return 0 * self.cta, 0 * self.cta + steps
        return self.cta * steps // self.op.cluster, (self.cta + 1) * steps // self.op.cluster

    def once(self, view: View, *spans: Span) -> list[Access]:
        """A read of the only step: by the CTA that runs it."""
        first, end = self.split_k(1)
        head = Span(spans[0].low, np.where(end > first, spans[0].high, spans[0].low), spans[0].stride)
        return self.read(view, head, *spans[1:])

    def read(
        self,
        view: View,
        *spans: Span,
        axis: int = 0,
        origin: Array | int = 0,
        size: int = 1 << 62,
        base: int = 0,
        required: bool = True,
    ) -> list[Access]:
        """The elements of the tensor behind these elements of the view."""
        origin = np.zeros_like(self.rows) + origin
        if not view.flat:
            shifted = list(spans)
            low, high = spans[-1].low, np.minimum(spans[-1].high, view.shape[-1])
            shifted[-1] = Span(low + view.offset, high + view.offset, spans[-1].stride)
            if axis == len(spans) - 1:
                origin = origin + view.offset
            return [self._access(view, shifted, axis, origin, size, base, required)]
        if axis == 1:  # steps along the merged dimensions: all taken for step 0
            axis, origin, size = 0, np.zeros_like(self.rows), 1 << 62
        images, (_, *inner) = spans[0], view.full
        return [
            self._access(view, [images, *piece], axis, origin, size, base, required)
            for piece in _unflatten(spans[1].low, np.minimum(spans[1].high, view.shape[1]), inner)
        ]

    def _access(
        self,
        view: View,
        spans: Sequence[Span],
        axis: int,
        origin: Array,
        size: int,
        base: int,
        required: bool,
    ) -> Access:
        low = np.zeros((len(self.rows), DIMENSIONS), np.int64)
        high, stride = np.ones_like(low), np.ones_like(low)
        for d, (s, limit) in enumerate(zip(spans, view.full, strict=True)):
            low[:, d], high[:, d], stride[:, d] = s.low, np.minimum(s.high, limit), s.stride
        live = (high > low).all(axis=1)
        return Access(
            view.tensor,
            self.rows[live],
            low[live],
            high[live],
            stride[live],
            axis,
            origin[live],
            size,
            base,
            required,
        )

    def position(self, index: int) -> list[Access]:
        """The read of a position operand, where there is one."""
        if index >= len(self.op.views):
            return []
        return self.read(self.op.operand(index, 1), self.span(0, 1, 1), base=FIRST, required=False)

    def footprint(self, reads: list[Access], *spans: Span, exact: bool = True) -> Footprint:
        """Reads, epilogue reads and the write of the result at these spans."""
        of = {
            "elements": spans,
            "columns": spans[-1:],
            "rows": (*spans[:-1], self.span(0, 1, 1)),
            "images": (spans[0], spans[-1]),
        }
        reads = reads + [
            a for view, way in _epilogue(self.op) for a in self.read(view, *of[way], base=EPILOGUE)
        ]
        return Footprint(tuple(reads), self.read(self.op.result, *spans)[0], exact)


def _unravel(index: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Point `index` of a grid that may be too large for an array."""
    point = []
    for size in reversed(grid):
        index, at = divmod(index, size)
        point.append(at)
    return tuple(reversed(point))


def _point(coord: Sequence[Any]) -> str:
    return f"({', '.join(str(int(c)) if isinstance(c, (int, np.integer)) else repr(c) for c in coord)})"


def _unflatten(low: Array, high: Array, shape: Sequence[int]) -> list[list[Span]]:
    """Elements low…high-1 of the merged dimensions `shape`, as boxes of these: the heads and tails of rows,
    and what is between."""
    if len(shape) == 1:
        return [[Span(low, high)]]
    inner = math.prod(shape[1:])
    first, last, empty = low // inner, (high - 1) // inner, high <= low
    whole_low, whole_high = ceil_div(low, inner), high // inner
    boxes = [
        [
            Span(whole_low, np.where(empty, whole_low, whole_high)),
            *(Span(0 * low, 0 * low + s) for s in shape[1:]),
        ]
    ]
    one = first == last  # begins and ends in one row: the head does it all, the tail nothing
    head_end = np.where(one, high - first * inner, inner)
    head = ~empty & ((low % inner != 0) | (one & (high % inner != 0)))
    tail = ~empty & ~one & (high % inner != 0)
    for row, start, end, live in ((first, low % inner, head_end, head), (last, 0 * low, high % inner, tail)):
        boxes += [
            [Span(row, np.where(live, row + 1, row)), *rest] for rest in _unflatten(start, end, shape[1:])
        ]
    return boxes


def _epilogue(op: Op) -> list[tuple[View, str]]:
    """The operands of the epilogue, and as what each is read."""
    epilogue = op.attributes.get("epilogue")
    if epilogue is None:
        return []
    out = []
    for entry in epilogue["operands"]:
        index, way = entry["index"], entry["as"]
        *lines, columns = op.result.shape
        shapes = {"columns": [columns], "elements": [*lines, columns], "rows": [*lines, 1]}
        if len(lines) > 1:
            shapes["images"] = [lines[0], columns]
        if not is_int(index) or way not in shapes:
            raise Malformed(
                f"epilogue operand {entry!r}: expected an operand index, read as"
                f" {', '.join(map(repr, shapes))}"
            )
        out.append((op.operand(index, *shapes[way]), way))
    return out
