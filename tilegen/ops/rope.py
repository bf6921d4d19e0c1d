"""rope, the rotary position embedding, and rotary, the same with angles that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, number, tensors
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, Interval, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.heads import head_operand, position, rotated
from tilegen.ops.softmax import row_tiles


@dataclass(frozen=True)
class RopeAttributes(Attributes):
    """seq rows a sequence, heads of head_dim columns; theta: the base of the angles."""

    seq: Size
    head_dim: Size
    theta: float


@dataclass(frozen=True)
class RotaryAttributes(Attributes):
    """Heads of head_dim columns. turned: so many of each, the first ones, where not all are. interleaved:
    pairs lie side by side."""

    head_dim: Size
    turned: int = 0
    interleaved: bool = False


def rope(
    x: Value, *, heads: int, theta: float = 10000.0, at: Value | None = None, name: str | None = None
) -> Value:
    """y[d] = x[d]·cos φ - x[d + D/2]·sin φ, y[d + D/2] = x[d + D/2]·cos φ + x[d]·sin φ, φ = p·theta^(-2d/D),
    for each head of size D.

    x (B, S, heads·D); y of x's shape and dtype. Position p of row s is s, plus `at` (an int32 input of one
    element, read on the device) where given. Pairs are half a head apart, as in Hugging Face's LLaMA.

    Raises:
        SpecError: x has not three dimensions, its columns are not `heads` heads of an even size, or theta is
            not positive.

    Source: arXiv 2104.09864.
    """
    where = caller()
    tensors("rope", where, x=x)
    d = _head_dim("rope", x, heads, where)
    operands = [head_operand(x, where)]
    if at is not None:
        operands.append(position(at, where))
    theta = number("rope: theta", theta, where, positive=True)
    attributes = RopeAttributes(seq=x.shape[1], head_dim=d, theta=theta)
    return call("rope", name, operands, x.shape, x.dtype, "rows", attributes, where)


def rotary(
    x: Value, cos: Value, sin: Value, *, heads: int, interleaved: bool = False, name: str | None = None
) -> Value:
    """y[d] = x[d]·cos[d] - x[d + R/2]·sin[d], y[d + R/2] = x[d + R/2]·cos[d + R/2] + x[d]·sin[d + R/2] for
    d < R/2, y[d] = x[d] from R on, for each head of size D: rope with angles that are given.

    x (B, S, heads·D); cos and sin (S, R), (1, S, R) or (B, S, R), R even and at most D, of x's dtype or
    float32: row s of sequence b turns by row s of the tables, or of the b-th of them; y of x's shape and
    dtype. interleaved: pairs are 2d and 2d + 1, not d and d + R/2.

    Raises:
        SpecError: x has not three dimensions, its columns are not `heads` heads of an even size, the tables
            differ in shape or dtype, or have none of these.

    Source: arXiv 2104.09864; apply_rotary_pos_emb of Hugging Face's LLaMA.
    """
    where = caller()
    tensors("rotary", where, x=x, cos=cos, sin=sin)
    d = _head_dim("rotary", x, heads, where)
    rows = {(x.shape[1],), (1, x.shape[1]), (x.shape[0], x.shape[1])}
    r = cos.shape[-1]
    part = isinstance(r, int) and isinstance(d, int) and r % 2 == 0 and 0 < r < d
    need(
        cos.shape == sin.shape and cos.shape[:-1] in rows and (r == d or part),
        f"rotary: cos and sin of x {x.shape} with {heads} heads are {(x.shape[1], d)}, or that for each of"
        f" {x.shape[0]} sequences, or have fewer columns, an even number; given {cos.shape} and {sin.shape}",
        where,
    )
    need(isinstance(interleaved, bool), f"rotary: interleaved is a bool, given {interleaved!r}", where)
    need(
        cos.dtype == sin.dtype and cos.dtype in (x.dtype, "float32"),
        f"rotary: x is {x.dtype}, cos and sin are {cos.dtype} and {sin.dtype}; expected both of x's dtype, or"
        " float32",
        where,
    )
    operands = [head_operand(x, where), cos.operand("rows", where), sin.operand("rows", where)]
    attributes = RotaryAttributes(d, r if part else 0, interleaved)
    return call("rotary", name, operands, x.shape, x.dtype, "rows", attributes, where)


def _head_dim(what: str, x: Value, heads: int, where: str) -> Size:
    """Columns of one of the heads side by side in x."""
    need(len(x.shape) == 3, f"{what}: x is (B, S, heads·D), given {x.shape}", where)
    need(isinstance(heads, int) and heads >= 1, f"{what}: heads is a positive int, given {heads!r}", where)
    width = x.shape[-1]
    need(
        not isinstance(width, int) or (width % heads == 0 and (width // heads) % 2 == 0),
        f"{what}: {width} columns are not {heads} heads of an even size",
        where,
    )
    return width // heads


def head_dim(b: OpInstance) -> Any:
    match b.attributes:
        case RopeAttributes(head_dim=d) | RotaryAttributes(head_dim=d):
            return d
    raise AssertionError(f"{b.op.name} turns no heads")


def turned_columns(a: RotaryAttributes) -> Any:
    """How many columns of each head a rotary turns."""
    return a.turned or a.head_dim


def turned(x: Any, cos: Any, sin: Any, a: RotaryAttributes) -> Any:
    """Rows of heads, each turned by its row of the tables, which are repeated from sequence to sequence."""
    import torch

    heads = x.reshape(x.shape[0], -1, a.head_dim)
    cos, sin = (t.repeat(x.shape[0] // t.shape[0], 1)[:, None] for t in (cos, sin))
    part, rest = heads.split([cos.shape[-1], a.head_dim - cos.shape[-1]], dim=-1)
    if a.interleaved:
        other = torch.stack((-part[..., 1::2], part[..., ::2]), dim=-1).flatten(-2)
    else:
        lo, hi = part.chunk(2, dim=-1)
        other = torch.cat((-hi, lo), dim=-1)
    return torch.cat((part * cos + other * sin, rest), dim=-1)


def constant_tables(b: OpInstance) -> bool:
    """A rotary: whether no op writes its tables."""
    return all(b.tensors[b.operand(name).tensor].constant for name in ("cos", "sin"))


class _Turning(OpDef):
    """A tile is tm rows of th heads."""

    coords, stem = ("i", "j"), "rows"

    def heads(self, b: OpInstance) -> Any:
        return b.out[1] // head_dim(b)

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return (ceil_div(b.out[0], b.tile[0]), ceil_div(self.heads(b), b.tile[1]))

    def write(self, b: OpInstance) -> Box:
        i, j = b.coords
        return (blocks(i, b.tile[0], b.out[0]), blocks(j, b.tile[1] * head_dim(b), b.out[1]))

    def flops(self, b: OpInstance) -> float:
        return 6.0 * b.tile[0] * b.tile[1] * head_dim(b)

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        (rows,) = row_tiles(b.out[0], machine)[0]
        heads = self.heads(b)
        return [(rows, t) for t in (4, 8, 16, 1) if not isinstance(heads, int) or t <= heads]


@register
class Rope(_Turning):
    name, operands, attributes = "rope", ("x", "position"), RopeAttributes

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        reads = [Access(0, self.write(b))]
        if b.has("position"):
            reads.append(Access(b.index("position"), (Interval(sp.Integer(0), sp.Integer(1)),), "first"))
        return tuple(reads)

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = RopeAttributes.of(b)
        return [
            rotated(operands[0], a.head_dim, a.seq, operands[1] if b.has("position") else 0, a.theta).reshape(
                b.out
            )
        ]


@register
class Rotary(_Turning):
    """Which rows of the tables a tile reads is not said: those of all sequences may be the same."""

    name, operands, attributes = "rotary", ("x", "cos", "sin"), RotaryAttributes
    picked = ("cos", "sin")

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        table = tuple(whole(n) for n in b.shape(1))
        return (Access(0, self.write(b)), *(Access(n, table, exact=False) for n in (1, 2)))

    def picked_by_tile(self, b: OpInstance, written: float) -> float:
        """Of what no op writes a row is there for all heads that turn by it."""
        return written / b.tile[1] if constant_tables(b) else written

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        x, cos, sin = operands[:3]
        return [turned(x, cos, sin, RotaryAttributes.of(b)).reshape(b.out)]
