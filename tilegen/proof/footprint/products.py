"""Of products of rows: linears, of patches of images too, and matmuls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilegen.proof.footprint.frame import (
    FIRST,
    LIMIT,
    Access,
    Array,
    Footprint,
    Malformed,
    Op,
    Span,
    View,
    ceil_div,
)


def linear(op: Op) -> Footprint:
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


def matmul(op: Op) -> Footprint:
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
