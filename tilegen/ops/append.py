"""append: a KV cache written in place, its keys turned by their position on the way where the planner says
so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy as sp

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value, builder, caller
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
)
from tilegen.ops.heads import head_operand, position, rotated

MANY = 64  # new rows of a batch


@dataclass(frozen=True)
class AppendAttributes(Attributes):
    """batch caches of max_len rows, each given seq rows at row `at`, -1 where the position operand says it.
    theta, head_dim: rows are roped on their way, heads of head_dim columns."""

    batch: Size
    seq: Size
    max_len: Size
    at: int
    head_dim: int | None = None
    theta: float | None = None


def append(cache: Value, x: Value, *, at: Value | int, name: str | None = None) -> Value:
    """cache[b, at : at + S] = x[b]; gives the cache as it is after the write.

    cache: a tg.state (B, S_max, H, D) or (B, S_max, H·D); x (B, S, H·D), of one dtype. at, in rows: an int,
    or an int32 input of one element, read on the device.

    Raises:
        SpecError: cache is no whole tg.state, was appended or read before, x has other sizes or another
            dtype, or S rows do not fit. A position on the device that leaves no room is told by the kernel's
            check().
    """
    where = caller()
    tensors("append", where, cache=cache, x=x)
    b = builder("append")
    tensor = b.tensors[cache.tensor]
    need(
        tensor.role == "state" and cache.columns is None,
        f"append: {cache.tensor!r} is not a whole tg.state",
        where,
    )
    need(
        cache.tensor not in b.appended,
        f"append: {cache.tensor!r} was appended already at {b.appended.get(cache.tensor)}",
        where,
    )
    readers = [c for c in b.calls if any(o.tensor == cache.tensor for o in c.operands)]
    need(
        not readers,
        f"append: {cache.tensor!r} was read before ({readers[0].name if readers else ''}); read what append"
        " returns",
        where,
    )
    batch, max_len = cache.shape[:2]
    width = cache.shape[2] * cache.shape[3] if len(cache.shape) == 4 else cache.shape[2]
    need(
        len(x.shape) == 3 and x.shape[0] == batch and x.shape[2] == width,
        f"append: x is ({batch}, S, {width}), given {x.shape}",
        where,
    )
    need(x.dtype == tensor.dtype, f"append: x is {x.dtype}, the cache is {tensor.dtype}", where)
    seq = x.shape[1]
    operands = [head_operand(cache, where), x.operand("rows", where)]
    if isinstance(at, int):
        need(
            at >= 0 and at + seq <= max_len,
            f"append: rows {at} … {at + seq} do not fit into a cache of {max_len}",
            where,
        )
    else:
        operands.append(position(at, where))
    if isinstance(seq, int) and isinstance(max_len, int):
        need(seq <= max_len, f"append: {seq} rows do not fit into a cache of {max_len}", where)
    attributes = AppendAttributes(batch, seq, max_len, at if isinstance(at, int) else -1)
    marker = call(
        "append", name, operands, cache.shape, tensor.dtype, tensor.form or "rows", attributes, where
    )
    written = b.calls.pop()
    del b.tensors[marker.tensor]  # an append makes no new tensor: its result is the cache itself
    b.calls.append(replace(written, result=cache.tensor))
    b.appended[cache.tensor] = where
    return cache


def ropes(b: OpInstance) -> bool:
    """Whether an append turns its rows by their position (rope)."""
    return isinstance(b.attributes, AppendAttributes) and b.attributes.theta is not None


@register
class Append(OpDef):
    """A tile copies tn columns of all new rows of one batch. Where they land is known only at run time: it
    may write any row of its batch.

    theta: rows are turned by their position on their way, as rope does (tiling.fuse); then a tile has whole
    heads of head_dim columns.
    """

    name, coords, stem = "append", ("b", "j"), "attention"
    operands, attributes = ("cache", "x", "position"), AppendAttributes
    in_place = "cache"

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        a = AppendAttributes.of(b)
        return (a.batch, ceil_div(b.shape(1)[1], b.tile[0]))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = AppendAttributes.of(b)
        n, j = b.coords
        first = batch_base(n, a.batch, a.seq)
        reads = [Access(1, (Interval(first, sp.sympify(first + a.seq)), blocks(j, b.tile[0], b.shape(1)[1])))]
        if a.at < 0:
            reads.append(Access(b.index("position"), (Interval(sp.Integer(0), sp.Integer(1)),), "first"))
        return tuple(reads)

    def write(self, b: OpInstance) -> Box:
        a = AppendAttributes.of(b)
        n, j = b.coords
        columns = blocks(j, b.tile[0], b.shape(1)[1])
        first = batch_base(n, a.batch, a.max_len)
        if a.at < 0:
            return (Interval(first, sp.sympify(first + a.max_len)), columns)
        return (Interval(sp.sympify(first + a.at), sp.sympify(first + a.at + a.seq)), columns)

    def flops(self, b: OpInstance) -> float:
        a = AppendAttributes.of(b)
        return 1.0 * a.seq * b.tile[0]

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        a = AppendAttributes.of(b)
        width, unit = b.shape(1)[1], (AppendAttributes.of(b).head_dim or 1)
        narrow = (32, 16) if isinstance(a.seq, int) and a.seq > MANY else ()  # that many SMs may copy
        widths = {t // unit * unit for t in (128, 256, 64, *narrow)} - {0}
        return [
            (t,)
            for t in sorted(widths, key=lambda t: (t != 128, t))
            if not isinstance(width, int) or t <= width
        ] or [(width,)]

    def check_tile(self, b: OpInstance, tile: tuple[int, ...]) -> str:
        unit = (AppendAttributes.of(b).head_dim or 1)
        return (
            ""
            if tile[0] % unit == 0
            else f"{tile[0]} columns a tile, expected whole heads of {unit}: they are turned on their way"
        )

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = AppendAttributes.of(b)
        cache = operands[0].reshape(a.batch, a.max_len, b.out[-1]).clone()
        at = operands[2] if a.at < 0 else a.at
        rows = operands[1]
        if a.head_dim is not None and a.theta is not None:
            rows = rotated(rows, a.head_dim, a.seq, at, a.theta)
        cache[:, at : at + a.seq] = rows.reshape(a.batch, a.seq, b.out[-1])
        return [cache.reshape(b.out)]

    def runtime_write(
        self, b: OpInstance, box: tuple[tuple[int, int, int], ...], position: int
    ) -> tuple[tuple[int, int, int], ...]:
        a = AppendAttributes.of(b)
        if a.at >= 0:
            return box
        (lo, _, _), columns = box
        return ((lo + position, lo + position + a.seq, 1), columns)
