"""softmax over the last dimension, optionally scaled and causal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from tilegen.frontend.spec import Value, call, caller, number, tensors
from tilegen.ops.base import (
    Access,
    Bound,
    Box,
    Interval,
    Kind,
    batch_base,
    blocks,
    ceil_div,
    need,
    register,
    whole,
)


def softmax(x: Value, *, scale: float = 1.0, causal: bool = False, name: str | None = None) -> Value:
    """y = exp(scale·x - max) / Σ exp(scale·x - max) over the last dimension, in float32.

    x (…, R, N). causal: row q of the last two dimensions sees columns ≤ q + N - R, the others give 0; needs N
    ≥ R.
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
    attributes = {
        "batch": batch,
        "rows": rows,
        "scale": number("softmax: scale", scale, where),
        "causal": bool(causal),
    }
    return call("softmax", name, [x.operand("rows", where)], x.shape, x.dtype, "rows", attributes, where)


@register
class Softmax(Kind):
    """A tile is tm rows of one matrix, whole; behind the causal mask nothing is read."""

    name, coords, stem = "softmax", ("b", "i"), "rows"

    def grid(self, b: Bound) -> tuple[Any, ...]:
        return (b.batch, ceil_div(b.rows, b.tile[0]))

    def reads(self, b: Bound) -> tuple[Access, ...]:
        _, i = b.coords
        rows, n = self.write(b)[0], b.out[1]
        columns = whole(n)
        if b.causal:
            last = blocks(i, b.tile[0], b.rows).hi
            columns = Interval(
                sp.Integer(0), sp.Min(last + n - b.rows, n) if isinstance(n, int) else last + n - b.rows
            )
        return (Access(0, (rows, columns)),)

    def write(self, b: Bound) -> Box:
        n, i = b.coords
        return (blocks(i, b.tile[0], b.rows, batch_base(n, b.batch, b.rows)), whole(b.out[1]))

    def flops(self, b: Bound) -> float:
        return 8.0 * b.tile[0] * b.out[1]

    def tiles(self, b: Bound, machine: Any) -> Sequence[tuple[int, ...]]:
        return row_tiles(b.rows, machine)

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        import torch

        x = operands[0].reshape(b.batch, b.rows, -1) * b.scale
        if b.causal:
            seen = torch.ones(x.shape[1:], dtype=torch.bool, device=x.device).tril(x.shape[2] - x.shape[1])
            x = x.masked_fill(~seen, float("-inf"))
        return [x.softmax(dim=-1).reshape(b.out)]


def row_tiles(rows: Any, machine: Any) -> list[tuple[int]]:
    """Row blocks for ops that take whole rows: enough blocks to feed every SM, and blocks that GeMMs use
    too."""
    n = rows if isinstance(rows, int) else 4096
    fair = max(1, -(-n // machine.sms))
    candidates = [t for t in (64, 32, 16, 8, 4, 1) if t <= max(8, fair)]
    return [(t,) for t in candidates[:3] or [1]]
