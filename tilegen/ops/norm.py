"""rms_norm and layer_norm over the last dimension, and rope, the rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from tilegen.frontend.spec import Operand, Value, call, caller, number, tensors
from tilegen.ops.base import Access, Bound, Box, Interval, Kind, blocks, ceil_div, need, register, whole
from tilegen.ops.heads import head_operand, position, rotated
from tilegen.ops.softmax import row_tiles


def rms_norm(x: Value, w: Value, *, eps: float = 1e-5, name: str | None = None) -> Value:
    """y = x · w / √(mean(x²) + eps) over the last dimension, in float32. x (…, N), w (N,)."""
    return _norm("rms_norm", x, [w], eps, name)


def layer_norm(x: Value, w: Value, bias: Value, *, eps: float = 1e-5, name: str | None = None) -> Value:
    """y = (x - mean(x)) · w / √(var(x) + eps) + bias over the last dimension, in float32. x (…, N), w and
    bias (N,)."""
    return _norm("layer_norm", x, [w, bias], eps, name)


def _norm(kind: str, x: Value, vectors: list[Value], eps: float, name: str | None) -> Value:
    where = caller()
    tensors(kind, where, x=x, **dict(zip(("w", "bias"), vectors)))  # noqa: B905
    for v in vectors:
        need(
            v.shape == (x.shape[-1],),
            f"{kind}: {v.tensor!r} is ({x.shape[-1]},) for x {x.shape}, given {v.shape}",
            where,
        )
        need(
            v.dtype == x.dtype,
            f"{kind}: x is {x.dtype}, {v.tensor!r} is {v.dtype}; expected one dtype",
            where,
        )
    operands = [x.operand("rows", where), *(v.operand("vector", where) for v in vectors)]
    return call(
        kind,
        name,
        operands,
        x.shape,
        x.dtype,
        "rows",
        {"eps": number(f"{kind}: eps", eps, where, positive=True)},
        where,
    )


def rope(
    x: Value, *, heads: int, theta: float = 10000.0, at: Value | None = None, name: str | None = None
) -> Value:
    """y[d] = x[d]·cos φ - x[d + D/2]·sin φ, y[d + D/2] = x[d + D/2]·cos φ + x[d]·sin φ, φ = p·theta^(-2d/D),
    per head of size D.

    x (B, S, heads·D); position p of row s is s, plus `at` (an int32 input of one element) where given.
    Half-split pairs, as LLaMA in torch.
    """
    where = caller()
    tensors("rope", where, x=x)
    need(len(x.shape) == 3, f"rope: x is (B, S, heads·D), given {x.shape}", where)
    need(isinstance(heads, int) and heads >= 1, f"rope: heads is a positive int, given {heads!r}", where)
    width = x.shape[-1]
    need(
        not isinstance(width, int) or (width % heads == 0 and (width // heads) % 2 == 0),
        f"rope: {width} columns are not {heads} heads of an even size",
        where,
    )
    operands = [head_operand(x, where)]
    if at is not None:
        operands.append(position(at, where))
    attributes = {
        "seq": x.shape[1],
        "head_dim": width // heads,
        "theta": number("rope: theta", theta, where, positive=True),
    }
    return call("rope", name, operands, x.shape, x.dtype, "rows", attributes, where)


class _Norm(Kind):
    """A tile is tm whole rows."""

    coords, stem, fusable = ("i",), "rows", True
    vectors: int

    def grid(self, b: Bound) -> tuple[Any, ...]:
        return (ceil_div(b.out[0], b.tile[0]),)

    def reads(self, b: Bound) -> tuple[Access, ...]:
        n = b.out[1]
        return (Access(0, self.write(b)), *(Access(1 + v, (whole(n),)) for v in range(self.vectors)))

    def write(self, b: Bound) -> Box:
        return (blocks(b.coords[0], b.tile[0], b.out[0]), whole(b.out[1]))

    def flops(self, b: Bound) -> float:
        return 6.0 * b.tile[0] * b.out[1]

    def tiles(self, b: Bound, machine: Any) -> Sequence[tuple[int, ...]]:
        return row_tiles(b.out[0], machine)


def vectors_of(b: Bound) -> tuple[Operand, ...]:
    """A norm's weight, and its bias where it has one."""
    assert isinstance(b.kind, _Norm)
    return b.op.operands[1 : 1 + b.kind.vectors]


@register
class RmsNorm(_Norm):
    name, vectors = "rms_norm", 1

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        x, w = operands[:2]
        return [x * (x.square().mean(-1, keepdim=True) + b.eps).rsqrt() * w]


@register
class LayerNorm(_Norm):
    name, vectors = "layer_norm", 2

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        import torch.nn.functional as F

        x, w, bias = operands[:3]
        return [F.layer_norm(x, x.shape[-1:], w, bias, b.eps)]


@register
class Rope(Kind):
    """A tile is tm rows of th heads."""

    name, coords, stem = "rope", ("i", "j"), "rows"

    def heads(self, b: Bound) -> Any:
        return b.out[1] // b.head_dim

    def grid(self, b: Bound) -> tuple[Any, ...]:
        return (ceil_div(b.out[0], b.tile[0]), ceil_div(self.heads(b), b.tile[1]))

    def reads(self, b: Bound) -> tuple[Access, ...]:
        reads = [Access(0, self.write(b))]
        if len(b.op.operands) > 1:
            reads.append(Access(1, (Interval(sp.Integer(0), sp.Integer(1)),), "first"))
        return tuple(reads)

    def write(self, b: Bound) -> Box:
        i, j = b.coords
        return (blocks(i, b.tile[0], b.out[0]), blocks(j, b.tile[1] * b.head_dim, b.out[1]))

    def flops(self, b: Bound) -> float:
        return 6.0 * b.tile[0] * b.tile[1] * b.head_dim

    def tiles(self, b: Bound, machine: Any) -> Sequence[tuple[int, ...]]:
        (rows,) = row_tiles(b.out[0], machine)[0]
        heads = self.heads(b)
        return [(rows, t) for t in (4, 8, 1) if not isinstance(heads, int) or t <= heads]

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        return [
            rotated(operands[0], b.head_dim, b.seq, operands[1] if len(operands) > 1 else 0, b.theta).reshape(
                b.out
            )
        ]
