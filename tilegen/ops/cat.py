"""Tensors side by side: their columns, one behind the other, in a tensor of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.pointwise import shared_form
from tilegen.ops.softmax import row_tiles
from tilegen.ops.spatial import spatial_tiles


class CatAttributes(Attributes):
    """None: the operands say all."""


def cat(values: Sequence[Value], *, name: str | None = None) -> Value:
    """y[…, Σ N_j, j < i, + n] = values[i][…, n], as torch.cat(values, dim=-1).

    values: two or more tensors (…, N_i) of one dtype, which differ in their last dimension alone; y (…, Σ
    N_i) of that dtype.

    Raises:
        SpecError: values is no list of two tensors or more, or their leading dimensions or dtypes differ.
    """
    where = caller()
    need(
        isinstance(values, (list, tuple)) and len(values) > 1,
        f"cat: values are a list of two tensors or more, given {values!r}",
        where,
    )
    tensors("cat", where, **{f"values[{n}]": v for n, v in enumerate(values)})
    first = values[0]
    need(len(first.shape) > 1, f"cat: values have at least two dimensions, given {first.shape}", where)
    for n, v in enumerate(values):
        need(
            v.shape[:-1] == first.shape[:-1],
            f"cat: values[{n}], {v.tensor!r}, is {v.shape}; expected {first.shape[:-1]} and any last size",
            where,
        )
        need(
            v.dtype == first.dtype,
            f"cat: {first.tensor!r} is {first.dtype}, {v.tensor!r} is {v.dtype}; expected one dtype",
            where,
        )
    form = shared_form(values, of_views="spatial")
    operands = [v.operand(form, where) for v in values]
    columns: Any = 0
    for v in values:
        columns = columns + v.shape[-1]
    y = call("cat", name, operands, (*first.shape[:-1], columns), first.dtype, form, CatAttributes(), where)
    if not form:
        y.builder.tie([y.tensor, *(o.tensor for o in operands)])
    return y


@register
class Cat(OpDef):
    """A tile is tm whole rows, or tb images x th rows x tw columns of whole pixels."""

    name, coords, stem = "cat", ("i",), "rows"
    attributes = CatAttributes

    def coords_of(self, b: OpInstance) -> tuple[str, ...]:
        return ("i",) if len(b.out) == 2 else ("b", "p", "q")

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=False))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        lines = self.write(b)[:-1]
        return tuple(Access(n, (*lines, whole(b.shape(n)[-1]))) for n in range(len(b.op.operands)))

    def write(self, b: OpInstance) -> Box:
        lines = zip(b.coords, b.tile, b.out, strict=False)
        return (*(blocks(c, t, n) for c, t, n in lines), whole(b.out[-1]))

    def row_coords(self, b: OpInstance) -> Sequence[int]:
        return range(len(b.grid))

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile) * b.out[-1])

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return row_tiles(b.out[0], machine) if len(b.out) == 2 else spatial_tiles(b.out, (64, 16))

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        import torch

        return [torch.cat(list(operands), dim=-1)]
