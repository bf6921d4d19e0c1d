"""Orders: one rank for every tile of every op, as a list of segments: a box of one op's grid, walked in one
way.

Op-major order walks op after op. Banded order cuts each op's rows into bands and lets band b of an op follow
band b of the op before: with lag 1 a consumer's band comes right after its producer's band, so that waits are
met early and intermediates stay in L2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from tilegen.analysis.regions import Array, divide, tiles_of
from tilegen.errors import PlanError
from tilegen.frontend.dims import dims_of, most
from tilegen.frontend.program import Size
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import LinearAttributes


@dataclass(frozen=True)
class Segment:
    """Tiles lo ≤ coord < hi of an op, the first coordinate slowest; `group` > 1 walks columns inside groups
    of so many rows (an L2 super-tile of a two-dimensional grid); `last_first` walks the last coordinate
    slowest, downwards (the longest causal tiles first, of all heads)."""

    op: str
    lo: tuple[Size, ...]
    hi: tuple[Size, ...]
    group: int = 1
    last_first: bool = False

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(b - a for a, b in zip(self.lo, self.hi, strict=True))

    @property
    def count(self) -> Size:
        return math.prod(self.shape)

    def coords(self) -> tuple[Array, ...]:
        """The coordinates of its tiles in rank order."""
        n = np.arange(self.count)
        if self.group > 1:
            rows, columns = self.shape
            block, rest = np.divmod(n, self.group * columns)
            height = np.minimum(self.group, rows - block * self.group)
            at: tuple[Any, ...] = (block * self.group + rest % height, rest // height)
        elif self.last_first:
            last, *others = np.unravel_index(n, (self.shape[-1], *self.shape[:-1]))
            at = (*others, self.shape[-1] - 1 - last)
        else:
            at = np.unravel_index(n, self.shape) if self.shape else ()
        return tuple(a + lo for a, lo in zip(at, self.lo, strict=True))


@dataclass(frozen=True)
class Order:
    """The segments in rank order."""

    name: str
    segments: tuple[Segment, ...]

    @cached_property
    def starts(self) -> tuple[Size, ...]:
        """First rank of each segment, and the number of tiles."""
        return tuple(accumulate((s.count for s in self.segments), initial=0))

    @property
    def count(self) -> Size:
        return self.starts[-1]

    def ranks(self, graph: Graph) -> dict[str, Array]:
        """For each op: the rank of its tiles, in row-major order of its grid. PlanError unless each tile
        stands exactly once."""
        out = {}
        for op in graph.ops:
            tiles = tiles_of(graph.bound(op))
            rank = np.full(tiles.count, -1, dtype=np.int64)
            for segment, start in zip(self.segments, self.starts, strict=False):
                if segment.op == op.name and segment.count:
                    flat = (
                        np.ravel_multi_index(segment.coords(), tiles.grid)
                        if tiles.grid
                        else np.zeros(1, dtype=np.int64)
                    )
                    if (rank[flat] >= 0).any():
                        raise PlanError(f"order {self.name}: a tile of {op.name!r} stands twice")
                    rank[flat] = start + np.arange(segment.count)
            if (rank < 0).any():
                raise PlanError(
                    f"order {self.name}: tile {np.argwhere(rank < 0)[0]} of {op.name!r} is missing"
                )
            out[op.name] = rank
        return out


def op_major(graph: Graph, group: int = 1) -> Order:
    """Op after op; of linears in super-tiles of at most so many rows, all of about as many: where one is
    lower than the others, all weights are read once more for a few rows."""
    return Order(
        "op_major" if group == 1 else f"op_major:{group}",
        tuple(_segment(graph, op.name, 0, None, group) for op in graph.ops),
    )


def banded(graph: Graph, bands: int, lag: int = 1, group: int = 1) -> Order:
    """Bands of rows (the first coordinate of rows with more than one tile): band b of the op at depth d
    stands in slot b + lag·d."""
    depth = depths(graph)
    slots: list[tuple[int, int, Segment]] = []
    for position, op in enumerate(graph.ops):
        grid = _grid(graph.bound(op))
        axis = _band_axis(graph.bound(op))
        n = grid[axis] if grid else 1
        cuts = [_share(n, b, bands) for b in range(bands + 1)]
        for b, (lo, hi) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
            if most(lo) < most(hi):
                slots.append(
                    (b + lag * depth[op.name], position, _segment(graph, op.name, axis, (lo, hi), group))
                )
    slots.sort(key=lambda s: s[:2])
    return Order(f"banded:{bands}:{lag}", tuple(s for _, _, s in slots))


def _share(n: Size, b: int, bands: int) -> Size:
    """The first of n rows that is in band b."""
    if b == 0:
        return 0
    return n * b // bands if isinstance(n, int) else divide(n * b, bands)


def depths(graph: Graph) -> dict[str, int]:
    """Longest path from an op without producers."""
    depth: dict[str, int] = {}
    for op in graph.ops:
        before = [
            depth[w.name]
            for o in op.operands
            for w in graph.writers(o.tensor)
            if w.name in depth and w.name != op.name
        ]
        depth[op.name] = 1 + max(before, default=-1)
    return depth


def _grid(b: OpInstance) -> tuple[Size, ...]:
    """Extents of the tile coordinates: ints, or formulas of what moves."""
    return tuple(n if dims_of(n) else int(n) for n in b.grid)


def _band_axis(b: OpInstance) -> int:
    return next((d for d in b.kind.row_coords(b) if most(b.grid[d]) > 1), 0)


def _segment(graph: Graph, name: str, axis: int, band: tuple[Size, Size] | None, group: int) -> Segment:
    op = graph.op(name)
    b = graph.bound(op)
    grid = _grid(b)
    lo: list[Size] = [0] * len(grid)
    hi: list[Size] = list(grid)
    if band is not None:
        lo[axis], hi[axis] = band
    two = len(grid) == 2 and isinstance(op.attributes, LinearAttributes)
    rows = most(hi[0]) - most(lo[0]) if two else 1
    even = ceil_div(rows, ceil_div(rows, group))
    return Segment(name, tuple(lo), tuple(hi), even, b.kind.grows(b) and len(grid) > 0)


def candidates(graph: Graph, sms: int) -> list[Order]:
    """Orders worth simulating: op-major, and bands where there is more than one wave of rows."""
    orders = [op_major(graph)]
    rows = []
    for op in graph.ops:
        grid = tiles_of(graph.bound(op)).grid
        rows.append(grid[_band_axis(graph.bound(op))] if len(grid) > 1 else 1)
    for bands in (2, 4, 8, 16):
        if len(graph.ops) > 1 and max(rows) >= 2 * bands:
            orders.append(banded(graph, bands))
    return orders


def by_name(graph: Graph, name: str) -> Order:
    """op_major, op_major:GROUP, banded:N or banded:N:LAG, as `--order` takes it."""
    head, *numbers = str(name).split(":")
    if (
        head in ("op_major", "banded")
        and all(n.isdecimal() and int(n) >= 1 for n in numbers)
        and len(numbers) <= (1 if head == "op_major" else 2)
    ):
        values = [int(n) for n in numbers]
        if head == "op_major":
            return op_major(graph, *values)
        if values:
            return banded(graph, *values)
    raise PlanError(f"unknown order {name!r}; expected op_major, op_major:GROUP, banded:N or banded:N:LAG")
