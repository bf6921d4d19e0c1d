"""softmax over the last dimension, optionally scaled and causal, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, number, tensors
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import (
    Access,
    Box,
    Interval,
    OpDef,
    OpInstance,
    batch_base,
    blocks,
    ceil_div,
    need,
    register,
    whole,
)
from tilegen.ops.extrema import smallest


@dataclass(frozen=True)
class SoftmaxAttributes(Attributes):
    """batch matrices of so many rows; log: the logarithm of it."""

    batch: Size
    rows: Size
    scale: float
    causal: bool
    log: bool = False


def softmax(x: Value, *, scale: float = 1.0, causal: bool = False, name: str | None = None) -> Value:
    """y = exp(scale·x - max) / Σ exp(scale·x - max) over the last dimension, in float32.

    x (…, R, N); y of x's shape and dtype. causal: row q of the last two dimensions sees columns ≤ q + N - R,
    the others give 0.

    Raises:
        SpecError: scale is not finite; or with causal, x has one dimension or N < R.
    """
    where = caller()
    tensors("softmax", where, x=x)
    need(
        len(x.shape) >= 2 or not causal,
        f"softmax: a causal mask needs (…, rows, columns), given {x.shape}",
        where,
    )
    rows = x.shape[-2] if causal else 1
    batch: Any = 1
    for size in x.shape[:-2] if causal else x.shape[:-1]:
        batch = batch * size
    if not causal:
        rows, batch = batch, 1
    if causal and isinstance(rows, int) and isinstance(x.shape[-1], int):
        need(
            x.shape[-1] >= rows,
            f"softmax: a causal mask needs at least as many columns as rows, given {x.shape}",
            where,
        )
    attributes = SoftmaxAttributes(batch, rows, number("softmax: scale", scale, where), bool(causal))
    return call("softmax", name, [x.operand("rows", where)], x.shape, x.dtype, "rows", attributes, where)


def log_softmax(x: Value, *, scale: float = 1.0, name: str | None = None) -> Value:
    """y = scale·x - max - ln Σ exp(scale·x - max) over the last dimension, in float32.

    x (…, N); y of x's shape and dtype.

    Raises:
        SpecError: scale is not finite.

    Source: torch.nn.functional.log_softmax.
    """
    where = caller()
    tensors("log_softmax", where, x=x)
    rows: Any = 1
    for size in x.shape[:-1]:
        rows = rows * size
    attributes = SoftmaxAttributes(1, rows, number("log_softmax: scale", scale, where), False, log=True)
    return call("softmax", name, [x.operand("rows", where)], x.shape, x.dtype, "rows", attributes, where)


@register
class Softmax(OpDef):
    """A tile is tm rows of one matrix, whole; behind the causal mask nothing is read."""

    name, coords, stem = "softmax", ("b", "i"), "rows"
    operands, attributes = ("x",), SoftmaxAttributes

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        a = SoftmaxAttributes.of(b)
        return (a.batch, ceil_div(a.rows, b.tile[0]))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = SoftmaxAttributes.of(b)
        _, i = b.coords
        rows, n = self.write(b)[0], b.out[1]
        columns = whole(n)
        if a.causal:
            last = blocks(i, b.tile[0], a.rows).hi
            columns = Interval(
                sp.Integer(0), smallest(last + n - a.rows, n) if isinstance(n, int) else last + n - a.rows
            )
        return (Access(0, (rows, columns)),)

    def write(self, b: OpInstance) -> Box:
        a = SoftmaxAttributes.of(b)
        n, i = b.coords
        return (blocks(i, b.tile[0], a.rows, batch_base(n, a.batch, a.rows)), whole(b.out[1]))

    def flops(self, b: OpInstance) -> float:
        return 8.0 * b.tile[0] * b.out[1]

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        a = SoftmaxAttributes.of(b)
        return row_tiles(a.rows, machine)

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = SoftmaxAttributes.of(b)
        import torch

        x = operands[0].reshape(a.batch, a.rows, b.shape(0)[1]) * a.scale
        if a.causal:
            seen = torch.ones(x.shape[1:], dtype=torch.bool, device=x.device).tril(x.shape[2] - x.shape[1])
            x = x.masked_fill(~seen, float("-inf"))
        y = x.log_softmax(dim=-1) if a.log else x.softmax(dim=-1)
        return [y.reshape(b.out)]


def row_tiles(rows: Any, machine: Any) -> list[tuple[int]]:
    """Row blocks for ops that take whole rows: enough blocks to feed every SM, and blocks that GeMMs use
    too."""
    n = rows if isinstance(rows, int) else 4096
    fair = max(1, -(-n // machine.sms))
    candidates = [t for t in (64, 32, 16, 8, 4, 1) if t <= max(8, fair)]
    return [(t,) for t in candidates[:3] or [1]]
