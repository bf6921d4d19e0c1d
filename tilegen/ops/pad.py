"""Rows with zeros behind them, in a tensor of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.softmax import row_tiles


@dataclass(frozen=True)
class PadAttributes(Attributes):
    """behind: columns of zeros; none, which tilegen.graph.pad_rows alone asks for, copies rows."""

    behind: int


def pad(x: Value, behind: int, *, name: str | None = None) -> Value:
    """y[…, n] = x[…, n] for n < N, 0 for the columns behind: torch.nn.functional.pad(x, (0, behind)).

    x (…, N) of at least two dimensions; y (…, N + behind) of its dtype.

    Raises:
        SpecError: x is no tensor of this spec or has one dimension, or behind is no number of columns from 1
            on.
    """
    where = caller()
    tensors("pad", where, x=x)
    need(len(x.shape) > 1, f"pad: x has at least two dimensions, given {x.shape}", where)
    counts = type(behind) is int and behind > 0
    need(counts, f"pad: behind is a number of columns of zeros from 1 on, given {behind!r}", where)
    shape = (*x.shape[:-1], x.shape[-1] + behind)
    return call("pad", name, [x.operand("rows", where)], shape, x.dtype, "rows", PadAttributes(behind), where)


@register
class Pad(OpDef):
    """A tile is tm whole rows."""

    name, coords, stem, fusable = "pad", ("i",), "rows", True
    operands, attributes = ("x",), PadAttributes

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return (ceil_div(b.out[0], b.tile[0]),)

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        rows, _ = self.write(b)
        return (Access(0, (rows, whole(b.shape(0)[1]))),)

    def write(self, b: OpInstance) -> Box:
        return (blocks(b.coords[0], b.tile[0], b.out[0]), whole(b.out[1]))

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile) * b.out[1])

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return row_tiles(b.out[0], machine)

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        import torch.nn.functional as F

        return [F.pad(operands[0], (0, PadAttributes.of(b).behind))]
