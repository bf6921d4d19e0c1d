"""append: a KV cache written in place, its keys turned by their position on the way where the planner says
so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from tilegen.frontend.spec import Size, Value, builder, call, caller, tensors
from tilegen.ops.base import Access, Bound, Box, Interval, Kind, batch_base, blocks, ceil_div, need, register
from tilegen.ops.heads import head_operand, position, rotated

MANY = 64  # new rows of a batch


def append(cache: Value, x: Value, *, at: Value | int, name: str | None = None) -> Value:
    """cache[b, at : at + S] = x[b]; gives the cache as it is after the write.

    cache: a tg.state (B, S_max, H, D) or (B, S_max, H·D); x (B, S, H·D). at: an int, or an int32 input of one
    element, read on the device.
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
    attributes = {"batch": batch, "seq": seq, "max_len": max_len, "at": at if isinstance(at, int) else -1}
    marker = call(
        "append", name, operands, cache.shape, tensor.dtype, tensor.form or "rows", attributes, where
    )
    written = b.calls.pop()
    del b.tensors[marker.tensor]  # an append makes no new tensor: its result is the cache itself
    b.calls.append(replace(written, result=cache.tensor))
    b.appended[cache.tensor] = where
    return cache


def turns(b: Bound) -> bool:
    """Whether an append turns its rows by their position (rope)."""
    return any(key == "theta" for key, _ in b.op.attributes)


@register
class Append(Kind):
    """A tile copies tn columns of all new rows of one batch. Where they land is known only at run time: it
    may write any row of its batch.

    theta: rows are turned by their position on their way, as rope does (tiling.fuse); then a tile has whole
    heads of head_dim columns.
    """

    name, coords, stem = "append", ("b", "j"), "attention"

    def grid(self, b: Bound) -> tuple[Size, ...]:
        return (b.batch, ceil_div(b.shape(1)[1], b.tile[0]))

    def reads(self, b: Bound) -> tuple[Access, ...]:
        n, j = b.coords
        first = batch_base(n, b.batch, b.seq)
        reads = [Access(1, (Interval(first, sp.sympify(first + b.seq)), blocks(j, b.tile[0], b.shape(1)[1])))]
        if b.at < 0:
            reads.append(Access(2, (Interval(sp.Integer(0), sp.Integer(1)),), "first"))
        return tuple(reads)

    def write(self, b: Bound) -> Box:
        n, j = b.coords
        columns = blocks(j, b.tile[0], b.shape(1)[1])
        first = batch_base(n, b.batch, b.max_len)
        if b.at < 0:
            return (Interval(first, sp.sympify(first + b.max_len)), columns)
        return (Interval(sp.sympify(first + b.at), sp.sympify(first + b.at + b.seq)), columns)

    def flops(self, b: Bound) -> float:
        return 1.0 * b.seq * b.tile[0]

    def tiles(self, b: Bound, machine: Any) -> Sequence[tuple[int, ...]]:
        width, unit = b.shape(1)[1], dict(b.op.attributes).get("head_dim", 1)
        narrow = (32, 16) if isinstance(b.seq, int) and b.seq > MANY else ()  # that many SMs may copy
        widths = {t // unit * unit for t in (128, 256, 64, *narrow)} - {0}
        return [
            (t,)
            for t in sorted(widths, key=lambda t: (t != 128, t))
            if not isinstance(width, int) or t <= width
        ] or [(width,)]

    def check_tile(self, b: Bound, tile: tuple[int, ...]) -> str:
        unit = dict(b.op.attributes).get("head_dim", 1)
        return (
            ""
            if tile[0] % unit == 0
            else f"{tile[0]} columns a tile, expected whole heads of {unit}: they are turned on their way"
        )

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        cache = operands[0].reshape(b.batch, b.max_len, -1).clone()
        at = operands[2] if b.at < 0 else b.at
        rows = operands[1] if not turns(b) else rotated(operands[1], b.head_dim, b.seq, at, b.theta)
        cache[:, at : at + b.seq] = rows.reshape(b.batch, b.seq, -1)
        return [cache.reshape(b.batch * b.max_len, -1)]

    def runtime_write(
        self, b: Bound, box: tuple[tuple[int, int, int], ...], position: int
    ) -> tuple[tuple[int, int, int], ...]:
        if b.at >= 0:
            return box
        (lo, _, _), columns = box
        return ((lo + position, lo + position + b.seq, 1), columns)
