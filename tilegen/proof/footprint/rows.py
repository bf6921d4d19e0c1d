"""Of what goes row by row: copies, lookups, reductions, softmax, norms, pointwise maths."""

from __future__ import annotations

import math

import numpy as np

from tilegen.proof.footprint.frame import (
    Array,
    Footprint,
    Malformed,
    Op,
    ceil_div,
)


def cat(op: Op) -> Footprint:
    *lines, n = op.result.shape
    tile = op.tiles(len(lines))
    f = op.frame(*(ceil_div(s, t) for s, t in zip(lines, tile, strict=True)))
    spans = [f.block(d, tile[d], lines[d]) for d in range(len(lines))]
    parts = [op.operand(index, *lines, None) for index in range(len(op.views))]
    if sum(part.shape[-1] for part in parts) != n:
        raise Malformed(f"{n} columns of parts of {[part.shape[-1] for part in parts]}, expected their sum")
    reads = [a for part in parts for a in f.once(part, *spans, f.span(0, part.shape[-1], part.shape[-1]))]
    return f.footprint(reads, *spans, f.columns(0, n, n))


def pad(op: Op) -> Footprint:
    (m, n), (tm,) = op.target(None, None).shape, op.tiles(1)
    x = op.operand(0, m, None)
    if x.shape[1] + op.integer("behind", 0) != n:
        raise Malformed(f"{n} columns of {x.shape[1]} and the zeros behind, expected their sum")
    f = op.frame(ceil_div(m, tm))
    rows = f.block(0, tm, m)
    return f.footprint(f.once(x, rows, f.span(0, x.shape[1], x.shape[1])), rows, f.columns(0, n, n))


def strided_copy(op: Op) -> Footprint:
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


def embedding(op: Op) -> Footprint:
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


def take_along(op: Op) -> Footprint:
    (m, k), (tm, tn) = op.target(None, None).shape, op.tiles(2)
    x, ids = op.operand(0, m, None), op.operand(1, m, k)
    f, n = op.frame(ceil_div(m, tm), ceil_div(k, tn)), x.shape[1]
    lines, columns = f.block(0, tm, m), f.block(1, tn, k)
    reads = f.once(x, lines, f.span(0, n, n)) + f.once(ids, lines, columns)
    return f.footprint(reads, lines, f.columns(tn * f.coord[1], tn, k))


def softmax(op: Op) -> Footprint:
    (tm,), batch, rows = op.tiles(1), op.integer("batch"), op.integer("rows")
    n = op.target(batch * rows, None).shape[1]
    f = op.frame(batch, ceil_div(rows, tm))
    own = f.nested(0, 1, tm, rows)
    seen: Array | int = np.minimum(tm * (f.coord[1] + 1), rows) + n - rows if op.flag("causal") else n
    return f.footprint(
        f.once(op.operand(0, batch * rows, n), own, f.span(0, seen, n)), own, f.columns(0, n, n)
    )


def reduce(op: Op) -> Footprint:
    (m, _), (tm,) = op.target(None, 1).shape, op.tiles(1)
    x = op.operand(0, m, None)
    f = op.frame(ceil_div(m, tm))
    n = x.shape[1]
    return f.footprint(f.once(x, f.block(0, tm, m), f.span(0, n, n)), f.block(0, tm, m), f.columns(0, 1, 1))


def topk(op: Op) -> Footprint:
    (tm,), k = op.tiles(1), op.integer("k")
    m, _ = op.target(None, k).shape
    x = op.operand(0, m, None)
    f, n = op.frame(ceil_div(m, tm)), x.shape[1]
    if k > n:
        raise Malformed(f"k is {k}, expected at most the {n} columns")
    return f.footprint(f.once(x, f.block(0, tm, m), f.span(0, n, n)), f.block(0, tm, m), f.columns(0, k, k))


def norm(op: Op) -> Footprint:
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


def pointwise(op: Op) -> Footprint:
    shape = op.result.shape
    tile = op.tiles(len(shape))
    f = op.frame(*(ceil_div(s, t) for s, t in zip(shape, tile, strict=True)))
    last = len(shape) - 1
    spans = [f.block(d, tile[d], shape[d]) for d in range(last)]
    return f.footprint([], *spans, f.columns(tile[last] * f.coord[last], tile[last], shape[last]))
