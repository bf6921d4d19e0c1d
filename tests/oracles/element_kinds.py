"""The kinds of docs/plan-format.md, one element at a time: what a tile reads in each step and what it
writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

Index = tuple[int, ...]
Element = tuple[str, Index]  # tensor, index
Read = tuple[int | None, int, Index]  # step (None: before the first), operand, index in its view


@dataclass(frozen=True)
class Work:
    """All elements that one part reads and writes."""

    reads: frozenset[Element]
    writes: frozenset[Element]


@dataclass(frozen=True)
class Tile:
    """One tile of an op: its steps, reads by step, the elements of the result, and the columns [first, first
    + width) it is given."""

    steps: int
    reads: Sequence[Read]
    writes: Sequence[Index]
    first: int
    width: int


Shapes = dict[int | str, list[int]]


def _block(index: int, size: int, limit: int) -> range:
    return range(index * size, min(index * size + size, limit))


def _step(total: int, size: int) -> Iterator[tuple[int, int]]:
    """(step, position) for each position of a dimension walked in steps of `size`."""
    return ((position // size, position) for position in range(total))


def _quotient(a: int, b: int) -> int:
    return (a + b - 1) // b


def _linear(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    (m, k), (_, n) = shapes[0], shapes["result"]
    k0, k1 = a.get("k_range", [0, k])
    rows, columns = _block(c[0], t[0], m), _block(c[1], t[1], n)
    reads: list[Read] = [(None, 2, (x,)) for x in range(k)] if "norm_eps" in a else []
    for step, at in _step(k1 - k0, t[2]):
        reads += [(step, 0, (r, k0 + at)) for r in rows]
        reads += [(step, 1, (g * n + j, k0 + at)) for g in range(a["groups"]) for j in columns]
    return Tile(_quotient(k1 - k0, t[2]), reads, list(product(rows, columns)), c[1] * t[1], t[1])


def _matmul(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    m, n, k, (b, i, j) = a["m"], a["n"], a["k"], c
    rows, columns, other = _block(i, t[0], m), _block(j, t[1], n), b if a["b_batch"] > 1 else 0
    reads: list[Read] = []
    for step, at in _step(k, t[2]):
        reads += [(step, 0, (b * k + at, r) if a["transpose_a"] else (b * m + r, at)) for r in rows]
        reads += [
            (step, 1, (other * n + s, at) if a["transpose_b"] else (other * k + at, s)) for s in columns
        ]
    return Tile(_quotient(k, t[2]), reads, [(b * m + r, s) for r in rows for s in columns], j * t[1], t[1])


def _taps(out: int, window: int, stride: int, dilation: int, padding: int, size: int) -> list[int]:
    return [x for x in (out * stride + r * dilation - padding for r in range(window)) if 0 <= x < size]


def _conv2d(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    (b, p, q, n), (_, h, w, ch), (_, r, s, _) = shapes["result"], shapes[0], shapes[1]
    outs = [_block(c[0], t[0], b), _block(c[1], t[1], p), _block(c[2], t[2], q), _block(c[3], t[3], n)]
    reads: list[Read] = []
    for image, y, x, out in product(*outs):
        for step, channel in _step(ch, t[4]):
            reads += [(step, 1, (out, u, v, channel)) for u in range(r) for v in range(s)]
            reads += [
                (step, 0, (image, yy, xx, channel))
                for yy in _taps(y, r, a["stride"][0], a["dilation"][0], a["padding"][0], h)
                for xx in _taps(x, s, a["stride"][1], a["dilation"][1], a["padding"][1], w)
            ]
    return Tile(_quotient(ch, t[4]), reads, list(product(*outs)), c[3] * t[3], t[3])


def _grouped_conv2d(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    (b, p, q, n), (_, h, w, ch), (_, r, s, _) = shapes["result"], shapes[0], shapes[1]
    of_group, each = n // a["groups"], ch // a["groups"]
    lines = [_block(c[0], t[0], b), _block(c[1], t[1], p), _block(c[2], t[2], q)]
    filters = [g * of_group + i for g in _block(c[3], t[3], a["groups"]) for i in range(of_group)]
    reads: list[Read] = []
    for image, y, x, out in product(*lines, filters):
        for i in range(each):
            reads += [(0, 1, (out, u, v, i)) for u in range(r) for v in range(s)]
            reads += [
                (0, 0, (image, yy, xx, out // of_group * each + i))
                for yy in _taps(y, r, a["stride"][0], a["dilation"][0], a["padding"][0], h)
                for xx in _taps(x, s, a["stride"][1], a["dilation"][1], a["padding"][1], w)
            ]
    wide = t[3] * of_group
    return Tile(1, reads, list(product(*lines, filters)), c[3] * wide, wide)


def _conv_transpose2d(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    (_, h, w, ch), (_, r, s, _) = shapes[0], shapes[1]
    outs = [_block(*at) for at in zip(c, t, shapes["result"], strict=True)]
    reads: list[Read] = []
    for image, y, x, out in product(*outs):
        ys, xs = (
            [
                i
                for i in range(size)
                if 0 <= at + a["padding"][d] - i * a["stride"][d] <= wide * a["dilation"][d]
            ]
            for d, (at, size, wide) in enumerate(((y, h, r - 1), (x, w, s - 1)))
        )
        for i in range(ch):
            reads += [(0, 1, (out, u, v, i)) for u in range(r) for v in range(s)]
            reads += [(0, 0, (image, yy, xx, i)) for yy in ys for xx in xs]
    return Tile(1, reads, list(product(*outs)), c[3] * t[3], t[3])


def _pool2d(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    outs = [_block(*at) for at in zip(c, t, shapes["result"], strict=True)]
    reads: list[Read] = [
        (0, 0, (image, yy, xx, channel))
        for image, y, x, channel in product(*outs)
        for yy in _taps(y, a["window"][0], a["stride"][0], 1, a["padding"][0], shapes[0][1])
        for xx in _taps(x, a["window"][1], a["stride"][1], 1, a["padding"][1], shapes[0][2])
    ]
    return Tile(1, reads, list(product(*outs)), c[3] * t[3], t[3])


def _global_avg_pool(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    images, channels = _block(c[0], t[0], shapes[0][0]), _block(c[1], t[1], shapes[0][3])
    reads: list[Read] = [
        (0, 0, at) for at in product(images, range(shapes[0][1]), range(shapes[0][2]), channels)
    ]
    return Tile(1, reads, list(product(images, channels)), c[1] * t[1], t[1])


def _upsample(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    ins = [_block(*at) for at in zip(c, t, shapes[0], strict=True)]
    f, g = a["factor"]
    writes: list[Index] = [
        (image, y * f + u, x * g + v, channel)
        for image, y, x, channel in product(*ins)
        for u in range(f)
        for v in range(g)
    ]
    return Tile(1, [(0, 0, at) for at in product(*ins)], writes, c[3] * t[3], t[3])


def _group_norm(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    _, h, w, channels = shapes[0]
    width = t[0] * (channels // a["groups"])
    mine = _block(c[1], width, channels)
    own: list[Index] = list(product((c[0],), range(h), range(w), mine))
    reads: list[Read] = [(0, 0, at) for at in own]
    reads += [(0, index, (x,)) for index in (1, 2) for x in mine]
    return Tile(1, reads, own, c[1] * width, width)


def _cat(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    *lines, n = shapes["result"]
    mine = list(product(*(_block(*at) for at in zip(c, t, lines, strict=True))))
    reads: list[Read] = [
        (0, index, (*line, x))
        for index in shapes
        if index != "result"
        for line in mine
        for x in range(shapes[index][-1])
    ]
    return Tile(1, reads, [(*line, x) for line in mine for x in range(n)], 0, n)


def _embedding(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    rows, columns = (_block(*at) for at in zip(c, t, shapes["result"], strict=True))
    reads: list[Read] = [(0, 0, (r,)) for r in rows]
    if len(shapes[0]) == 2:  # whole rows of ids that another op makes
        k = shapes[0][1]
        reads = [(0, 0, (r // k, j)) for r in rows for j in range(k)]
    reads += [(0, 1, at) for at in product(range(shapes[1][0]), columns)]
    return Tile(1, reads, list(product(rows, columns)), c[1] * t[1], t[1])


def _softmax(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    n, rows, (b, i) = shapes[0][1], a["rows"], c
    mine = _block(i, t[0], rows)
    reads: list[Read] = [
        (0, 0, (b * rows + r, x))
        for r in mine
        for x in range(n)
        # the tile reads one box: its widest row's
        if not a["causal"] or any(x <= q + n - rows for q in mine)
    ]
    return Tile(1, reads, [(b * rows + r, x) for r in mine for x in range(n)], 0, n)


def _attention(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    d, (b, h, i), q_len, k_len, splits = a["head_dim"], c[:3], a["q_len"], a["k_len"], a.get("splits", 1)
    mine, group, width = (
        _block(i, t[0], q_len),
        h * t[2] // (a["heads"] // a["kv_heads"]),
        d if splits == 1 else d + 8,
    )
    own = [(b * q_len + r, h * t[2] * d + x) for r in mine for x in range(t[2] * d)]
    told = a.get("lengths", False) + a.get("alibi", False)
    at = 3 + told + ("bias" in a)  # where a position is
    keys = [
        y
        for y in range(k_len)
        if not a["causal"]
        or at in shapes
        or y < a.get("prefix", 0)
        or any(y <= r + k_len - q_len for r in mine)
    ]
    number = {y // t[1]: y // t[1] for y in keys}  # of the step that takes a block of keys
    if "block_mask" in a:
        (bq, bk), before = a["block_size"], k_len - q_len
        seen = {
            y // t[1]
            for y in keys
            for r in mine
            if a["block_mask"][r // bq][y // bk]
            and (
                not a["causal"]
                or y < a.get("prefix", 0)
                or r + before - a.get("window", y + r + before + 1) < y <= r + before
            )
        }
        number = {block: step for step, block in enumerate(sorted(seen or {0}))}
        keys = [y for y in keys if y // t[1] in number]
    reads: list[Read] = [(None, 0, one) for one in own]
    reads += [(None, at, (0,))] if at in shapes else []
    reads += [(None, 3, (b,))] if a.get("lengths") else []
    reads += [(None, 2 + told, (h * t[2] + n,)) for n in range(t[2])] if a.get("alibi") else []
    if "bias" in a:
        batches, heads, queries = a["bias"]
        rows = [
            (b % batches * heads + (h * t[2] + n) % heads) * queries + r % queries
            for n in range(t[2])
            for r in mine
        ]
        # the tile reads one box: from its first row to its last
        reads += [(None, at - 1, (row, y)) for row in range(min(rows), max(rows) + 1) for y in range(k_len)]
    # which keys are a share's own, only the position tells: it may read any from its first step on
    reads += [
        (number[y // t[1]] if splits == 1 else 0, way, (b * k_len + y, group * d + x))
        for y in keys
        for way in (1, 2)
        for x in range(d)
    ]
    if a.get("forwarded"):
        reads += [
            (None, way, (b * q_len + r, group * d + x))
            for way in (at + 1, at + 2)
            for r in range(q_len)
            for x in range(d)
        ]
    first = c[3] * (shapes["result"][0] // splits) if splits > 1 else 0
    writes: list[Index] = [
        (first + b * q_len + r, h * t[2] * width + x) for r in mine for x in range(t[2] * width)
    ]
    return Tile(_quotient(_quotient(len(keys), t[1]), splits), reads, writes, h * t[2] * width, t[2] * width)


def _combine(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    rows, hs, d = _block(c[0], t[0], shapes["result"][0]), _block(c[1], t[1], a["heads"]), a["head_dim"]
    below = shapes["result"][0]
    reads: list[Read] = [
        (s, 0, (s * below + r, hs[0] * (d + 8) + x))
        for s in range(a["splits"])
        for r in rows
        for x in range(len(hs) * (d + 8))
    ]
    return Tile(
        a["splits"],
        reads,
        [(r, hs[0] * d + x) for r in rows for x in range(len(hs) * d)],
        hs[0] * d,
        len(hs) * d,
    )


def _strided_copy(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    boxes = [_block(*at) for at in zip(c, t, shapes["result"], strict=True)]
    reads: list[Read] = []
    for at in product(*boxes):
        flat = _flat(at, shapes["result"])
        place = a["offset"]
        for size, stride in zip(reversed(a["sizes"]), reversed(a["strides"]), strict=True):
            flat, i = divmod(flat, size)
            place += i * stride
        index: list[int] = []
        for size in reversed(shapes[0]):
            place, i = divmod(place, size)
            index.insert(0, i)
        reads.append((0, 0, tuple(index)))
    return Tile(1, reads, list(product(*boxes)), c[-1] * t[-1], t[-1])


def _flat(at: Index, shape: Sequence[int]) -> int:
    n = 0
    for i, size in zip(at, shape, strict=True):
        n = n * size + i
    return n


def _reduce(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    rows = _block(c[0], t[0], shapes[0][0])
    reads: list[Read] = [(0, 0, at) for at in product(rows, range(shapes[0][1]))]
    return Tile(1, reads, [(r, 0) for r in rows], 0, 1)


def _topk(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    rows = _block(c[0], t[0], shapes[0][0])
    reads: list[Read] = [(0, 0, at) for at in product(rows, range(shapes[0][1]))]
    return Tile(1, reads, list(product(rows, range(a["k"]))), 0, a["k"])


def _take_along(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    rows, columns = (_block(*at) for at in zip(c, t, shapes["result"], strict=True))
    own: list[Index] = list(product(rows, columns))
    reads: list[Read] = [(0, 1, at) for at in own]
    reads += [(0, 0, at) for at in product(rows, range(shapes[0][1]))]
    return Tile(1, reads, own, c[1] * t[1], t[1])


def _norm(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    *lines, n = shapes[0]
    if len(lines) == 3:
        rows = [range(c[0], c[0] + 1), _block(c[1], t[0], lines[1]), range(lines[2])]
    else:
        rows = [_block(c[0], t[0], lines[0])]
    own: list[Index] = list(product(*rows, range(n)))
    reads: list[Read] = [(0, 0, at) for at in own]
    reads += [(0, index, (x,)) for index in range(1, a["vectors"] + 1) for x in range(n)]
    return Tile(1, reads, own, 0, n)


def _rope(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    width = t[1] * a["head_dim"]
    own: list[Index] = list(product(_block(c[0], t[0], shapes[0][0]), _block(c[1], width, shapes[0][1])))
    reads: list[Read] = [(0, 0, at) for at in own]
    return Tile(1, reads + ([(None, 1, (0,))] if 1 in shapes else []), own, c[1] * width, width)


def _rotary(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    """Tables of angles are read whole."""
    tables: list[Read] = [(0, n, at) for n in (1, 2) for at in product(*map(range, shapes[n]))]
    turned = _rope(a, t, c, {0: shapes[0], "result": shapes["result"]})
    return replace(turned, reads=[*turned.reads, *tables])


def _append(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    b, columns = c[0], _block(c[1], t[0], shapes[1][1])
    rows = range(a["seq"]) if a["at"] >= 0 else range(a["max_len"])
    writes: list[Index] = [(b * a["max_len"] + max(a["at"], 0) + r, x) for r in rows for x in columns]
    reads: list[Read] = [(0, 1, (b * a["seq"] + r, x)) for r in range(a["seq"]) for x in columns]
    return Tile(1, reads + ([(None, 2, (0,))] if 2 in shapes else []), writes, c[1] * t[0], t[0])


def _pointwise(a: dict[str, Any], t: Index, c: Index, shapes: Shapes) -> Tile:
    return Tile(
        1,
        [],
        list(product(*(_block(*at) for at in zip(c, t, shapes["result"], strict=True)))),
        c[-1] * t[-1],
        t[-1],
    )


_OP_DEFS: dict[str, Callable[[dict[str, Any], Index, Index, Shapes], Tile]] = {
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
    "pad": _cat,  # of one part; what it writes is more
    "embedding": _embedding,
    "softmax": _softmax,
    "attention": _attention,
    "combine": _combine,
    "strided_copy": _strided_copy,
    "reduce": _reduce,
    "topk": _topk,
    "take_along": _take_along,
    "rms_norm": _norm,
    "layer_norm": _norm,
    "rope": _rope,
    "rotary": _rotary,
    "append": _append,
    "pointwise": _pointwise,
}


def _behind(operand: Any, tensors: dict[str, Any]) -> tuple[list[int], Callable[[Index], Element]]:
    """The shape of an operand's view, and the tensor's element behind an element of the view."""
    if isinstance(operand, str):
        return tensors[operand]["shape"], lambda at: (operand, at)
    name, shape = operand["tensor"], tensors[operand["tensor"]]["shape"]
    if "columns" in operand:
        low, high = operand["columns"]
        return [*shape[:-1], high - low], lambda at: (name, (*at[:-1], at[-1] + low))
    _, h, w, c = shape
    return [shape[0], prod(shape[1:])], lambda at: (
        name,
        (at[0], at[1] // (w * c), at[1] // c % w, at[1] % c),
    )


def work_of(plan: dict[str, Any], op: dict[str, Any], coord: Index, part: int) -> Work:
    """What one part of the tile at `coord` reads and writes."""
    views = [_behind(o, plan["tensors"]) for o in op["operands"]]
    shapes: Shapes = {i: view[0] for i, view in enumerate(views)}
    shapes["result"] = plan["tensors"][op["result"]]["shape"]
    attributes = op["attributes"] | {"vectors": 2 if op["kind"] == "layer_norm" else 1}
    tile, parts = _OP_DEFS[op["kind"]](attributes, tuple(op["tile"]), coord, shapes), op["cluster"]
    axis, first, size, steps = -1, tile.first, tile.width, range(tile.steps)
    shared = op.get("cluster_split", "k")
    if shared in ("k", "km"):
        steps = range(part * tile.steps // parts, (part + 1) * tile.steps // parts)
    if shared in ("m", "km"):
        axis, first, size = 0, min(at[0] for at in tile.writes), op["tile"][0]
    if "x" in shared:  # 2x4: two rows of four CTAs
        down, across = map(int, shared.split("x"))
        top, height = min(at[0] for at in tile.writes), op["tile"][0]
        row, part, parts = part // across, part % across, across
        rows = range(top + row * height // down, top + (row + 1) * height // down)
        tile = replace(tile, writes=[at for at in tile.writes if at[0] in rows])
    mine = range(first + part * size // parts, first + (part + 1) * size // parts)
    writes = [at for at in tile.writes if at[axis] in mine]
    reads = {views[operand][1](at) for step, operand, at in tile.reads if step is None or step in steps}
    for e in (op["attributes"].get("epilogue") or {}).get("operands", []):
        for at in writes:
            of = {"elements": at, "columns": at[-1:], "rows": (*at[:-1], 0), "images": (at[0], at[-1])}
            reads.add(views[e["index"]][1](of[e["as"]]))
    return Work(frozenset(reads), frozenset((op["result"], at) for at in writes))
