"""combine: what an attention's splits of the keys (tilegen.graph.split_kv) come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import Size
from tilegen.ops.base import Access, Box, Interval, K, OpDef, OpInstance, blocks, ceil_div, register

# columns of a head's partial result beside its sums: m, l, and room to keep rows whole 32-byte units
STATE = 8


@dataclass(frozen=True)
class CombineAttributes(Attributes):
    splits: int
    heads: int
    head_dim: int


@register
class Combine(OpDef):
    """y = Σ_s e^(m_s - m) a_s / Σ_s e^(m_s - m) l_s with m = max_s m_s: what an attention's splits of the
    keys come to. A tile is tm rows of th heads.

    Its operand holds a split below the other, each (B·Sq, heads·(D + STATE)): a head's Σ p v, then m and l.
    """

    name, coords, stem = "combine", ("i", "j"), "attention"
    operands, attributes = ("partial",), CombineAttributes

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        a = CombineAttributes.of(b)
        return (ceil_div(b.out[0], b.tile[0]), ceil_div(a.heads, b.tile[1]))

    def steps(self, b: OpInstance) -> Any:
        a = CombineAttributes.of(b)
        return sp.Integer(a.splits)

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = CombineAttributes.of(b)
        i, j = b.coords
        return (
            Access(0, (blocks(i, b.tile[0], b.out[0], K * b.out[0]), self._heads(b, j, a.head_dim + STATE))),
        )

    def write(self, b: OpInstance) -> Box:
        a = CombineAttributes.of(b)
        i, j = b.coords
        return (blocks(i, b.tile[0], b.out[0]), self._heads(b, j, a.head_dim))

    def _heads(self, b: OpInstance, j: Any, width: int) -> Interval:
        a = CombineAttributes.of(b)
        return blocks(j, b.tile[1] * width, a.heads * width)

    def flops(self, b: OpInstance) -> float:
        a = CombineAttributes.of(b)
        return 4.0 * a.splits * b.tile[0] * b.tile[1] * a.head_dim

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        a = CombineAttributes.of(b)
        return [(1, min(4, a.heads))]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = CombineAttributes.of(b)
        given = operands[0].reshape(a.splits, *b.out[:1], a.heads, a.head_dim + STATE)
        sums, m, l, _ = given.split((a.head_dim, 1, 1, STATE - 2), dim=-1)
        weight = (m - m.amax(0)).exp()
        return [((weight * sums).sum(0) / (weight * l).sum(0)).reshape(b.out)]
