"""Of what slides over images or fills them: convolutions, pools, upsampling, group norms."""

from __future__ import annotations

import numpy as np

from tilegen.proof.footprint.frame import (
    Access,
    Array,
    Footprint,
    Frame,
    Malformed,
    Op,
    Span,
    ceil_div,
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


def conv2d(op: Op) -> Footprint:
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


def grouped_conv2d(op: Op) -> Footprint:
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


def conv_transpose2d(op: Op) -> Footprint:
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


def pool2d(op: Op) -> Footprint:
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


def global_avg_pool(op: Op) -> Footprint:
    (images, c), (tb, tc) = op.target(None, None).shape, op.tiles(2)
    x = op.operand(0, images, None, None, c)
    f = op.frame(ceil_div(images, tb), ceil_div(c, tc))
    _, height, width, _ = x.shape
    reads = f.once(
        x, f.block(0, tb, images), f.span(0, height, height), f.span(0, width, width), f.block(1, tc, c)
    )
    return f.footprint(reads, f.block(0, tb, images), f.columns(tc * f.coord[1], tc, c))


def upsample(op: Op) -> Footprint:
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


def group_norm(op: Op) -> Footprint:
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
