"""attention: scaled dot-product attention as one op, whole, or its keys shared out (tilegen.ops.combine)."""

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
    K,
    OpDef,
    OpInstance,
    batch_base,
    blocks,
    ceil_div,
    need,
    register,
    whole,
)
from tilegen.ops.block_mask import KeyBlocks, Rows, checked_mask, fitting, key_blocks
from tilegen.ops.combine import STATE, CombineAttributes
from tilegen.ops.extrema import largest, smallest
from tilegen.ops.heads import head_operand, head_shape, position, rotated
from tilegen.ops.listed import Numbers, entry
from tilegen.ops.masks import (
    BiasSizes,
    added,
    ahead,
    bias_operand,
    bias_rows,
    check_causal,
    check_prefix,
    hidden,
    lengths_operand,
    slopes_operand,
)

FEW = 64  # rows of queries, of all heads of a tile, that one warpgroup of a GPU takes


@dataclass(frozen=True)
class AttentionAttributes(Attributes):
    """batch sequences of q_len queries and k_len keys; heads share kv_heads key heads of head_dim columns.
    splits: of its keys (tilegen.graph.split_kv). forwarded: new keys and values are operands of their own
    (tilegen.graph.forward_kv). theta: queries and new keys are roped on their way. window: of a causal one,
    how many keys a query sees at most; prefix: so many first keys all queries see. cap: scores s become cap ·
    tanh(s / cap). lengths, alibi: whether it has an operand of how many keys each sequence has, and one of
    what scores of each head rise by from key to key. block_mask, block_size: which blocks of keys each block
    of queries sees, and of how many queries and keys these are. bias: of how many batches, heads and queries
    what is added to the scores is; 1 where all have the same, and batches may have it again and again."""

    batch: Size
    q_len: Size
    k_len: Size
    heads: int
    kv_heads: int
    head_dim: Size
    scale: float
    causal: bool
    splits: int | None = None
    forwarded: bool = False
    theta: float | None = None
    window: int | None = None
    cap: float | None = None
    prefix: int | None = None
    lengths: bool = False
    alibi: bool = False
    block_mask: Rows | None = None
    block_size: tuple[int, int] | None = None
    bias: BiasSizes | None = None

    @property
    def masks(self) -> bool:
        """Whether scores and what is seen of them are other than those of causal or full attention."""
        given = (self.window, self.cap, self.prefix, self.block_mask, self.bias)
        return any(n is not None for n in given) or self.lengths or self.alibi

    @property
    def leaves_rows(self) -> bool:
        """Whether a query may see no key at all."""
        return self.lengths or self.block_mask is not None or self.bias is not None

    @property
    def outer(self) -> float:
        """What products q · k are multiplied by before the softmax; where scores are capped, their tanh."""
        return float(self.scale if self.cap is None else self.cap)

    @property
    def inner(self) -> float:
        """What products are multiplied by before their tanh, where scores are capped."""
        return 0.0 if self.cap is None else float(self.scale / self.cap)


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
    window: int | None = None,
    softcap: float | None = None,
    lengths: Value | None = None,
    prefix: int | None = None,
    alibi: Value | None = None,
    block_mask: Sequence[Sequence[bool]] | None = None,
    block_size: int | tuple[int, int] = 128,
    bias: Value | None = None,
    name: str | None = None,
) -> Value:
    """y = softmax(scale · q kᵀ + mask) v, for each head; softmax and sums in float32.

    q (B, Sq, heads·D), k and v (B, Sk, kv_heads·D) or 4-D with the heads apart, of one dtype; y like q. Query
    head h uses key head ⌊h·kv_heads/heads⌋. scale: 1/√D unless given. causal: query i sees keys ≤ i + Sk -
    Sq. at: k and v are caches, filled up to position at + Sq (an int32 input of one element, read on the
    device); then query i sees keys ≤ at + i, which is causal. window: a query sees no more than so many keys,
    the last of those that it would see: those within window - 1 of its own. softcap: scores s = scale · q kᵀ
    become softcap · tanh(s / softcap). alibi: slopes, a float32 weight (heads,); then slopes[h] · (j - i - Sk
    + Sq) is added to the score of query i and key j, over caches slopes[h] · (j - i - at). prefix: a causal
    query sees the first so many keys besides. lengths: an int32 input (B,), not beside at; of sequence b only
    keys j < lengths[b] are seen, of those that all else lets be seen: none where it is negative, all where it
    is above Sk. block_mask: a table of bools, ⌈Sq/bq⌉ rows of ⌈Sk/bk⌉, part of the program, with block_size
    = (bq, bk), or an int for both; not beside at. Query i then sees key j only where
    block_mask[⌊i/bq⌋][⌊j/bk⌋], of those that all else lets be seen. Blocks of keys that it hides from all
    queries of a tile are neither waited for nor loaded; what is hidden inside of a tile is computed and
    dropped, so that it must be finite. bias: of q's dtype or float32, (B or 1, heads or 1, Sq or 1, Sk) or
    the last two or three of these, which is added to the scores after softcap, so that -inf hides a key,
    whose v must be finite; not beside at, nor where Sq or Sk moves. Where it has a divisor of B batches,
    batch b has that at b modulo the divisor.
    A query that sees no key gives 0. What keys hold that all else hides from all queries is of no matter.

    Raises:
        SpecError: heads are not shared evenly by kv_heads, shapes or dtypes do not meet, with causal or at Sk
            < Sq, a window that is no positive int or without either, softcap is not positive, lengths beside
            at, a prefix that is no positive int up to Sk, or not beside causal alone, lengths or slopes of
            another shape or dtype, a block_mask of another shape, beside at or where Sq or Sk moves, a
            block_size that is not of positive ints, or a bias of another shape or dtype, beside at or where
            Sq or Sk moves.

    Source: arXiv 2205.14135 (one pass over the keys), 2305.13245 (shared key heads), 2004.05150 (windows),
    2408.00118 (soft caps), 2108.12409 (ALiBi), 1910.10683 (prefixes), 2412.05496 (FlexAttention, whose
    BlockMask and BLOCK_SIZE block_mask and block_size are).
    """
    where = caller()
    tensors("attention", where, q=q, k=k, v=v)
    kv_heads = heads if kv_heads is None else kv_heads
    batch, q_len, k_len, d = _sizes(q, k, v, heads, kv_heads, where)
    masked = bool(causal) or at is not None
    check_causal(q_len, k_len, bool(causal), at is not None, window, where)
    check_prefix(prefix, bool(causal) and at is None and window is None, k_len, where)
    need(lengths is None or at is None, "attention: lengths are of sequences without caches, given at", where)
    table, size = None, None
    if block_mask is not None:
        table, size = checked_mask(block_mask, block_size, q_len, k_len, at is not None, where)
    more, sizes = None, None
    if bias is not None:
        more, sizes = bias_operand(bias, q.dtype, (batch, heads, q_len), k_len, at is not None, where)
    attributes = AttentionAttributes(
        batch=batch,
        q_len=q_len,
        k_len=k_len,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=d,
        scale=d**-0.5 if scale is None else number("attention: scale", scale, where),
        causal=masked,
        window=window,
        cap=None if softcap is None else number("attention: softcap", softcap, where, positive=True),
        prefix=prefix,
        lengths=lengths is not None,
        alibi=alibi is not None,
        block_mask=table,
        block_size=size,
        bias=sizes,
    )
    operands = [head_operand(q, where), head_operand(k, where), head_operand(v, where)]
    if lengths is not None:
        operands.append(lengths_operand(lengths, batch, where))
    if alibi is not None:
        operands.append(slopes_operand(alibi, heads, where))
    if more is not None:
        operands.append(more)
    if at is not None:
        operands.append(position(at, where))
    return call("attention", name, operands, (batch, q_len, heads * d), q.dtype, "rows", attributes, where)




def _sizes(
    q: Value, k: Value, v: Value, heads: int, kv_heads: int, where: str
) -> tuple[Size, Size, Size, Size]:
    """Batch, queries, keys and columns of a head. SpecError where heads, shapes or dtypes do not meet."""
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
    return batch, q_len, k_len, d


def keys_of_block(rows: int, head_dim: int) -> int:
    """Of a tile of so many rows of queries. One warpgroup's keys and values lie in one stage, which is to be
    no longer than those of products are; of more rows the registers of an SM's math warps hold so many, with
    the sums of a head."""
    if rows <= FEW:
        return 128 // ceil_div(head_dim, 64) // 16 * 16
    return 128 if head_dim <= 128 else 64


def splits(b: OpInstance) -> int:
    """Tiles that share the keys of the same queries; their results are partial ones, for a combine."""
    match b.attributes:
        case AttentionAttributes(splits=int(n)) | CombineAttributes(splits=n):
            return n
    return 1


def over_caches(b: OpInstance) -> bool:
    """Whether keys and values are caches, filled up to a position."""
    return b.has("position")


def counted(b: OpInstance) -> bool:
    """Whether how many keys there are is told at run time: by a position, or by lengths."""
    return over_caches(b) or b.has("lengths")


def halved(b: OpInstance) -> bool:
    """Whether on Hopper the math warpgroups share its tiles' queries, and take half of the keys each."""
    queries, _, heads = b.tile
    return bool(queries * heads <= FEW)


def forwarded(b: OpInstance) -> bool:
    """Whether it is an attention that new keys and values are forwarded to, beside its caches."""
    return isinstance(b.attributes, AttentionAttributes) and b.attributes.forwarded


def roped(b: OpInstance) -> bool:
    """Whether it is an attention that turns its queries and new keys by their position (rope)."""
    return forwarded(b) and AttentionAttributes.of(b).theta is not None


def seen(b: OpInstance) -> Any:
    """Keys that some query of a tile may see, as far as the plan knows: a position is known only at run
    time."""
    a = AttentionAttributes.of(b)
    if not a.causal or over_caches(b):
        return a.k_len
    last = blocks(b.coords[2], b.tile[0], a.q_len).hi + a.k_len - a.q_len
    return last if a.prefix is None else largest(last, smallest(a.prefix, a.k_len))


def taken(b: OpInstance) -> KeyBlocks | None:
    """Which blocks of keys its tiles take, where a block mask says it; else they take those up to the last
    that they see."""
    a = AttentionAttributes.of(b)
    return None if a.block_mask is None else key_blocks(a, b.tile[0], b.tile[1])


def queries(b: OpInstance) -> Box:
    """What a tile reads of q."""
    a = AttentionAttributes.of(b)
    return _rows_of_heads(b, a.head_dim)


def _rows_of_heads(b: OpInstance, width: Any) -> Box:
    """The tile's queries, and its heads of so many columns each."""
    a = AttentionAttributes.of(b)
    n, h, i = b.coords[:3]
    lo = width * b.tile[2] * h
    return (
        blocks(i, b.tile[0], a.q_len, batch_base(n, a.batch, a.q_len)),
        Interval(lo, lo + width * b.tile[2]),
    )


@register
class Attention(OpDef):
    """A tile is tq queries of th heads that share a key head; its steps walk the keys it may see, tk at a
    time, with an online softmax.

    Over caches the keys may be shared out: of the n blocks of tk keys that are there, share s of S takes
    blocks ⌊n·s/S⌋ … ⌊n·(s+1)/S⌋ - 1. It writes, in float32, Σ p v, m and l = Σ p with p = e^(score - m),
    which Combine brings together. How many blocks there are is known at run time only.

    forwarded: rows at … at + q_len - 1 of the caches are operands of their own, not what the caches hold
    there, so that no append is awaited. theta: queries and these keys are turned by their position on their
    way, as rope does.
    """

    name, coords, stem = "attention", ("b", "h", "i"), "attention"
    operands = ("q", "k", "v", "lengths", "slopes", "bias", "position", "new_k", "new_v")
    attributes = AttentionAttributes
    mma = True

    def operands_of(self, b: OpInstance) -> tuple[str, ...]:
        a = AttentionAttributes.of(b)
        told = (("lengths", a.lengths), ("slopes", a.alibi), ("bias", a.bias is not None))
        without = {name for name, there in told if not there}
        return tuple(name for name in self.operands if name not in without)

    def coords_of(self, b: OpInstance) -> tuple[str, ...]:
        return (*self.coords, "s") if splits(b) > 1 else self.coords

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        a = AttentionAttributes.of(b)
        grid = (a.batch, a.heads // b.tile[2], ceil_div(a.q_len, b.tile[0]))
        return (*grid, splits(b)) if splits(b) > 1 else grid

    def steps(self, b: OpInstance) -> Any:
        blocks_taken = taken(b)
        if blocks_taken:
            return entry(blocks_taken.steps(b.op.name), b.coords[2])
        return ceil_div(ceil_div(seen(b), b.tile[1]), splits(b))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = AttentionAttributes.of(b)
        n, h, _ = b.coords[:3]
        tk, tiles_of_group = b.tile[1], a.heads // a.kv_heads // b.tile[2]
        d, last = a.head_dim, seen(b)
        g = sp.floor(h / sp.Integer(tiles_of_group)) if tiles_of_group > 1 else h
        base = batch_base(n, a.batch, a.k_len)
        lo = tk * self._block(b)
        hi = smallest(lo + tk, last) if not (isinstance(last, int) and last % tk == 0) else lo + tk
        if splits(b) > 1:
            lo, hi = sp.Integer(0), sp.sympify(a.k_len)
        keys = Interval(sp.expand(base + lo), sp.expand(base + hi))
        head = Interval(sp.expand(d * g), sp.expand(d * g + d))
        exact = splits(b) == 1
        reads = [
            Access(0, queries(b), "first"),
            *(Access(n, (keys, head), exact=exact, before=forwarded(b)) for n in (1, 2)),
        ]
        if b.has("lengths"):
            reads.append(Access(b.index("lengths"), (blocks(n, 1, a.batch),), "first"))
        if b.has("slopes"):
            reads.append(Access(b.index("slopes"), (blocks(h, b.tile[2], a.heads),), "first"))
        if a.bias is not None:
            rows, exact = bias_rows(b, a.bias)
            reads.append(Access(b.index("bias"), (rows, whole(a.k_len)), "first", exact))
        if over_caches(b):
            reads.append(Access(b.index("position"), (Interval(sp.Integer(0), sp.Integer(1)),), "first"))
        if forwarded(b):
            first = batch_base(n, a.batch, a.q_len)
            rows = Interval(sp.sympify(first), sp.sympify(first + a.q_len))
            reads += [Access(b.index(name), (rows, head), "first") for name in ("new_k", "new_v")]
        return tuple(reads)

    def _block(self, b: OpInstance) -> Any:
        """Which block of keys a step is of."""
        blocks_taken = taken(b)
        return entry(blocks_taken.keys(b.op.name), b.coords[2] * blocks_taken.most + K) if blocks_taken else K

    def numbers(self, b: OpInstance) -> tuple[Numbers, ...]:
        blocks_taken = taken(b)
        if blocks_taken is None:
            return ()
        name = b.op.name
        inside = (blocks_taken.parts(name), blocks_taken.bits(name)) if blocks_taken.masks else ()
        return (blocks_taken.steps(name), blocks_taken.keys(name), *inside)

    def row_coords(self, b: OpInstance) -> Sequence[int]:
        return (0, 2)

    def grows(self, b: OpInstance) -> bool:
        return AttentionAttributes.of(b).causal and not over_caches(b)

    def runtime_read(
        self, b: OpInstance, tensor: str, box: tuple[tuple[int, int, int], ...], position: int
    ) -> tuple[tuple[int, int, int], ...]:
        a = AttentionAttributes.of(b)
        if not forwarded(b) or tensor not in {o.tensor for o in b.op.operands[1:3]}:
            return box
        (lo, hi, stride), columns = box
        return ((lo, max(lo, min(hi, lo // a.k_len * a.k_len + position)), stride), columns)

    def write(self, b: OpInstance) -> Box:
        a = AttentionAttributes.of(b)
        if splits(b) == 1:
            return queries(b)
        rows, columns = _rows_of_heads(b, a.head_dim + STATE)
        return (rows.shifted(b.coords[3] * a.batch * a.q_len), columns)

    def flops(self, b: OpInstance) -> float:
        a = AttentionAttributes.of(b)
        keys = a.k_len if not a.causal else max(1, a.k_len - a.q_len // 2)
        keys = keys if a.window is None or not isinstance(keys, int) else min(keys, a.window)
        if a.block_mask is not None:
            keys = keys * sum(map(sum, a.block_mask)) / (len(a.block_mask) * len(a.block_mask[0]))
        return 4.0 * b.tile[0] * b.tile[2] * keys * a.head_dim / splits(b)

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        a = AttentionAttributes.of(b)
        q = a.q_len if isinstance(a.q_len, int) else 4096
        group, d = a.heads // a.kv_heads, a.head_dim if isinstance(a.head_dim, int) else 128
        if q * group <= FEW:  # tensor cores take 64 rows at a time: heads that share keys fill them
            return [(q, fitting(a, max(32, 96 // ceil_div(d, 64))), group)]
        return [(min(128, q), fitting(a, keys_of_block(q, d)), 1)]

    def inner_sizes(self, given: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...]:
        """Several heads only where all their rows fit a GPU's tile."""
        fits = given and isinstance(given[0], int) and given[0] * usual[2] <= 2 * FEW
        return usual if fits else (*usual[:2], 1)

    def check_tile(self, b: OpInstance, tile: tuple[int, ...]) -> str:
        a = AttentionAttributes.of(b)
        group = a.heads // a.kv_heads
        return (
            ""
            if group % tile[2] == 0
            else f"{tile[2]} heads a tile, but {group} share a key head: expected a divisor of {group}"
        )

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = AttentionAttributes.of(b)
        import torch

        d, group = a.head_dim, a.heads // a.kv_heads
        given = self._with_forwarded(b, operands) if forwarded(b) else operands[:3]
        q = given[0].reshape(a.batch, a.q_len, a.heads, d).transpose(1, 2)
        k, v = (
            t.reshape(a.batch, a.k_len, a.kv_heads, d).transpose(1, 2).repeat_interleave(group, dim=1)
            for t in given[1:]
        )
        scores = q @ k.mT * a.scale
        if a.cap is not None:
            scores = a.cap * (scores / a.cap).tanh()
        first = operands[b.index("position")] if over_caches(b) else a.k_len - a.q_len
        if a.alibi:
            slopes = operands[b.index("slopes")][:, None, None]
            scores = scores + slopes * ahead(a.q_len, a.k_len, first, scores.device)
        if a.bias is not None:
            scores = scores + added(operands[b.index("bias")], a.bias, a.batch)
        lengths = operands[b.index("lengths")] if a.lengths else None
        unseen = hidden(a, first, lengths, scores.device)
        if unseen is not None:
            scores = scores.masked_fill(unseen, float("-inf"))
            v = v.masked_fill(unseen.all(-2)[..., None], 0.0)  # keys nobody sees may hold anything
        if splits(b) == 1:
            if a.leaves_rows:  # 0 before, too: else their gradients were none
                none = (scores == -torch.inf).all(-1, keepdim=True)
                p = scores.masked_fill(none, 0.0).softmax(-1).masked_fill(none, 0.0)
            else:
                p = scores.softmax(-1)
            return [(p @ v).transpose(1, 2).reshape(b.out)]
        return [torch.stack([self._share(b, scores, v, first, s) for s in range(splits(b))]).reshape(b.out)]

    def _with_forwarded(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        """Queries and whole caches of an attention that new rows are forwarded to."""
        a = AttentionAttributes.of(b)
        import torch

        q, k, v, at, new_k, new_v = (
            operands[b.index(name)] for name in ("q", "k", "v", "position", "new_k", "new_v")
        )
        if a.theta is not None:
            q, new_k = (rotated(x, a.head_dim, a.q_len, at, a.theta) for x in (q, new_k))
        whole = []
        for cache, new in ((k, new_k), (v, new_v)):
            rows = cache.reshape(a.batch, a.k_len, -1)
            new = new.reshape(a.batch, a.q_len, -1)
            whole.append(torch.cat((rows[:, :at], new, rows[:, at + a.q_len :]), dim=1).reshape(cache.shape))
        return [q, *whole]

    def _share(self, b: OpInstance, scores: Any, v: Any, first: int, s: int) -> Any:
        """[batch, q_len, heads, D + STATE]: what split s of the keys makes of the scores."""
        a = AttentionAttributes.of(b)
        import torch

        tq, tk, _ = b.tile
        mine = torch.zeros(a.q_len, a.k_len, dtype=torch.bool, device=scores.device)
        for i in range(0, a.q_len, tq):
            end = -(-min(first + min(i + tq, a.q_len), a.k_len) // tk)  # of the blocks that the tile sees
            begin = 0 if a.window is None else max(0, first + i - a.window + 1) // tk
            mine_of = [begin + (end - begin) * n // splits(b) for n in (s, s + 1)]
            mine[i : i + tq, mine_of[0] * tk : mine_of[1] * tk] = True
        scores = scores.masked_fill(~mine, float("-inf"))
        m = scores.amax(-1, keepdim=True)
        p = (scores - m.nan_to_num(neginf=0.0)).exp()
        room = m.new_zeros(*m.shape[:-1], STATE - 2)
        return torch.cat((p @ v, m, p.sum(-1, keepdim=True), room), dim=-1).transpose(1, 2)
