"""What each CTA of a tile reads and writes, worked out anew from the ops of a plan: kind, attributes,
operands, tile, cluster.

This is the proof's own reading of docs/plan-format.md. It shares nothing with the planner, so that a slip
there (a forgotten halo, a second row block) does not hide itself here. All tiles of an op are worked out at
once, one array row per CTA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilegen.proof.footprint_frame import (
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


def _linear(op: Op) -> Footprint:
    (m, n), (tm, tn, tk), groups = op.target(None, None).shape, op.tiles(3), op.integer("groups")
    patches = _patches(op, m)
    x = op.operand(0, None if patches else m, None)
    w = op.operand(1, groups * n, None if patches else x.shape[1])
    k = w.shape[1]
    k0, k1 = op.pair("k_range") if "k_range" in op.attributes else (0, k)
    if not k0 < k1 <= k:
        raise Malformed(f"k_range is [{k0}, {k1}], expected a range of [0, {k}]")
    f = op.frame(ceil_div(m, tm), ceil_div(n, tn))
    first, end = f.split_k(ceil_div(k1 - k0, tk))
    depth, start = f.span(k0 + tk * first, k0 + tk * end, k1), tn * f.coord[1]
    if patches:
        reads = f.read(x, patches.images_of(f.block(0, tm, m)), f.span(0, x.shape[1], x.shape[1]))
    else:
        reads = f.read(x, f.block(0, tm, m), depth, axis=1, origin=k0, size=tk)
    for g in range(groups):
        reads += f.read(
            w, f.span(g * n + start, g * n + start + tn, (g + 1) * n), depth, axis=1, origin=k0, size=tk
        )
    if "norm_eps" in op.attributes:
        if (k0, k1) != (0, k) or op.cluster > 1:
            raise Malformed(
                f"norm_eps with k_range [{k0}, {k1}] of {k} and {op.cluster} CTAs, expected whole rows in one"
                " CTA"
            )
        reads += f.read(op.operand(2, k), f.span(0, k, k), base=FIRST)
    return f.footprint(reads, f.lines(tm * f.coord[0], tm, m), f.columns(start, tn, n))


@dataclass(frozen=True)
class _Patches:
    """How many patches an image has, a row of the result each, and how many pixels."""

    rows: int
    pixels: int

    def images_of(self, rows: Span) -> Span:
        """All pixels of the images that these rows of the result belong to."""
        last = (rows.high - 1) // self.rows
        return Span(rows.low // self.rows * self.pixels, (last + 1) * self.pixels)


def _patches(op: Op, m: int) -> _Patches | None:
    """None where each row of the result is made of the same row of x alone."""
    if op.images is None:
        return None
    (images, *size, _), (_, *window, channels) = op.images
    c = op.operand(0, None, None).shape[1]  # of the view, where x is one
    stride, padding, dilation = (
        op.pair(key, least) if key in op.attributes else (usual, usual)
        for key, least, usual in (("stride", 1, 1), ("padding", 0, 0), ("dilation", 1, 1))
    )
    p, q = (
        (n + 2 * pad - d * (r - 1) - 1) // s + 1
        for n, r, s, pad, d in zip(size, window, stride, padding, dilation, strict=True)
    )
    if (c, m) != (channels, images * p * q):
        raise Malformed(
            f"{m} rows of {images} images of {size[0]} x {size[1]} x {c}, filters of {window[0]} x"
            f" {window[1]} x {channels}: expected {images} x {p} x {q} rows, and the same channels"
        )
    if (*window, *stride, *padding) == (1, 1, 1, 1, 0, 0):
        return None
    return _Patches(p * q, size[0] * size[1])


def _matmul(op: Op) -> Footprint:
    (tm, tn, tk), batch, right_batch = op.tiles(3), op.integer("batch"), op.integer("b_batch")
    m, n, k, ta, tb = (
        op.integer("m"),
        op.integer("n"),
        op.integer("k"),
        op.flag("transpose_a"),
        op.flag("transpose_b"),
    )
    if right_batch not in (1, batch):
        raise Malformed(f"b_batch is {right_batch}, expected 1 or {batch}")
    a = op.operand(0, *((batch * k, m) if ta else (batch * m, k)))
    c = op.operand(1, *((right_batch * n, k) if tb else (right_batch * k, n)))
    op.target(batch * m, n)
    f = op.frame(batch, ceil_div(m, tm), ceil_div(n, tn))
    first, end = f.split_k(ceil_div(k, tk))
    b = f.coord[0]
    own = b if right_batch == batch else 0 * b

    def depth(base: Array | int) -> Span:
        return f.span(base + tk * first, base + np.minimum(tk * end, k), LIMIT)

    def read(view: View, outer: Array, length: int, rows: bool, block: Span) -> list[Access]:
        """An operand whose summed dimension is its rows (of its batch) or its columns."""
        if rows:
            return f.read(view, depth(outer * k), block, axis=0, origin=outer * k, size=tk)
        return f.read(
            view, Span(outer * length + block.low, outer * length + block.high), depth(0), axis=1, size=tk
        )

    reads = read(a, b, m, ta, f.block(1, tm, m)) + read(c, own, n, not tb, f.block(2, tn, n))
    return f.footprint(
        reads, f.lines(b * m + tm * f.coord[1], tm, (b + 1) * m), f.columns(tn * f.coord[2], tn, n)
    )


def _windows(
    f: Frame, axis: int, size: int, outputs: int, inputs: int, window: tuple[int, int, int, int]
) -> list[Span]:
    """Input rows under a block of output rows, as one progression per piece; window: filter rows, stride,
    dilation, padding."""
    taps, stride, dilation, padding = window
    if min(size, outputs) * taps > 1 << 18:
        raise Malformed(f"a tile of {size} output rows under {taps} filter rows is too large to check")
    table = []
    for start in range(0, outputs, size):
        outs = np.arange(start, min(start + size, outputs), dtype=np.int64)
        rows = np.unique(outs[:, None] * stride + np.arange(taps) * dilation - padding)
        table.append(_progressions(rows[(rows >= 0) & (rows < inputs)]))
    pieces = max(map(len, table), default=0)
    padded = np.array([t + [(0, 0, 1)] * (pieces - len(t)) for t in table], np.int64).reshape(
        len(table), pieces, 3
    )[f.coord[axis]]
    return [Span(padded[:, p, 0], padded[:, p, 1], padded[:, p, 2]) for p in range(pieces)]


def _progressions(points: Array) -> list[tuple[int, int, int]]:
    """Sorted points as [low, high) by stride: one progression where they are one, else the runs of
    neighbours."""
    if len(points) == 0:
        return []
    gaps = np.diff(points)
    if len(points) == 1 or (gaps == gaps[0]).all():
        return [(int(points[0]), int(points[-1]) + 1, int(gaps[0]) if len(gaps) else 1)]
    runs = np.split(points, np.flatnonzero(gaps > 1) + 1)
    return [(int(r[0]), int(r[-1]) + 1, 1) for r in runs]


def _conv2d(op: Op) -> Footprint:
    (images, p, q, n), (tb, th, tw, tn, tc) = op.target(None, None, None, None).shape, op.tiles(5)
    x = op.operand(0, images, None, None, None)
    _, height, width, c = x.shape
    w = op.operand(1, n, None, None, c)
    _, r, s, _ = w.shape
    (sh, sw), (ph, pw), (dh, dw) = op.pair("stride", 1), op.pair("padding"), op.pair("dilation", 1)
    f = op.frame(ceil_div(images, tb), ceil_div(p, th), ceil_div(q, tw), ceil_div(n, tn))
    first, end = f.split_k(ceil_div(c, tc))
    depth = f.span(tc * first, tc * end, c)
    reads = f.read(w, f.block(3, tn, n), f.span(0, r, r), f.span(0, s, s), depth, axis=3, size=tc)
    for rows in _windows(f, 1, th, p, height, (r, sh, dh, ph)):
        for columns in _windows(f, 2, tw, q, width, (s, sw, dw, pw)):
            reads += f.read(x, f.block(0, tb, images), rows, columns, depth, axis=3, size=tc)
    return f.footprint(
        reads, f.block(0, tb, images), f.block(1, th, p), f.block(2, tw, q), f.columns(tn * f.coord[3], tn, n)
    )


def _grouped_conv2d(op: Op) -> Footprint:
    (images, p, q, n), (tb, th, tw, tg) = op.target(None, None, None, None).shape, op.tiles(4)
    x, groups = op.operand(0, images, None, None, None), op.integer("groups")
    _, height, width, c = x.shape
    if groups < 2 or c % groups or n % groups:
        raise Malformed(f"{groups} groups of {c} channels and {n} filters, expected a divisor of both")
    w = op.operand(1, n, None, None, c // groups)
    _, r, s, depth = w.shape
    (sh, sw), (ph, pw), (dh, dw) = op.pair("stride", 1), op.pair("padding"), op.pair("dilation", 1)
    f = op.frame(ceil_div(images, tb), ceil_div(p, th), ceil_div(q, tw), ceil_div(groups, tg))
    filters, channels = f.block(3, tg * (n // groups), n), f.block(3, tg * depth, c)
    reads = f.once(w, filters, f.span(0, r, r), f.span(0, s, s), f.span(0, depth, depth))
    for rows in _windows(f, 1, th, p, height, (r, sh, dh, ph)):
        for columns in _windows(f, 2, tw, q, width, (s, sw, dw, pw)):
            reads += f.once(x, f.block(0, tb, images), rows, columns, channels)
    lines = [f.block(0, tb, images), f.block(1, th, p), f.block(2, tw, q)]
    wide = tg * (n // groups)
    return f.footprint(reads, *lines, f.columns(wide * f.coord[3], wide, n))


def _conv_transpose2d(op: Op) -> Footprint:
    (images, p, q, n), (tb, th, tw, tn) = op.target(None, None, None, None).shape, op.tiles(4)
    x = op.operand(0, images, None, None, None)
    _, height, width, c = x.shape
    w = op.operand(1, n, None, None, c)
    _, r, s, _ = w.shape
    (sh, sw), (ph, pw), (dh, dw) = op.pair("stride", 1), op.pair("padding"), op.pair("dilation", 1)
    more = op.pair("output_padding")
    wanted = [
        (size - 1) * step + gap * (taps - 1) - 2 * before + behind + 1
        for size, step, gap, taps, before, behind in (
            (height, sh, dh, r, ph, more[0]),
            (width, sw, dw, s, pw, more[1]),
        )
    ]
    if wanted != [p, q]:
        raise Malformed(f"the result has {p} x {q} pixels, expected {wanted[0]} x {wanted[1]}")
    f = op.frame(ceil_div(images, tb), ceil_div(p, th), ceil_div(q, tw), ceil_div(n, tn))
    rows, columns = (
        _sources(f, 1, th, p, height, (r, sh, dh, ph)),
        _sources(f, 2, tw, q, width, (s, sw, dw, pw)),
    )
    lines = [f.block(0, tb, images), f.block(1, th, p), f.block(2, tw, q)]
    reads = f.once(w, f.block(3, tn, n), f.span(0, r, r), f.span(0, s, s), f.span(0, c, c))
    reads += f.once(x, f.block(0, tb, images), rows, columns, f.span(0, c, c))
    return f.footprint(reads, *lines, f.columns(tn * f.coord[3], tn, n))


def _sources(
    f: Frame, axis: int, size: int, outputs: int, inputs: int, window: tuple[int, int, int, int]
) -> Span:
    """Input rows from whose first output row to whose last one lies any of a block; window: as _windows has
    it."""
    taps, stride, dilation, padding = window
    if inputs > 1 << 24:
        raise Malformed(f"{inputs} input rows are too many to check")
    first = np.arange(inputs, dtype=np.int64) * stride - padding
    block = f.block(axis, size, outputs)
    low = np.searchsorted(first + (taps - 1) * dilation, block.low, "left")
    return Span(low, np.searchsorted(first, block.high, "left"))


def _pool2d(op: Op) -> Footprint:
    (images, p, q, c), (tb, th, tw, tc) = op.target(None, None, None, None).shape, op.tiles(4)
    x = op.operand(0, images, None, None, c)
    (r, s), (sh, sw), (ph, pw) = op.pair("window", 1), op.pair("stride", 1), op.pair("padding")
    f = op.frame(ceil_div(images, tb), ceil_div(p, th), ceil_div(q, tw), ceil_div(c, tc))
    reads: list[Access] = []
    for rows in _windows(f, 1, th, p, x.shape[1], (r, sh, 1, ph)):
        for columns in _windows(f, 2, tw, q, x.shape[2], (s, sw, 1, pw)):
            reads += f.once(x, f.block(0, tb, images), rows, columns, f.block(3, tc, c))
    return f.footprint(
        reads, f.block(0, tb, images), f.block(1, th, p), f.block(2, tw, q), f.columns(tc * f.coord[3], tc, c)
    )


def _global_avg_pool(op: Op) -> Footprint:
    (images, c), (tb, tc) = op.target(None, None).shape, op.tiles(2)
    x = op.operand(0, images, None, None, c)
    f = op.frame(ceil_div(images, tb), ceil_div(c, tc))
    _, height, width, _ = x.shape
    reads = f.once(
        x, f.block(0, tb, images), f.span(0, height, height), f.span(0, width, width), f.block(1, tc, c)
    )
    return f.footprint(reads, f.block(0, tb, images), f.columns(tc * f.coord[1], tc, c))


def _upsample(op: Op) -> Footprint:
    (images, p, q, c), tile, (f, g) = (
        op.target(None, None, None, None).shape,
        op.tiles(4),
        op.pair("factor", 1),
    )
    x = op.operand(0, images, p // f, q // g, c)
    if (p % f, q % g) != (0, 0):
        raise Malformed(f"{p} x {q} pixels, expected multiples of {f} and {g}")
    frame = op.frame(*(ceil_div(n, t) for n, t in zip(x.shape, tile, strict=True)))
    reads = frame.once(x, *(frame.block(d, tile[d], x.shape[d]) for d in range(4)))
    lines = [frame.block(0, tile[0], images), frame.block(1, tile[1] * f, p), frame.block(2, tile[2] * g, q)]
    return frame.footprint(reads, *lines, frame.columns(tile[3] * frame.coord[3], tile[3], c))


def _group_norm(op: Op) -> Footprint:
    (images, h, w, c), (tg,), groups = (
        op.target(None, None, None, None).shape,
        op.tiles(1),
        op.integer("groups"),
    )
    if groups < 1 or c % groups:
        raise Malformed(f"{groups} groups of {c} channels, expected a divisor")
    x, width = op.operand(0, images, h, w, c), tg * (c // groups)
    f = op.frame(images, ceil_div(groups, tg))
    lines = [f.block(0, 1, images), f.span(0, h, h), f.span(0, w, w)]
    channels = f.block(1, width, c)
    reads = f.once(x, *lines, channels)
    for index in (1, 2):
        reads += f.once(op.operand(index, c), channels)
    return f.footprint(reads, *lines, f.columns(width * f.coord[1], width, c))


def _cat(op: Op) -> Footprint:
    *lines, n = op.result.shape
    tile = op.tiles(len(lines))
    f = op.frame(*(ceil_div(s, t) for s, t in zip(lines, tile, strict=True)))
    spans = [f.block(d, tile[d], lines[d]) for d in range(len(lines))]
    parts = [op.operand(index, *lines, None) for index in range(len(op.views))]
    if sum(part.shape[-1] for part in parts) != n:
        raise Malformed(f"{n} columns of parts of {[part.shape[-1] for part in parts]}, expected their sum")
    reads = [a for part in parts for a in f.once(part, *spans, f.span(0, part.shape[-1], part.shape[-1]))]
    return f.footprint(reads, *spans, f.columns(0, n, n))


def _strided_copy(op: Op) -> Footprint:
    x, shape, tile = op.views[0], op.result.shape, op.tiles(len(op.result.shape))
    sizes, strides = op.integers("sizes", 1), op.integers("strides", 0)
    count, (height, *rest) = math.prod(sizes), x.shape
    last = op.integer("offset", 0) + sum((n - 1) * s for n, s in zip(sizes, strides, strict=False))
    if (
        len(sizes) != len(strides)
        or count != math.prod(shape)
        or last >= math.prod(x.shape)
        or x.shape != x.full
    ):
        raise Malformed(
            f"places {list(sizes)} by {list(strides)} for {list(shape)} of {list(x.shape)}, expected as many"
            " strides as sizes, a place for each element, all inside a whole tensor"
        )
    f, line, pitch = op.frame(*map(ceil_div, shape, tile)), math.prod(shape[1:]), math.prod(rest)
    rows = f.block(0, tile[0], shape[0])
    outermost = count // sizes[0]  # elements of the result at each of the outermost places
    low, high = (place // outermost for place in (rows.low * line, rows.high * line - 1))
    start = op.integer("offset", 0) + low * strides[0]
    end = last - (sizes[0] - 1 - high) * strides[0]  # the last element at the last of these places
    read = f.once(x, f.span(start // pitch, end // pitch + 1, height), *(f.span(0, n, n) for n in rest))
    columns = f.columns(tile[-1] * f.coord[-1], tile[-1], shape[-1])
    lines = [f.block(d, tile[d], shape[d]) for d in range(len(shape) - 1)]
    return f.footprint(read, *lines, columns)


def _embedding(op: Op) -> Footprint:
    (m, n), (tm, tn) = op.target(None, None).shape, op.tiles(2)
    table, listed = op.operand(1, None, n), len(op.views[0].shape) == 1
    f, rows = op.frame(ceil_div(m, tm), ceil_div(n, tn)), table.shape[0]
    lines, columns = f.block(0, tm, m), f.block(1, tn, n)
    if listed:
        reads = f.once(op.operand(0, m), lines)
    else:  # k ids in each row of what another op makes
        ids = op.operand(0, None, None)
        of, k = ids.shape
        if of * k != m:
            raise Malformed(f"{of} rows of {k} ids for {m} rows, expected as many")
        reads = f.once(ids, f.span(lines.low // k, ceil_div(lines.high, k), of), f.span(0, k, k))
    reads += f.once(table, f.span(0, rows, rows), columns)
    return f.footprint(reads, lines, f.columns(tn * f.coord[1], tn, n))


def _take_along(op: Op) -> Footprint:
    (m, k), (tm, tn) = op.target(None, None).shape, op.tiles(2)
    x, ids = op.operand(0, m, None), op.operand(1, m, k)
    f, n = op.frame(ceil_div(m, tm), ceil_div(k, tn)), x.shape[1]
    lines, columns = f.block(0, tm, m), f.block(1, tn, k)
    reads = f.once(x, lines, f.span(0, n, n)) + f.once(ids, lines, columns)
    return f.footprint(reads, lines, f.columns(tn * f.coord[1], tn, k))


def _softmax(op: Op) -> Footprint:
    (tm,), batch, rows = op.tiles(1), op.integer("batch"), op.integer("rows")
    n = op.target(batch * rows, None).shape[1]
    f = op.frame(batch, ceil_div(rows, tm))
    own = f.nested(0, 1, tm, rows)
    seen: Array | int = np.minimum(tm * (f.coord[1] + 1), rows) + n - rows if op.flag("causal") else n
    return f.footprint(
        f.once(op.operand(0, batch * rows, n), own, f.span(0, seen, n)), own, f.columns(0, n, n)
    )


def _attention(op: Op) -> Footprint:
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


def _combine(op: Op) -> Footprint:
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


def _reduce(op: Op) -> Footprint:
    (m, _), (tm,) = op.target(None, 1).shape, op.tiles(1)
    x = op.operand(0, m, None)
    f = op.frame(ceil_div(m, tm))
    n = x.shape[1]
    return f.footprint(f.once(x, f.block(0, tm, m), f.span(0, n, n)), f.block(0, tm, m), f.columns(0, 1, 1))


def _topk(op: Op) -> Footprint:
    (tm,), k = op.tiles(1), op.integer("k")
    m, _ = op.target(None, k).shape
    x = op.operand(0, m, None)
    f, n = op.frame(ceil_div(m, tm)), x.shape[1]
    if k > n:
        raise Malformed(f"k is {k}, expected at most the {n} columns")
    return f.footprint(f.once(x, f.block(0, tm, m), f.span(0, n, n)), f.block(0, tm, m), f.columns(0, k, k))


def _norm(op: Op) -> Footprint:
    (tm,), shape = op.tiles(1), op.result.shape
    if len(shape) == 4:  # lines of an image
        images, lines, pixels, n = op.target(None, None, None, None).shape
        f = op.frame(images, ceil_div(lines, tm))
        rows = [f.block(0, 1, images), f.block(1, tm, lines), f.span(0, pixels, pixels)]
    else:
        m, n = op.target(None, None).shape
        f = op.frame(ceil_div(m, tm))
        rows = [f.block(0, tm, m)]
    reads = f.once(op.operand(0, *shape), *rows, f.span(0, n, n))
    for index in (1, 2) if op.kind == "layer_norm" else (1,):
        reads += f.once(op.operand(index, n), f.span(0, n, n))
    return f.footprint(reads, *rows, f.columns(0, n, n))


def _rope(op: Op) -> Footprint:
    (m, n), (tm, th), d = op.target(None, None).shape, op.tiles(2), op.integer("head_dim")
    if n % d:
        raise Malformed(f"{n} columns, expected a multiple of head_dim {d}")
    f = op.frame(ceil_div(m, tm), ceil_div(n // d, th))
    reads = f.once(op.operand(0, m, n), f.block(0, tm, m), f.block(1, th * d, n)) + f.position(1)
    return f.footprint(reads, f.block(0, tm, m), f.columns(th * d * f.coord[1], th * d, n))


def _rotary(op: Op) -> Footprint:
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


def _append(op: Op) -> Footprint:
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


def _pointwise(op: Op) -> Footprint:
    shape = op.result.shape
    tile = op.tiles(len(shape))
    f = op.frame(*(ceil_div(s, t) for s, t in zip(shape, tile, strict=True)))
    last = len(shape) - 1
    spans = [f.block(d, tile[d], shape[d]) for d in range(last)]
    return f.footprint([], *spans, f.columns(tile[last] * f.coord[last], tile[last], shape[last]))


KINDS: dict[str, Callable[[Op], Footprint]] = {
    "linear": _linear,
    "matmul": _matmul,
    "conv2d": _conv2d,
    "grouped_conv2d": _grouped_conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": _pool2d,
    "avg_pool2d": _pool2d,
    "global_avg_pool": _global_avg_pool,
    "upsample": _upsample,
    "group_norm": _group_norm,
    "cat": _cat,
    "strided_copy": _strided_copy,
    "embedding": _embedding,
    "take_along": _take_along,
    "softmax": _softmax,
    "attention": _attention,
    "combine": _combine,
    "reduce": _reduce,
    "topk": _topk,
    "rms_norm": _norm,
    "layer_norm": _norm,
    "rope": _rope,
    "rotary": _rotary,
    "append": _append,
    "pointwise": _pointwise,
}


def derive(op: Op) -> Footprint:
    """Reads and writes of every CTA of the op's listed tiles, in plan order."""
    return KINDS[op.kind](op)
