"""Operands that are heads side by side, positions, and rows turned by them: what attention, rope and append
share."""

from __future__ import annotations

from typing import Any

import sympy as sp

from tilegen.frontend.program import Operand, Size
from tilegen.frontend.value import Value
from tilegen.ops.base import need


def head_shape(value: Value, heads: int, what: str, where: str) -> tuple[Size, Size, Size]:
    """(B, S, D) of a (B, S, heads·D) or (B, S, heads, D) value."""
    shape = value.shape
    need(
        len(shape) in (3, 4),
        f"attention: {what} is (B, S, heads·D) or (B, S, heads, D), given {shape}",
        where,
    )
    if len(shape) == 4:
        need(shape[2] == heads, f"attention: {what} {shape} has {shape[2]} heads, expected {heads}", where)
        return shape[0], shape[1], shape[3]
    need(
        not isinstance(shape[2], int) or shape[2] % heads == 0,
        f"attention: {what} has {shape[2]} columns, not a multiple of {heads} heads",
        where,
    )
    return (
        shape[0],
        shape[1],
        shape[2] // heads if isinstance(shape[2], int) else shape[2] / sp.Integer(heads),
    )


def head_operand(value: Value, where: str) -> Operand:
    return value.operand("heads" if len(value.shape) == 4 else "rows", where)


def position(at: Value, where: str) -> Operand:
    """A position operand: an int32 input of one element."""
    whole = isinstance(at, Value) and at.dtype == "int32" and at.shape == (1,) and at.columns is None
    need(whole and at.given, "a position is tg.input(name, (1,), 'int32')", where)
    return at.operand("vector", where)


def rotated(x: Any, d: int, seq: int, first: int, theta: float) -> Any:
    """Rows of heads of d columns, each turned by its position: first + its number in its sequence of `seq`
    rows."""
    import torch

    p = torch.arange(x.shape[0], dtype=torch.float64, device=x.device) % seq + first
    phi = p[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    cos, sin = phi.cos().float()[:, None], phi.sin().float()[:, None]
    lo, hi = x.reshape(x.shape[0], x.shape[1] // d, d).split(d // 2, dim=-1)
    return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), dim=-1)
