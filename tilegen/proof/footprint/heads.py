"""Of heads and their caches: attention, the sum of its parts, rotary embeddings, appends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilegen.proof.footprint.frame import (
    FIRST,
    LIMIT,
    Access,
    Array,
    Cut,
    Footprint,
    Frame,
    Malformed,
    Op,
    Span,
    View,
    ceil_div,
)

SPLIT_STATE = 8  # columns beside the sums of a head in an attention's partial result


def attention(op: Op) -> Footprint:
    (tq, tk, th), batch, q_len, k_len = (
        op.tiles(3),
        op.integer("batch"),
        op.integer("q_len"),
        op.integer("k_len"),
    )
    heads, kv_heads, d, splits = (
        op.integer("heads"),
        op.integer("kv_heads"),
        op.integer("head_dim"),
        op.integer("splits") if "splits" in op.attributes else 1,
    )
    told, biased = op.flag("lengths") + op.flag("alibi"), "bias" in op.attributes
    forwarded, at = op.flag("forwarded"), 3 + told + biased  # of the position
    over_caches, prefix = len(op.views) > at, op.integer("prefix") if "prefix" in op.attributes else 0
    if heads % kv_heads or heads // kv_heads % th:
        raise Malformed(f"{heads} heads over {kv_heads} kv_heads, {th} a tile, expected multiples")
    if splits > 1 and not over_caches:
        raise Malformed("shares of the keys, but no position, expected a cache")
    if over_caches and (op.flag("lengths") or prefix) or prefix and not op.flag("causal"):
        raise Malformed("lengths or a prefix beside a position, or a prefix where all keys are seen")
    if biased and over_caches:
        raise Malformed("a bias beside a position")
    if forwarded != (len(op.views) > at + 1) or "theta" in op.attributes and not forwarded:
        raise Malformed(
            f"forwarded is {forwarded} with {len(op.views)} operands, expected {at + 3} where new rows"
            f" are forwarded (and may be roped), else {at} or {at + 1}"
        )
    width = d if splits == 1 else d + SPLIT_STATE
    op.target(splits * batch * q_len, heads * width)
    grid = (batch, heads // th, ceil_div(q_len, tq))
    f = op.frame(*grid) if splits == 1 else op.frame(*grid, splits)
    own, head = f.nested(0, 2, tq, q_len), f.coord[1] * th
    base, group = f.coord[0] * k_len, head // (heads // kv_heads)
    reads = f.read(
        op.operand(0, batch * q_len, heads * d), own, f.span(head * d, (head + th) * d, LIMIT), base=FIRST
    )
    spans: list[tuple[Span, Array, int]] = []  # of keys: where their steps begin, and the first step
    if splits == 1:
        length = np.full_like(head, k_len)
        if op.flag("causal") and not over_caches:
            length = np.clip(np.minimum(tq * (f.coord[2] + 1), q_len) + k_len - q_len, 0, k_len)
            length = np.maximum(length, min(prefix, k_len))
        size = tk
        if "block_mask" in op.attributes:
            if over_caches:
                raise Malformed("a block_mask beside a position")
            blocks = _blocks_seen(op, tq, tk)[:, f.coord[2]]
            first, end = f.split_k((blocks >= 0).sum(axis=0))
            for step, start in enumerate(blocks * tk):
                high = np.where((first <= step) & (step < end), np.minimum(start + tk, length), start)
                spans.append((f.span(base + start, base + high, LIMIT), base + start, step))
        else:
            first, end = f.split_k(ceil_div(length, tk))
            spans.append((f.span(base + tk * first, base + np.minimum(tk * end, length), LIMIT), base, 0))
    else:  # which keys a share has is known at run time: it may be any
        spans.append((f.span(base, base + k_len, LIMIT), base, 0))
        size = 1 << 62
        lower = batch * q_len * f.coord[3]
        own = Span(own.low + lower, own.high + lower)
    columns = f.span(group * d, group * d + d, LIMIT)
    before = _cut(op.operand(at, 1), k_len) if forwarded else None
    for index in (1, 2):
        cache = op.operand(index, batch * k_len, kv_heads * d)
        for keys, origin, step in spans:
            cached = f.read(cache, keys, columns, axis=0, origin=origin, size=size, base=step)
            reads += [replace(a, before=before) for a in cached]
        if forwarded:
            rows = f.span(f.coord[0] * q_len, (f.coord[0] + 1) * q_len, LIMIT)
            reads += f.read(op.operand(index + at, batch * q_len, kv_heads * d), rows, columns, base=FIRST)
    if op.flag("lengths"):
        reads += f.read(op.operand(3, batch), f.block(0, 1, batch), base=FIRST)
    if op.flag("alibi"):
        reads += f.read(op.operand(2 + told, heads), f.block(1, th, heads), base=FIRST)
    if biased:
        rows, view = _rows_of_bias(op, f)
        reads += f.read(op.operand(at - 1, view, k_len), rows, f.span(0, k_len, k_len), base=FIRST)
    return f.footprint(reads + f.position(at), own, f.columns(head * width, th * width, LIMIT))


def _rows_of_bias(op: Op, f: Frame) -> tuple[Span, int]:
    """Rows of an attention's bias from the first query of each tile's first head to the last of its last; and
    how many there are."""
    batch, heads, q_len, (tq, _, th) = (
        op.integer("batch"),
        op.integer("heads"),
        op.integer("q_len"),
        op.tiles(3),
    )
    sizes = op.integers("bias", 1)
    if len(sizes) != 3 or batch % sizes[0] or sizes[1] not in (1, heads) or sizes[2] not in (1, q_len):
        raise Malformed(
            f"bias is {list(sizes)}, expected a divisor of {batch}, then 1 or {heads}, then 1 or {q_len}"
        )
    batches, each, queries = sizes
    image = f.coord[0] % batches
    low_head, high_head = (f.coord[1] * th, f.coord[1] * th + th - 1) if each > 1 else (0, 0)
    low, high = (f.coord[2] * tq, np.minimum(f.coord[2] * tq + tq, q_len)) if queries > 1 else (0, 1)
    first = image * each
    return (
        f.span((first + low_head) * queries + low, (first + high_head) * queries + high, LIMIT),
        batches * each * queries,
    )


def _blocks_seen(op: Op, tq: int, tk: int) -> Array:
    """[steps, blocks of tq queries]: the blocks of tk keys of which any of these queries sees any, ascending;
    where there is none, block 0. -1 where a tile has fewer steps."""
    q_len, k_len, (bq, bk) = op.integer("q_len"), op.integer("k_len"), op.pair("block_size", 1)
    given = op.attributes["block_mask"]
    shape = (ceil_div(q_len, bq), ceil_div(k_len, bk))
    rows = given if isinstance(given, (list, tuple)) else ()
    if len(rows) != shape[0] or not all(
        isinstance(row, (list, tuple)) and len(row) == shape[1] and all(type(x) is bool for x in row)
        for row in rows
    ):
        raise Malformed(f"block_mask is no table of {shape[0]} x {shape[1]} of true and false")
    key, found = np.arange(k_len), []
    for start in range(0, q_len, tq):
        seen = np.zeros(k_len, dtype=bool)
        for row in range(start // bq, (min(start + tq, q_len) - 1) // bq + 1):
            queries = max(start, row * bq), min(start + tq, (row + 1) * bq, q_len)
            seen |= np.repeat(np.array(rows[row]), bk)[:k_len] & _let(op, key, *queries)
        found.append(sorted(set((np.flatnonzero(seen) // tk).tolist())) or [0])
    most = max(map(len, found))
    return np.array([blocks + [-1] * (most - len(blocks)) for blocks in found], np.int64).T


def _let(op: Op, key: Array, first: int, end: int) -> NDArray[np.bool_]:
    """Which keys any of the queries first ... end - 1 sees but for a table."""
    if not op.flag("causal"):
        return np.ones(len(key), dtype=bool)
    before = op.integer("k_len") - op.integer("q_len")
    seen = key <= before + end - 1
    if "window" in op.attributes:
        seen &= key > before + first - op.integer("window")
    return seen | (key < op.integer("prefix")) if "prefix" in op.attributes else seen


def combine(op: Op) -> Footprint:
    (tm, th), splits, heads, d = (
        op.tiles(2),
        op.integer("splits"),
        op.integer("heads"),
        op.integer("head_dim"),
    )
    m = op.target(None, heads * d).shape[0]
    f = op.frame(ceil_div(m, tm), ceil_div(heads, th))
    partial = op.operand(0, splits * m, heads * (d + SPLIT_STATE))
    columns = f.block(1, th * (d + SPLIT_STATE), heads * (d + SPLIT_STATE))
    reads: list[Access] = []
    for s in range(splits):
        lines = f.block(0, tm, m)
        reads += f.read(partial, Span(lines.low + s * m, lines.high + s * m), columns, base=s)
    return f.footprint(reads, f.block(0, tm, m), f.columns(th * d * f.coord[1], th * d, heads * d))


def rope(op: Op) -> Footprint:
    (m, n), (tm, th), d = op.target(None, None).shape, op.tiles(2), op.integer("head_dim")
    if n % d:
        raise Malformed(f"{n} columns, expected a multiple of head_dim {d}")
    f = op.frame(ceil_div(m, tm), ceil_div(n // d, th))
    reads = f.once(op.operand(0, m, n), f.block(0, tm, m), f.block(1, th * d, n)) + f.position(1)
    return f.footprint(reads, f.block(0, tm, m), f.columns(th * d * f.coord[1], th * d, n))


def rotary(op: Op) -> Footprint:
    (m, n), (tm, th), d = op.target(None, None).shape, op.tiles(2), op.integer("head_dim")
    if n % d:
        raise Malformed(f"{n} columns, expected a multiple of head_dim {d}")
    r = op.integer("turned") if "turned" in op.attributes else d
    if r % 2 or r > d:
        raise Malformed(f"turns {r} columns of each head, expected an even number of its {d}")
    f = op.frame(ceil_div(m, tm), ceil_div(n // d, th))
    reads = f.once(op.operand(0, m, n), f.block(0, tm, m), f.block(1, th * d, n))
    for index in (1, 2):
        table = op.operand(index, None, r)
        rows = table.shape[0]
        if m % rows:
            raise Malformed(f"{rows} rows of angles for {m} rows, expected a divisor of them")
        reads += f.once(table, f.span(0, rows, rows), f.span(0, r, r))
    return f.footprint(reads, f.block(0, tm, m), f.columns(th * d * f.coord[1], th * d, n))


def _cut(position: View, rows: int) -> Cut:
    return position.tensor, position.offset, rows


def append(op: Op) -> Footprint:
    (tn,), batch, seq, longest, at = (
        op.tiles(1),
        op.integer("batch"),
        op.integer("seq"),
        op.integer("max_len"),
        op.integer("at", -1),
    )
    c = op.target(batch * longest, None).shape[1]
    if op.operand(0, batch * longest, c) != op.result or at + seq > longest:
        raise Malformed(
            f"appends {seq} rows at {at} of {longest} to {op.result.tensor}, expected room for them in"
            " operand 0"
        )
    since = _cut(op.operand(2, 1), longest) if at < 0 else None
    if "theta" in op.attributes and tn % op.integer("head_dim"):
        raise Malformed(
            f"a tile of {tn} columns of heads of {op.integer('head_dim')} that are turned, expected whole"
            " heads"
        )
    f = op.frame(batch, ceil_div(c, tn))
    b, columns = f.coord[0], f.columns(tn * f.coord[1], tn, c)
    start, end = (b * longest, (b + 1) * longest) if at < 0 else (b * longest + at, b * longest + at + seq)
    reads = f.once(
        op.operand(1, batch * seq, c), f.span(b * seq, (b + 1) * seq, LIMIT), f.block(1, tn, c)
    ) + f.position(2)
    return replace(f.footprint(reads, f.span(start, end, LIMIT), columns, exact=at >= 0), since=since)
