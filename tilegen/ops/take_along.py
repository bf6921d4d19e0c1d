"""Numbers of each row, picked by their columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, declared, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.softmax import row_tiles


@dataclass(frozen=True)
class TakeAlongAttributes(Attributes):
    """None: the operands say all."""


def take_along(x: Value, ids: Value, *, name: str | None = None) -> Value:
    """y[…, j] = x[…, ids[…, j]].

    x (…, N) of at least two dimensions; ids (…, k) of int32, an input or the columns of a `topk`; y (…, k) of
    x's dtype. An id below 0 or of N and more gives NaN.

    Raises:
        SpecError: x or ids is no tensor of this spec, ids are not int32, or have other rows than x.

    Source: torch.take_along_dim, on the last dimension.
    """
    where = caller()
    tensors("take_along", where, x=x)
    declared("take_along", where, ids=ids)
    need(ids.dtype == "int32", f"take_along: ids are int32, given {ids!r} of {ids.dtype}", where)
    need(len(x.shape) > 1, f"take_along: x has at least two dimensions, given {x.shape}", where)
    need(
        ids.shape[:-1] == x.shape[:-1],
        f"take_along: ids are numbers of columns of the rows of {x!r}, (…, k), given {ids!r}",
        where,
    )
    operands = [x.operand("rows", where), ids.operand("rows", where)]
    return call("take_along", name, operands, ids.shape, x.dtype, "rows", TakeAlongAttributes(), where)


@register
class TakeAlong(OpDef):
    """Tile tm rows x tn columns. Which columns of its rows it reads, only the ids say: it may be any."""

    name, coords, stem, fusable = "take_along", ("i", "j"), "rows", True
    operands, attributes, width, picked = ("x", "ids"), TakeAlongAttributes, 1, ("x",)

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        rows, columns = self.write(b)
        return (Access(0, (rows, whole(b.shape(0)[1])), exact=False), Access(1, (rows, columns)))

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=True))

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return [(*t, min(int(b.out[1]), 512)) for t in row_tiles(b.out[0], machine)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        x, ids = operands[:2]
        there = (ids >= 0) & (ids < x.shape[1])
        return [x.gather(1, ids.long() * there).masked_fill(~there, math.nan)]
