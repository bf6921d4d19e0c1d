"""From a dependence and a partition to the waits of the consumer: which semaphores, before which step, as
formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from tilegen.analysis.dependence import Edge, expand
from tilegen.analysis.regions import Array, evaluate, full, tiles_of
from tilegen.frontend.program import Size
from tilegen.ops.base import K
from tilegen.schedule.policy import Grouping, Partition


@dataclass(frozen=True)
class SemaphoreMap:
    """Semaphores of one producer: number = base + row-major number of the groups of a tile's block; every
    CTA of a tile posts once."""

    producer: str
    tensor: str
    partition: Partition
    base: Size
    posts: int

    @property
    def count(self) -> Size:
        return math.prod(g.count for g in self.partition)

    def number(self, groups: Sequence[Any]) -> Any:
        n: Any = 0
        for g, group in zip(self.partition, groups, strict=True):
            n = n * g.count + group
        return self.base + n

    def target(self, groups: Sequence[Any]) -> Any:
        """Posts that the semaphore of these groups gets: the tiles in it, times the posts of each."""
        n: Any = self.posts
        for g, group in zip(self.partition, groups, strict=True):
            n = n * (g.sizes[group] if isinstance(group, np.ndarray) else g.size_formula(group))
        return n

    def targets(self) -> Array:
        sizes = np.ones(1, dtype=np.int64)
        for g in self.partition:
            sizes = (sizes[:, None] * g.sizes[None, :]).reshape(-1)
        return sizes * self.posts


@dataclass(frozen=True)
class Range:
    """One dimension of a wait: group indices lo … hi, or blocks lo … hi whose groups are looked up (modulo
    and table groupings)."""

    grouping: Grouping
    lo: Any
    hi: Any
    stepped: bool

    @property
    def by_block(self) -> bool:
        return self.grouping.how in ("modulo", "table")


@dataclass(frozen=True)
class Wait:
    """Before the step that first needs them, the consumer waits for the semaphores of all groups in the
    ranges.

    At the first step of a CTA: all of lo(k) … hi(k). At a later step, where one dimension moves on: only
    what is new, from max(lo(k), hi(k-1) + 1). A read before the first step or in the epilogue waits once.
    """

    edge: Edge
    semaphores: SemaphoreMap
    ranges: tuple[Range, ...]

    @property
    def stepped(self) -> bool:
        return any(r.stepped for r in self.ranges)

    def repeats(self, other: Wait) -> bool:
        """Whether it is for the same semaphores as another wait of its consumer, both before the first step,
        where no read is empty."""
        early = self.edge.access.when == other.edge.access.when == "first"
        same = (
            self.edge.consumer.op.name == other.edge.consumer.op.name and self.semaphores is other.semaphores
        )
        return early and same and self.ranges == other.ranges

    @property
    def moving(self) -> int | None:
        """The one dimension that moves with the step, if there is just one: there only new groups are waited
        for."""
        moving = [d for d, r in enumerate(self.ranges) if r.stepped]
        return moving[0] if len(moving) == 1 else None

    def entries(self, tile: Array, step: Array, first: Array) -> tuple[Array, Array, Array]:
        """(entry, semaphore, target) of all waits at the given (tile, step); `first`: whether it is the
        CTA's first step."""
        tiles = tiles_of(self.edge.consumer)
        where: dict[str, Any] = {**{name: a[tile] for name, a in tiles.coords.items()}, "k": step}
        before = {**where, "k": step - 1}
        n = len(tile)
        empty = np.zeros(n, dtype=bool)
        for interval in self.edge.box:
            empty |= full(evaluate(interval.lo, where), n) >= full(evaluate(interval.hi, where), n)
        lows, counts = [], []
        for d, r in enumerate(self.ranges):
            lo, hi = full(evaluate(r.lo, where), n), full(evaluate(r.hi, where), n)
            if d == self.moving:
                lo = np.where(first, lo, np.maximum(lo, full(evaluate(r.hi, before), n) + 1))
            elif not self.stepped:
                hi = np.where(first, hi, lo - 1)
            lows.append(lo)
            counts.append(np.where(empty, 0, np.maximum(hi - lo + 1, 0)))
        entry, index = expand(lows, counts)
        groups = [r.grouping.of(i) if r.by_block else i for r, i in zip(self.ranges, index, strict=True)]
        return (
            entry,
            full(self.semaphores.number(groups), len(entry)),
            full(self.semaphores.target(groups), len(entry)),
        )


def wait(edge: Edge, semaphores: SemaphoreMap) -> Wait:
    ranges = []
    for g, lo, hi in zip(semaphores.partition, edge.first, edge.last, strict=True):
        if g.how == "all":
            ranges.append(Range(g, sp.Integer(0), sp.Integer(0), False))
            continue
        low, high = (lo, hi) if g.how in ("modulo", "table") else (g.of(lo), g.of(hi))
        stepped = edge.access.when == "step" and any(K in sp.sympify(e).free_symbols for e in (low, high))
        ranges.append(Range(g, sp.sympify(low), sp.sympify(high), stepped))
    return Wait(edge, semaphores, tuple(ranges))
