"""attention: scaled dot-product attention as one op, whole, or its keys shared out and combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from tilegen.frontend.spec import Size, Value, call, caller, number, tensors
from tilegen.ops.base import (
    Access,
    Bound,
    Box,
    Interval,
    K,
    Kind,
    batch_base,
    blocks,
    ceil_div,
    need,
    register,
)
from tilegen.ops.heads import head_operand, head_shape, position, rotated

FEW = 64  # rows of queries, of all heads of a tile, that one warpgroup of a GPU takes


def attention(
    q: Value,
    k: Value,
    v: Value,
    *,
    heads: int,
    kv_heads: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    at: Value | None = None,
    name: str | None = None,
) -> Value:
    """y = softmax(scale · q kᵀ + mask) v, per head; softmax and sums in float32.

    q (B, Sq, heads·D), k and v (B, Sk, kv_heads·D) or 4-D with the heads apart; y like q, (B, Sq, heads·D).
    Query head h uses key head ⌊h·kv_heads/heads⌋. scale: 1/√D unless given. causal: query i sees keys ≤ i +
    Sk - Sq; needs Sk ≥ Sq. at: k and v are caches, filled up to position at + Sq (an int32 input of one
    element, read on the device); then query i sees keys ≤ at + i, which is causal.
    """
    where = caller()
    tensors("attention", where, q=q, k=k, v=v)
    kv_heads = heads if kv_heads is None else kv_heads
    need(isinstance(heads, int) and heads >= 1, f"attention: heads is a positive int, given {heads!r}", where)
    need(
        isinstance(kv_heads, int) and kv_heads >= 1 and heads % kv_heads == 0,
        f"attention: {heads} heads do not share {kv_heads} key heads evenly",
        where,
    )
    batch, q_len, d = head_shape(q, heads, "q", where)
    kb, k_len, kd = head_shape(k, kv_heads, "k", where)
    need(
        head_shape(v, kv_heads, "v", where) == (kb, k_len, kd),
        f"attention: k {k.shape} and v {v.shape} differ",
        where,
    )
    need(kb == batch, f"attention: q has batch {batch}, k has {kb}", where)
    need(
        kd == d,
        f"attention: q has head size {d} ({q.shape}, {heads} heads), k has {kd} ({k.shape}, {kv_heads}"
        " heads)",
        where,
    )
    need(
        q.dtype == k.dtype == v.dtype,
        f"attention: q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; expected one dtype",
        where,
    )
    if at is not None and isinstance(q_len, int) and isinstance(k_len, int):
        need(k_len >= q_len, f"attention: {q_len} queries do not fit into caches of {k_len} rows", where)
    if causal and at is None and isinstance(q_len, int) and isinstance(k_len, int):
        need(
            k_len >= q_len,
            f"attention: causal needs at least as many keys as queries, given {k_len} and {q_len}",
            where,
        )
    attributes = {
        "batch": batch,
        "q_len": q_len,
        "k_len": k_len,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": d,
        "scale": d**-0.5 if scale is None else number("attention: scale", scale, where),
        "causal": bool(causal) or at is not None,
    }
    operands = [head_operand(q, where), head_operand(k, where), head_operand(v, where)]
    if at is not None:
        operands.append(position(at, where))
    return call("attention", name, operands, (batch, q_len, heads * d), q.dtype, "rows", attributes, where)


POSITION = 3  # the operand that says how far the caches are filled
# columns of a head's partial result beside its sums: m, l, and room to keep rows whole 32-byte units
STATE = 8


def shares(b: Bound) -> int:
    """Tiles that share the keys of the same queries; their results are partial ones, for a combine."""
    return int(dict(b.op.attributes).get("shares", 1))


def over_caches(b: Bound) -> bool:
    """Whether keys and values are caches, filled up to a position: operand POSITION."""
    return len(b.op.operands) > POSITION


def passed(b: Bound) -> bool:
    """Whether new keys and values are passed to an attention over caches beside these
    (tilegen.graph.forward_kv)."""
    return bool(dict(b.op.attributes).get("passed"))


def turned(b: Bound) -> bool:
    """Whether it turns its queries and new keys by their position (rope)."""
    return passed(b) and "theta" in dict(b.op.attributes)


def seen(b: Bound) -> Any:
    """Keys that some query of a tile may see, as far as the plan knows: a position is known only at run
    time."""
    if not b.causal or over_caches(b):
        return b.k_len
    last = blocks(b.coords[2], b.tile[0], b.q_len).hi
    return last + b.k_len - b.q_len


def queries(b: Bound) -> Box:
    """What a tile reads of q."""
    return _rows_of_heads(b, b.head_dim)


def _rows_of_heads(b: Bound, width: Any) -> Box:
    """The tile's queries, and its heads of so many columns each."""
    n, h, i = b.coords[:3]
    lo = width * b.tile[2] * h
    return (
        blocks(i, b.tile[0], b.q_len, batch_base(n, b.batch, b.q_len)),
        Interval(lo, lo + width * b.tile[2]),
    )


@register
class Attention(Kind):
    """A tile is tq queries of th heads that share a key head; its steps walk the keys it may see, tk at a
    time, with an online softmax.

    Over caches the keys may be shared out: of the n blocks of tk keys that are there, share s of S takes
    blocks ⌊n·s/S⌋ … ⌊n·(s+1)/S⌋ - 1. It writes, in float32, Σ p v, m and l = Σ p with p = e^(score - m),
    which Combine brings together. How many blocks there are is known at run time only.

    passed: rows at … at + q_len - 1 of the caches are operands 4 and 5, not what the caches hold there, so
    that no append is awaited. theta: queries and these keys are turned by their position on their way, as
    rope does.
    """

    name, coords, stem = "attention", ("b", "h", "i"), "attention"

    def coords_of(self, b: Bound) -> tuple[str, ...]:
        return (*self.coords, "s") if shares(b) > 1 else self.coords

    def grid(self, b: Bound) -> tuple[Size, ...]:
        grid = (b.batch, b.heads // b.tile[2], ceil_div(b.q_len, b.tile[0]))
        return (*grid, shares(b)) if shares(b) > 1 else grid

    def steps(self, b: Bound) -> Any:
        return ceil_div(ceil_div(seen(b), b.tile[1]), shares(b))

    def reads(self, b: Bound) -> tuple[Access, ...]:
        n, h, _ = b.coords[:3]
        tk, tiles_of_group = b.tile[1], b.heads // b.kv_heads // b.tile[2]
        d, last = b.head_dim, seen(b)
        g = sp.floor(h / sp.Integer(tiles_of_group)) if tiles_of_group > 1 else h
        base = batch_base(n, b.batch, b.k_len)
        lo = tk * K
        hi = sp.Min(lo + tk, last) if not (isinstance(last, int) and last % tk == 0) else lo + tk
        if shares(b) > 1:
            lo, hi = sp.Integer(0), sp.sympify(b.k_len)
        keys = Interval(sp.expand(base + lo), sp.expand(base + hi))
        head = Interval(sp.expand(d * g), sp.expand(d * g + d))
        exact = shares(b) == 1
        reads = [
            Access(0, queries(b), "first"),
            *(Access(n, (keys, head), exact=exact, before=passed(b)) for n in (1, 2)),
        ]
        if over_caches(b):
            reads.append(Access(POSITION, (Interval(sp.Integer(0), sp.Integer(1)),), "first"))
        if passed(b):
            first = batch_base(n, b.batch, b.q_len)
            rows = Interval(sp.sympify(first), sp.sympify(first + b.q_len))
            reads += [Access(4, (rows, head), "first"), Access(5, (rows, head), "first")]
        return tuple(reads)

    def runtime_read(
        self, b: Bound, tensor: str, box: tuple[tuple[int, int, int], ...], position: int
    ) -> tuple[tuple[int, int, int], ...]:
        if not passed(b) or tensor not in {o.tensor for o in b.op.operands[1:3]}:
            return box
        (lo, hi, stride), columns = box
        return ((lo, max(lo, min(hi, lo // b.k_len * b.k_len + position)), stride), columns)

    def write(self, b: Bound) -> Box:
        if shares(b) == 1:
            return queries(b)
        rows, columns = _rows_of_heads(b, b.head_dim + STATE)
        return (rows.shifted(b.coords[3] * b.batch * b.q_len), columns)

    def flops(self, b: Bound) -> float:
        keys = b.k_len if not b.causal else max(1, b.k_len - b.q_len // 2)
        return 4.0 * b.tile[0] * b.tile[2] * keys * b.head_dim / shares(b)

    def tiles(self, b: Bound, machine: Any) -> Sequence[tuple[int, ...]]:
        q = b.q_len if isinstance(b.q_len, int) else 4096
        group, d = b.heads // b.kv_heads, b.head_dim if isinstance(b.head_dim, int) else 128
        # of columns; a block's keys and values lie in one stage, which is to be no longer than those of
        # products are
        blocks = ceil_div(d, 64)
        if q * group <= FEW:  # tensor cores take 64 rows at a time: heads that share keys fill them
            return [(q, 96 // blocks, group)]
        few = (
            all(isinstance(n, int) for n in (b.batch, b.q_len))
            and b.batch * b.heads * ceil_div(q, 128) < machine.sms
        )
        if few or q <= FEW:  # SMs that would idle take halves
            return [(min(FEW, q), 128 // blocks, 1)]
        # keys: what the registers of an SM's math warps hold
        return [(min(128, q), 112 if d > 96 else 128, 1)]

    def inner_sizes(self, given: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...]:
        """Several heads only where all their rows fit a GPU's tile."""
        fits = given and isinstance(given[0], int) and given[0] * usual[2] <= 2 * FEW
        return usual if fits else (*usual[:2], 1)

    def check_tile(self, b: Bound, tile: tuple[int, ...]) -> str:
        group = b.heads // b.kv_heads
        return (
            ""
            if group % tile[2] == 0
            else f"{tile[2]} heads a tile, but {group} share a key head: expected a divisor of {group}"
        )

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        import torch

        d, group = b.head_dim, b.heads // b.kv_heads
        operands = self._with_passed(b, operands) if passed(b) else operands
        q = operands[0].reshape(b.batch, b.q_len, b.heads, d).transpose(1, 2)
        k, v = (
            t.reshape(b.batch, b.k_len, b.kv_heads, d).transpose(1, 2).repeat_interleave(group, dim=1)
            for t in operands[1:3]
        )
        scores = q @ k.mT * b.scale
        first = operands[POSITION] if over_caches(b) else b.k_len - b.q_len
        if b.causal:
            visible = torch.ones(b.q_len, b.k_len, dtype=torch.bool, device=scores.device).tril(first)
            scores = scores.masked_fill(~visible, float("-inf"))
            v = v.masked_fill(~visible.any(0)[:, None], 0.0)  # keys nobody sees may hold anything
        if shares(b) == 1:
            return [(scores.softmax(-1) @ v).transpose(1, 2).reshape(b.out)]
        return [torch.stack([self._share(b, scores, v, first, s) for s in range(shares(b))]).reshape(b.out)]

    def _with_passed(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        """Queries, whole caches and the position of an attention that new rows are passed to."""
        import torch

        q, k, v, at, new_k, new_v = operands
        if turned(b):
            q, new_k = (rotated(x, b.head_dim, b.q_len, at, b.theta) for x in (q, new_k))
        whole = []
        for cache, new in ((k, new_k), (v, new_v)):
            rows = cache.reshape(b.batch, b.k_len, -1)
            new = new.reshape(b.batch, b.q_len, -1)
            whole.append(torch.cat((rows[:, :at], new, rows[:, at + b.q_len :]), dim=1).reshape(cache.shape))
        return [q, *whole, at]

    def _share(self, b: Bound, scores: Any, v: Any, first: int, s: int) -> Any:
        """[batch, q_len, heads, D + STATE]: what share s of the keys makes of the scores."""
        import torch

        tq, tk, _ = b.tile
        mine = torch.zeros(b.q_len, b.k_len, dtype=torch.bool, device=scores.device)
        for i in range(0, b.q_len, tq):
            there = -(-min(first + min(i + tq, b.q_len), b.k_len) // tk)  # blocks that the tile sees
            mine[i : i + tq, there * s // shares(b) * tk : there * (s + 1) // shares(b) * tk] = True
        scores = scores.masked_fill(~mine, float("-inf"))
        m = scores.amax(-1, keepdim=True)
        p = (scores - m.nan_to_num(neginf=0.0)).exp()
        room = m.new_zeros(*m.shape[:-1], STATE - 2)
        return torch.cat((p @ v, m, p.sum(-1, keepdim=True), room), dim=-1).transpose(1, 2)


@register
class Combine(Kind):
    """y = Σ_s e^(m_s - m) a_s / Σ_s e^(m_s - m) l_s with m = max_s m_s: what an attention's shares of the
    keys come to. A tile is tm rows of th heads.

    Its operand holds a share below the other, each (B·Sq, heads·(D + STATE)): a head's Σ p v, then m and l.
    """

    name, coords, stem = "combine", ("i", "j"), "attention"

    def grid(self, b: Bound) -> tuple[Size, ...]:
        return (ceil_div(b.out[0], b.tile[0]), ceil_div(b.heads, b.tile[1]))

    def steps(self, b: Bound) -> Any:
        return sp.Integer(b.shares)

    def reads(self, b: Bound) -> tuple[Access, ...]:
        i, j = b.coords
        return (
            Access(0, (blocks(i, b.tile[0], b.out[0], K * b.out[0]), self._heads(b, j, b.head_dim + STATE))),
        )

    def write(self, b: Bound) -> Box:
        i, j = b.coords
        return (blocks(i, b.tile[0], b.out[0]), self._heads(b, j, b.head_dim))

    def _heads(self, b: Bound, j: Any, width: int) -> Interval:
        return blocks(j, b.tile[1] * width, b.heads * width)

    def flops(self, b: Bound) -> float:
        return 4.0 * b.shares * b.tile[0] * b.tile[1] * b.head_dim

    def tiles(self, b: Bound, machine: Any) -> Sequence[tuple[int, ...]]:
        return [(1, min(4, b.heads))]

    def reference(self, b: Bound, operands: Sequence[Any]) -> list[Any]:
        given = operands[0].reshape(b.shares, *b.out[:1], b.heads, b.head_dim + STATE)
        a, m, l = (
            given[..., : b.head_dim],
            given[..., b.head_dim : b.head_dim + 1],
            given[..., b.head_dim + 1 : b.head_dim + 2],
        )
        weight = (m - m.amax(0)).exp()
        return [((weight * a).sum(0) / (weight * l).sum(0)).reshape(b.out)]
