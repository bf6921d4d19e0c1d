"""Policies: which producer tiles share a semaphore. Points of one lattice, found from the dependences; none
is coded by name.

A policy partitions the producer's blocks. Consumer classes: blocks needed by exactly the same consumer tiles.
Step classes: with, besides, the same first-use step in each. A plan uses partitions that are products over
the tensor's dimensions, so that semaphore numbers are arithmetic; each class point is the coarsest such
product that refines the classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp

from tilegen.analysis.dependence import Edge, Relation, block_shape, relation
from tilegen.analysis.regions import Array, divide, tiles_of
from tilegen.analysis.rows import distinct, numbered, runs
from tilegen.errors import PlanError, nearest
from tilegen.ops.base import ceil_div
from tilegen.ops.extrema import smallest


@dataclass(frozen=True)
class Grouping:
    """How the blocks of one dimension share semaphores: all one, each its own, every G in a row, modulo R, or
    by a table."""

    how: str  # "all" | "each" | "every" | "modulo" | "table"
    blocks: Any
    size: int = 1
    table: tuple[int, ...] = ()

    @property
    def count(self) -> Any:
        """Number of groups."""
        if self.how == "all":
            return 1
        if self.how == "table":
            return max(self.table) + 1
        return {"each": self.blocks, "every": ceil_div(self.blocks, self.size), "modulo": self.size}[self.how]

    def of(self, block: Any) -> Any:
        """Group of a block: an expression, or an array for arrays of blocks. Tables give only arrays."""
        if isinstance(block, np.ndarray):
            match self.how:
                case "all":
                    return np.zeros_like(block)
                case "each":
                    return block
                case "every":
                    return block // self.size
                case "modulo":
                    return block % self.size
                case _:
                    return np.asarray(self.table)[block]
        if self.how == "every":
            return divide(block, self.size)
        if self.how == "modulo":
            return sp.Mod(block, self.size)
        return {"all": sp.Integer(0), "each": block}[self.how]

    @cached_property
    def sizes(self) -> Array:
        """Blocks in each group."""
        return np.bincount(self.of(np.arange(self.blocks)), minlength=self.count)

    def size_formula(self, group: Any) -> Any:
        """Blocks in group `group`, an expression."""
        if self.how == "all":
            return self.blocks
        if self.how == "every":
            return (
                self.size
                if isinstance(self.blocks, int) and self.blocks % self.size == 0
                else smallest(self.size, self.blocks - self.size * group)
            )
        if self.how == "modulo":
            if isinstance(self.blocks, int) and self.blocks % self.size == 0:
                return self.blocks // self.size
            return sp.floor(sp.sympify(self.blocks - 1 - group) / self.size) + 1
        return 1

    def words(self, name: str) -> str:
        if self.how == "all" or self.blocks == 1:
            return ""
        return {
            "each": name,
            "every": f"⌊{name}/{self.size}⌋",
            "modulo": f"{name} mod {self.size}",
            "table": f"class({name})",
        }[self.how]


def grouping(labels: Sequence[int] | Array, blocks: int) -> Grouping:
    """The simplest Grouping with these labels (numbered by first appearance)."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    numbered = np.argsort(np.argsort(first))[inverse]
    n = int(numbered.max()) + 1
    index = np.arange(blocks)
    if n == 1:
        return Grouping("all", blocks)
    if n == blocks:
        return Grouping("each", blocks)
    size = int(np.argmax(numbered != 0))
    if np.array_equal(numbered, index // size):
        return Grouping("every", blocks, size)
    if np.array_equal(numbered, index % n):
        return Grouping("modulo", blocks, n)
    return Grouping("table", blocks, n, tuple(int(v) for v in numbered))


Partition = tuple[Grouping, ...]


def labels_of(partition: Partition) -> Array:
    """The group number of every block, flat in row-major order."""
    flat = np.zeros((1,), dtype=np.int64)
    for g in partition:
        flat = (flat[:, None] * g.count + g.of(np.arange(g.blocks))[None, :]).reshape(-1)
    return flat


def refines(finer: Array, coarser: Array) -> bool:
    """Whether each class of `finer` lies in one class of `coarser` (labels over the same blocks)."""
    pairs = np.unique(np.stack((finer, coarser)), axis=1)
    return len(np.unique(finer)) == pairs.shape[1]


def meet(a: Array, b: Array) -> Array:
    """The coarsest common refinement."""
    return np.unique(np.stack((a, b)), axis=1, return_inverse=True)[1].reshape(-1)


def join(a: Array, b: Array) -> Array:
    """The finest common coarsening: classes linked through either partition."""
    label = np.arange(len(a))
    while True:
        merged = label
        for side in (a, b):
            least = np.full(int(side.max()) + 1, len(a))
            np.minimum.at(least, side, merged)
            merged = least[side]
        if np.array_equal(merged, label):
            return np.unique(label, return_inverse=True)[1].reshape(-1)
        label = merged


def classes(
    shape: Sequence[int], relations: Sequence[Relation], by_step: bool, readers: Sequence[int] | None = None
) -> Array:
    """Label of each block: equal for blocks needed by the same consumer tiles (by_step: first at the same
    step of each).

    readers: which consumer each relation belongs to; by default each is one of its own.
    """
    blocks = math.prod(shape)
    number = list(range(len(relations))) if readers is None else readers
    tiles = 1 + max((int(r.tile.max(initial=0)) for r in relations), default=0)
    block = np.concatenate([r.block for r in relations])
    tile = np.concatenate([r.tile + n * tiles for n, r in zip(number, relations, strict=True)])
    step = np.concatenate([r.step for r in relations]) if by_step else np.zeros_like(block)
    block, tile, step = distinct(block, tile, step)
    new = runs(block, tile)  # one entry per use, with its first step
    block, use = block[new], (tile * (int(step.max(initial=0)) + 2) + step + 1)[new]  # steps count from -1
    cuts = np.searchsorted(block, np.arange(blocks + 1))
    return numbered(use, cuts)


def product_refinement(labels: Array, shape: Sequence[int]) -> Partition:
    """The coarsest partition refining `labels` that is a product over dimensions: two indices of a dimension
    merge when their slices are labelled alike."""
    grid = labels.reshape(shape)
    out = []
    for d, blocks in enumerate(shape):
        slices = np.moveaxis(grid, d, 0).reshape(blocks, -1)
        out.append(grouping(numbered(slices, np.arange(blocks + 1) * slices.shape[1]), blocks))
    return tuple(out)


@dataclass(frozen=True)
class Point:
    """A lattice point of one producer and tensor, with what it costs: waits and how many posts must be in
    before a tile may start."""

    name: str
    partition: Partition
    semaphores: int
    waits: float  # semaphores a consumer tile waits for, mean
    start: float  # producer tiles that must be done before a consumer tile's first step, mean
    unawaited: int  # semaphores that nobody waits for: such a point is not allowed

    def formula(self, coords: Sequence[str]) -> str:
        words = [w for g, n in zip(self.partition, coords, strict=True) if (w := g.words(n))]
        return f"sem[{', '.join(words)}]" if words else "sem"


@dataclass(frozen=True)
class Lattice:
    """All points worth knowing for the semaphores of one producer and tensor, coarsest first, from all its
    consumers together."""

    producer: str
    tensor: str
    edges: tuple[Edge, ...]
    relations: tuple[Relation, ...] = field(repr=False)
    points: tuple[Point, ...]

    def point(self, name: str) -> Point:
        """The point of a name, or chunk:N. PlanError where there is none."""
        for point in self.points:
            if name in point.name.split("="):
                return point
        if (
            isinstance(name, str)
            and name.startswith("chunk:")
            and name[6:].isdecimal()
            and int(name[6:]) >= 1
        ):
            return measure(
                name, chunk_partition(block_shape(self.edges[0]), int(name[6:])), self.edges, self.relations
            )
        known = [n for p in self.points for n in p.name.split("=")]
        edges = ", ".join(sorted({e.name for e in self.edges}))
        raise PlanError(
            f"{self.tensor!r} ({edges}) has no policy {name!r}; "
            f"expected one of {', '.join(known)}, chunk:N{nearest(name, known)}"
        )


def chunk_partition(shape: Sequence[int], width: int) -> Partition:
    """Each row of blocks by itself, the last dimension in chunks of `width` blocks."""
    leading = [Grouping("each", n) if n > 1 else Grouping("all", n) for n in shape[:-1]]
    return (*leading, grouping(np.arange(shape[-1]) // width, shape[-1]))


def measure(name: str, partition: Partition, edges: Sequence[Edge], relations: Sequence[Relation]) -> Point:
    """What a partition costs its consumers, counted on the grid."""
    label = labels_of(partition)
    count = int(math.prod(g.count for g in partition))
    target = np.bincount(label, minlength=count)
    first_tile: dict[str, int] = {}
    for e in edges:
        first_tile.setdefault(
            e.consumer.op.name, sum(tiles_of(x.consumer).count for x in edges[: edges.index(e)])
        )
    tile = np.concatenate(
        [r.tile + first_tile[e.consumer.op.name] for e, r in zip(edges, relations, strict=True)]
    )
    step = np.maximum(np.concatenate([r.step for r in relations]), 0)
    sem = label[np.concatenate([r.block for r in relations])]
    tile, sem, step = distinct(tile, sem, step)
    new = runs(tile, sem)
    tile, sem, step = tile[new], sem[new], step[new]
    (waiting,) = np.nonzero(runs(tile))  # where the semaphores of each tile begin
    lengths = np.diff(waiting, append=len(tile))
    earliest = np.repeat(np.minimum.reduceat(step, waiting), lengths) if len(waiting) else step
    start = int(target[sem[step == earliest]].sum())
    n = max(1, len(waiting))
    unawaited = int((np.bincount(sem, minlength=count) == 0).sum())
    return Point(name, partition, count, len(sem) / n, start / n, unawaited)


def lattice(edges: Sequence[Edge]) -> Lattice:
    """The points for one producer and tensor; `edges` are all its reads by all consumers."""
    shape = block_shape(edges[0])
    relations = tuple(relation(e) for e in edges)
    ops = [e.consumer.op.name for e in edges]
    readers = [ops.index(name) for name in ops]  # an op that reads the tensor twice is one consumer
    each = tuple(Grouping("each", n) if n > 1 else Grouping("all", n) for n in shape)
    one = tuple(Grouping("all", n) for n in shape)
    named: list[tuple[str, Partition]] = [
        ("kernel", one),
        ("column", (*one[:-1], each[-1])),
        ("row", (*each[:-1], one[-1])),
        ("class", product_refinement(classes(shape, relations, by_step=False, readers=readers), shape)),
        ("step", product_refinement(classes(shape, relations, by_step=True, readers=readers), shape)),
        ("tile", each),
    ]
    names: dict[Partition, list[str]] = {}
    for name, partition in named:
        names.setdefault(partition, []).append(name)
    points = sorted(
        (measure("=".join(n), p, edges, relations) for p, n in names.items()), key=lambda p: p.semaphores
    )
    return Lattice(edges[0].producer.op.name, edges[0].tensor, tuple(edges), relations, tuple(points))
