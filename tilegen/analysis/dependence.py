"""Dependences: which tiles of a producer hold the elements that a consumer reads at a step. Derived from the
access maps alone.

For each dimension of the shared tensor the producer's write map is inverted to blocks (regions.Blocking); the
consumer's range [lo, hi) then needs the blocks block(lo) … block(hi - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from tilegen.analysis.regions import (
    Array,
    Blocking,
    Tiles,
    blocking,
    depends_on_step,
    divide,
    evaluate,
    full,
    pretty,
    quotient,
    tiles_of,
)
from tilegen.analysis.rows import distinct, runs
from tilegen.errors import AnalysisError
from tilegen.ops.base import Access, Box, OpInstance
from tilegen.ops.extrema import largest, smallest

MOST_ROWS = 1 << 26  # of a relation: half a gigabyte a column


@dataclass(frozen=True)
class Edge:
    """Consumer access `access` reads `tensor`, which `producer` writes: blocks first[d] … last[d] in each
    dimension d."""

    producer: OpInstance
    consumer: OpInstance
    access: Access
    tensor: str
    box: Box
    blocking: tuple[Blocking, ...]
    first: tuple[Any, ...]
    last: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.producer.op.name}->{self.consumer.op.name}"

    @property
    def stepped(self) -> bool:
        """Whether what is read changes from step to step."""
        return depends_on_step(self.box)

    def formula(self) -> str:
        """The dependence as a person writes it: up(i, *) -> down(i, j)."""
        ranges = [
            pretty(lo) if sp.expand(lo - hi) == 0 else f"{pretty(lo)} … {pretty(hi)}"
            for lo, hi in zip(self.first, self.last, strict=True)
        ]
        return f"{self.producer.op.name} blocks [{', '.join(ranges)}]"


def write_map(b: OpInstance) -> tuple[Blocking, ...]:
    return tuple(blocking(b, interval) for interval in b.write)


def edge(
    producer: OpInstance, consumer: OpInstance, access: Access, tensor: str, box: Box, cut: Sequence[Blocking]
) -> Edge:
    if len(box) != len(cut):
        raise AnalysisError(
            f"{consumer.op.name!r} reads {tensor!r} in {len(box)} dimensions, {producer.op.name!r} writes it"
            f" in {len(cut)}"
        )
    fixed = producer.result.role == "state"  # its tiles need not cover the tensor: keep the range inside them

    def at(c: Blocking, element: Any) -> Any:
        n = c.block_of(element) if c.coords else sp.Integer(0)
        return smallest(largest(n, 0), c.count - 1) if fixed and c.coords else n

    first = tuple(at(c, i.lo) for c, i in zip(cut, box, strict=True))
    last = tuple(_inside(consumer, at(c, i.hi - 1)) for c, i in zip(cut, box, strict=True))
    return Edge(producer, consumer, access, tensor, box, tuple(cut), first, last)


def _inside(consumer: OpInstance, e: Any) -> Any:
    """min(i, ⌊(M-1)/T⌋) = i for a coordinate i of ⌈M/T⌉ tiles."""
    if not isinstance(e, sp.Min):
        return e
    for symbol, extent in zip(consumer.coords, consumer.grid, strict=True):
        if symbol in getattr(e, "args", ()):
            ceiling = isinstance(extent, sp.ceiling)
            top = (
                divide(quotient(extent.args[0])[0] - 1, quotient(extent.args[0])[1])
                if ceiling
                else extent - 1
            )
            e = smallest(*(a for a in e.args if a != top))
    return e


@dataclass(frozen=True)
class Relation:
    """A dependence on the concrete grid: consumer tile `tile` needs producer block `block`, first at `step`.
    Sorted by tile, then block.

    Steps count from 0; what is read before the first step has step -1, the epilogue has the tile's number of
    steps.
    """

    tile: Array
    block: Array
    step: Array


def relation(edge: Edge) -> Relation:
    """Enumerate an edge exactly: every (tile, block) that share an element, with the first step that reads
    one."""
    tiles = tiles_of(edge.consumer)
    tile, step = _entries(tiles, edge)
    where = {**{name: a[tile] for name, a in tiles.coords.items()}, "k": step}
    origin, block = np.arange(len(tile)), np.zeros(len(tile), dtype=np.int64)
    for d, extent in enumerate(block_shape(edge)):
        owner, index = _blocks(edge, d, where, len(tile))
        counts = np.bincount(owner, minlength=len(tile))
        _listed(edge, int(counts[origin].sum()))
        at, (place,) = expand([(np.cumsum(counts) - counts)[origin]], [counts[origin]])
        origin, block = origin[at], block[at] * extent + index[place]
    return _first_use(tile[origin], block, step[origin])


def _listed(edge: Edge, rows: int) -> None:
    """AnalysisError where a relation has more rows than can be listed."""
    if rows > MOST_ROWS:
        raise AnalysisError(
            f"{edge.name}: its tiles read {rows:,} times of one of {edge.producer.op.name!r}, "
            f"at most {MOST_ROWS:,} can be listed; choose larger tiles or smaller sizes",
            edge.consumer.op.where,
        )


def _blocks(edge: Edge, d: int, where: dict[str, Array], n: int) -> tuple[Array, Array]:
    """The producer's blocks in dimension d that n entries read of: (entries, ascending, their blocks)."""
    box = edge.box[d]
    lo, hi, first, last = (_at(e, where, n) for e in (box.lo, box.hi, edge.first[d], edge.last[d]))
    counts = np.where(lo < hi, np.maximum(last - first + 1, 0), 0)  # none of padding alone
    _listed(edge, int(counts.sum()))
    owner, (index,) = expand([first], [counts])
    assert index.min(initial=0) >= 0, edge.name
    block_lo, block_hi = block_elements(edge.producer, edge.blocking, d)
    shared = meets(lo[owner], hi[owner], box.stride, block_lo[index], block_hi[index])
    return owner[shared], index[shared]


def block_shape(edge: Edge) -> tuple[int, ...]:
    """Blocks of the producer in each dimension."""
    return tuple(int(c.count) for c in edge.blocking)


def block_elements(producer: OpInstance, cut: Sequence[Blocking], d: int) -> tuple[Array, Array]:
    """The element range [lo, hi) of each block of dimension d."""
    tiles, interval = tiles_of(producer), producer.write[d]
    index = tiles.value(cut[d].index)
    lo, hi = np.zeros((2, int(cut[d].count)), dtype=np.int64)
    lo[index], hi[index] = tiles.value(interval.lo), tiles.value(interval.hi)
    return lo, hi


def meets(lo: Array, hi: Array, stride: int, block_lo: Array, block_hi: Array) -> Array:
    """Whether one of lo, lo + stride, … below hi lies in [block_lo, block_hi)."""
    start = np.maximum(lo, block_lo)
    element = start if stride == 1 else lo + -((lo - start) // stride) * stride
    return element < np.minimum(hi, block_hi)


def expand(first: Sequence[Array], counts: Sequence[Array]) -> tuple[Array, tuple[Array, ...]]:
    """All points of the boxes first[d] … first[d] + counts[d] - 1: (entry of each point, its index in each
    dimension)."""
    total = np.prod(counts, axis=0).astype(np.int64)
    origin = np.repeat(np.arange(len(total)), total)
    rest = np.arange(len(origin)) - (np.cumsum(total) - total)[origin]
    index = []
    for start, count in zip(reversed(first[1:]), reversed(counts[1:]), strict=True):
        rest, at = np.divmod(rest, count[origin]) if len(origin) else (rest, rest)
        index.append(start[origin] + at)
    index.append(first[0][origin] + rest)
    return origin, tuple(reversed(index))


def _entries(tiles: Tiles, edge: Edge) -> tuple[Array, Array]:
    """(tile, step) at which the access reads something new."""
    tile = np.arange(tiles.count)
    if edge.access.when == "first":
        return tile, np.full(tiles.count, -1)
    if edge.access.when == "epilogue":
        return tile, tiles.steps
    if not edge.stepped:
        return tile, np.zeros(tiles.count, dtype=np.int64)
    _listed(edge, int(tiles.steps.sum()))
    repeated = np.repeat(tile, tiles.steps)
    return repeated, np.arange(len(repeated)) - (np.cumsum(tiles.steps) - tiles.steps)[repeated]


def _first_use(tile: Array, block: Array, step: Array) -> Relation:
    tile, block, step = distinct(tile, block, step)
    new = runs(tile, block)
    return Relation(tile[new], block[new], step[new])


def _at(e: Any, where: dict[str, Array], n: int) -> Array:
    return full(evaluate(e, where), n)
