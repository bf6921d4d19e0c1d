"""Two second opinions on dependences: loops over tiles and elements from each op's maths, and sets of
integers (isl).

Neither uses the inversion of write maps that tilegen.analysis.dependence is about. The first does not use
access maps at all: it fills an array with the tile that writes each element and looks up the elements that
each step needs. The second takes the access maps as Presburger relations and composes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import islpy as isl
import numpy as np
import sympy as sp
from sympy.printing.str import StrPrinter

from tilegen.analysis.dependence import Edge, relation
from tilegen.analysis.regions import tiles_of
from tilegen.frontend.program import Operand
from tilegen.graph.graph import Graph
from tilegen.ops.base import Interval, K, OpInstance

# (consumer tile, producer tile) -> first step; -1 before the steps, their number in the epilogue
Uses = dict[tuple[int, int], int]
Indices = Sequence[int]


@dataclass(frozen=True)
class Work:
    """A tile: the indices of the result it writes, per dimension, its steps, and (operand, step, indices of
    the view) of its reads."""

    writes: tuple[Indices, ...]
    steps: int
    reads: list[tuple[int, int, tuple[Indices, ...]]]


# --- the ops, as their equations say ------------------------------------------------------------------------


def cut(size: int, tile: int, first: int = 0) -> list[range]:
    """first … first + size - 1 in pieces of `tile`."""
    return [range(lo, min(lo + tile, first + size)) for lo in range(first, first + size, tile)]


def attribute(b: OpInstance, name: str, default: Any = None) -> Any:
    value = getattr(b.op.attributes, name, None)
    return default if value is None else value


def _linear(b: OpInstance) -> Iterator[Work]:
    (m, n), (tm, tn, tk) = b.out, b.tile
    k0, k1 = attribute(b, "k_range", (0, b.shape(0)[1]))
    chunks = cut(k1 - k0, tk, k0)
    for rows, columns in product(cut(m, tm), cut(n, tn)):
        weights = [g * n + j for g in range(attribute(b, "groups")) for j in columns]
        reads: list[Any] = [(2, -1, (range(b.shape(0)[1]),))] if attribute(b, "norm_eps", 0) else []
        reads += [
            r for k, chunk in enumerate(chunks) for r in ((0, k, (rows, chunk)), (1, k, (weights, chunk)))
        ]
        yield Work((rows, columns), len(chunks), reads)


def _matmul(b: OpInstance) -> Iterator[Work]:
    batch, m, n, k = (attribute(b, a) for a in ("batch", "m", "n", "k"))
    tm, tn, tk = b.tile
    chunks = cut(k, tk)
    for image, rows, columns in product(range(batch), cut(m, tm), cut(n, tn)):
        other = image if attribute(b, "b_batch") == batch else 0
        reads = []
        for step, ks in enumerate(chunks):
            left = (
                ([image * k + x for x in ks], rows)
                if attribute(b, "transpose_a")
                else ([image * m + x for x in rows], ks)
            )
            right = (
                ([other * n + x for x in columns], ks)
                if attribute(b, "transpose_b")
                else ([other * k + x for x in ks], columns)
            )
            reads += [(0, step, left), (1, step, right)]
        yield Work(([image * m + x for x in rows], columns), len(chunks), reads)


def taps(outs: Indices, window: int, stride: int, padding: int, dilation: int, size: int) -> list[int]:
    """Input positions under the output positions `outs`."""
    return sorted(
        {y for p in outs for r in range(window) if 0 <= (y := p * stride + r * dilation - padding) < size}
    )


def _conv2d(b: OpInstance) -> Iterator[Work]:
    x, (_, r, s, c) = b.shape(0), b.shape(1)
    st, pad, dil = (attribute(b, a) for a in ("stride", "padding", "dilation"))
    chunks = cut(c, b.tile[4])
    for images, ps, qs, ns in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=False))):
        ys, xs = taps(ps, r, st[0], pad[0], dil[0], x[1]), taps(qs, s, st[1], pad[1], dil[1], x[2])
        reads = [
            q
            for k, cs in enumerate(chunks)
            for q in ((0, k, (images, ys, xs, cs)), (1, k, (ns, range(r), range(s), cs)))
        ]
        yield Work((images, ps, qs, ns), len(chunks), reads)


def _grouped_conv2d(b: OpInstance) -> Iterator[Work]:
    x, (_, r, s, c), groups = b.shape(0), b.shape(1), attribute(b, "groups")
    st, pad, dil = (attribute(b, a) for a in ("stride", "padding", "dilation"))
    each = b.out[3] // groups
    for images, ps, qs, gs in product(
        *(cut(n, t) for n, t in zip((*b.out[:3], groups), b.tile, strict=True))
    ):
        ys, xs = taps(ps, r, st[0], pad[0], dil[0], x[1]), taps(qs, s, st[1], pad[1], dil[1], x[2])
        channels, filters = ([g * n + i for g in gs for i in range(n)] for n in (c, each))
        reads = [(0, 0, (images, ys, xs, channels)), (1, 0, (filters, range(r), range(s), range(c)))]
        yield Work((images, ps, qs, filters), 1, reads)


def _conv_transpose2d(b: OpInstance) -> Iterator[Work]:
    (_, h, w, c), (_, r, s, _) = b.shape(0), b.shape(1)
    st, pad, dil = (attribute(b, a) for a in ("stride", "padding", "dilation"))

    def reaching(outs: Indices, d: int, size: int, window: int) -> list[int]:
        """Input positions from which a filter without gaps reaches any of the output positions `outs`."""
        starts = [y * st[d] - pad[d] for y in range(size)]
        wide = dil[d] * (window - 1) + 1
        return [y for y, first in enumerate(starts) if set(range(first, first + wide)) & set(outs)]

    for images, ps, qs, ns in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        ys, xs = reaching(ps, 0, h, r), reaching(qs, 1, w, s)
        reads = [(0, 0, (images, ys, xs, range(c))), (1, 0, (ns, range(r), range(s), range(c)))]
        yield Work((images, ps, qs, ns), 1, reads)


def _pool2d(b: OpInstance) -> Iterator[Work]:
    x, win, st, pad = b.shape(0), attribute(b, "window"), attribute(b, "stride"), attribute(b, "padding")
    for images, ps, qs, cs in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        ys, xs = taps(ps, win[0], st[0], pad[0], 1, x[1]), taps(qs, win[1], st[1], pad[1], 1, x[2])
        yield Work((images, ps, qs, cs), 1, [(0, 0, (images, ys, xs, cs))])


def _global_avg_pool(b: OpInstance) -> Iterator[Work]:
    _, h, w, _ = b.shape(0)
    for images, cs in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        yield Work((images, cs), 1, [(0, 0, (images, range(h), range(w), cs))])


def _upsample(b: OpInstance) -> Iterator[Work]:
    f, g = attribute(b, "factor")
    for images, ys, xs, cs in product(*(cut(n, t) for n, t in zip(b.shape(0), b.tile, strict=True))):
        writes = (
            images,
            [y * f + u for y in ys for u in range(f)],
            [x * g + v for x in xs for v in range(g)],
            cs,
        )
        yield Work(writes, 1, [(0, 0, (images, ys, xs, cs))])


def _group_norm(b: OpInstance) -> Iterator[Work]:
    images, h, w, c = b.out
    for image, cs in product(range(images), cut(c, b.tile[0] * (c // attribute(b, "groups")))):
        own = ([image], range(h), range(w), cs)
        yield Work(own, 1, [(0, 0, own), (1, 0, (cs,)), (2, 0, (cs,))])


def _cat(b: OpInstance) -> Iterator[Work]:
    for lines in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=False))):
        reads: list[Any] = [
            (index, 0, (*lines, range(b.shape(index)[-1]))) for index in range(len(b.op.operands))
        ]
        yield Work((*lines, range(b.out[-1])), 1, reads)


def _pad(b: OpInstance) -> Iterator[Work]:
    for rows in cut(b.out[0], b.tile[0]):
        yield Work((rows, range(b.out[1])), 1, [(0, 0, (rows, range(b.shape(0)[1])))])


def _strided_copy(b: OpInstance) -> Iterator[Work]:
    sizes, strides, shape = attribute(b, "sizes"), attribute(b, "strides"), b.shape(0)
    places = attribute(b, "offset") + sum(i * s for i, s in zip(np.indices(sizes), strides, strict=True))
    places = np.asarray(places).reshape(b.out)
    for box in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        of_rows: dict[Any, list[int]] = {}
        for place in places[np.ix_(*box)].ravel().tolist():
            *row, column = np.unravel_index(place, shape)
            of_rows.setdefault(tuple(map(int, row)), []).append(int(column))
        yield Work(box, 1, [(0, 0, (*([r] for r in row), columns)) for row, columns in of_rows.items()])


def _reduce(b: OpInstance) -> Iterator[Work]:
    for rows in cut(b.out[0], b.tile[0]):
        yield Work((rows, [0]), 1, [(0, 0, (rows, range(b.shape(0)[1])))])


def _topk(b: OpInstance) -> Iterator[Work]:
    for rows in cut(b.out[0], b.tile[0]):
        yield Work((rows, range(attribute(b, "k"))), 1, [(0, 0, (rows, range(b.shape(0)[1])))])


def _take_along(b: OpInstance) -> Iterator[Work]:
    for rows, columns in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        yield Work((rows, columns), 1, [(0, 0, (rows, range(b.shape(0)[1]))), (1, 0, (rows, columns))])


def _embedding(b: OpInstance) -> Iterator[Work]:
    for rows, columns in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        k = b.shape(0)[1] if len(b.shape(0)) == 2 else 0  # ids of a row that another op makes
        ids = (sorted({r // k for r in rows}), range(k)) if k else (rows,)
        yield Work((rows, columns), 1, [(0, 0, ids), (1, 0, (range(b.shape(1)[0]), columns))])


def _softmax(b: OpInstance) -> Iterator[Work]:
    rows, n = attribute(b, "rows"), b.out[1]
    for image, mine in product(range(attribute(b, "batch")), cut(rows, b.tile[0])):
        # a tile loads one box: as many columns as its widest row sees
        seen = [x for x in range(n) if not attribute(b, "causal") or any(x <= q + n - rows for q in mine)]
        lines = [image * rows + q for q in mine]
        yield Work((lines, range(n)), 1, [(0, 0, (lines, seen))])


def _attention(b: OpInstance) -> Iterator[Work]:
    batch, q_len, k_len, heads, kv, d = (
        attribute(b, a) for a in ("batch", "q_len", "k_len", "heads", "kv_heads", "head_dim")
    )
    told = [name for name in ("lengths", "alibi", "bias") if attribute(b, name, False)]  # after q, k and v
    at, splits, prefix = 3 + len(told), attribute(b, "splits", 0), attribute(b, "prefix", 0)
    with_position = len(b.op.operands) > at
    width = d + 8 if splits else d
    for image, hs, mine, s in product(
        range(batch), cut(heads, b.tile[2]), cut(q_len, b.tile[0]), range(max(1, splits))
    ):
        rows = [image * q_len + q for q in mine]
        own = (rows, range(hs[0] * d, (hs[-1] + 1) * d))
        writes = ([s * batch * q_len + r for r in rows], range(hs[0] * width, (hs[-1] + 1) * width))
        masked = attribute(b, "causal") and not with_position
        ends = [max(q + k_len - q_len + 1, prefix) if masked else k_len for q in mine]
        keys = [y for y in range(k_len) if y < max(ends)]
        head = range(hs[0] * kv // heads * d, hs[0] * kv // heads * d + d)
        reads: list[Any] = [(0, -1, own)]
        blocks = list(cut(len(keys), b.tile[1]))
        if splits:  # which blocks are its own, only the position tells
            everything = [image * k_len + y for y in range(k_len)]
            reads += [(1, 0, (everything, head)), (2, 0, (everything, head))]
        if attribute(b, "block_mask", None):  # whole steps, of which anything is seen
            shown = [y // b.tile[1] for y in keys if any(_shown(b, q, y) for q in mine)] or [0]
            blocks = [range(n * b.tile[1], min((n + 1) * b.tile[1], len(keys))) for n in sorted(set(shown))]
        for step, part in enumerate(blocks if not splits else ()):
            lines = [image * k_len + keys[y] for y in part]
            reads += [(1, step, (lines, head)), (2, step, (lines, head))]
        if attribute(b, "forwarded", False):
            new = (range(image * q_len, (image + 1) * q_len), head)
            reads += [(at + 1, -1, new), (at + 2, -1, new)]
        each: dict[str, Any] = {"lengths": ([image],), "alibi": (hs,)}
        if "bias" in told:
            batches, of_heads, queries = attribute(b, "bias")
            all_rows = [
                (image % batches * of_heads + h % of_heads) * queries + q % queries for h in hs for q in mine
            ]
            hull = range(min(all_rows), max(all_rows) + 1)  # a tile reads one box
            if 1 < batches < batch:
                hull = range(batches * of_heads * queries)
            each["bias"] = (hull, range(k_len))
        reads += [(3 + n, -1, each[name]) for n, name in enumerate(told)]
        yield Work(writes, -(-len(blocks) // max(1, splits)), reads)


def _shown(b: OpInstance, q: int, y: int) -> bool:
    """Whether query q sees key y, beside a block mask."""
    rows, before = attribute(b, "block_mask"), attribute(b, "k_len") - attribute(b, "q_len")
    bq, bk = attribute(b, "block_size")
    near = not attribute(b, "causal") or 0 <= q + before - y < (attribute(b, "window", None) or 1 << 30)
    return rows[q // bq][y // bk] and (near or y < (attribute(b, "prefix", None) or 0))


def _combine(b: OpInstance) -> Iterator[Work]:
    splits, heads, d = (attribute(b, a) for a in ("splits", "heads", "head_dim"))
    for rows, hs in product(cut(b.out[0], b.tile[0]), cut(heads, b.tile[1])):
        partial = range(hs[0] * (d + 8), (hs[-1] + 1) * (d + 8))
        reads = [(0, s, ([s * b.out[0] + r for r in rows], partial)) for s in range(splits)]
        yield Work((rows, range(hs[0] * d, (hs[-1] + 1) * d)), splits, reads)


def _norm(b: OpInstance) -> Iterator[Work]:
    if len(b.out) == 4:
        for image, lines in product(range(b.out[0]), cut(b.out[1], b.tile[0])):
            box = ([image], lines, range(b.out[2]), range(b.out[3]))
            yield Work(box, 1, [(0, 0, box)])
        return
    for rows in cut(b.out[0], b.tile[0]):
        yield Work((rows, range(b.out[1])), 1, [(0, 0, (rows, range(b.out[1])))])


def _rope(b: OpInstance) -> Iterator[Work]:
    d = attribute(b, "head_dim")
    for rows, heads in product(cut(b.out[0], b.tile[0]), cut(b.out[1] // d, b.tile[1])):
        columns = range(heads[0] * d, (heads[-1] + 1) * d)
        yield Work((rows, columns), 1, [(0, 0, (rows, columns))])


def _append(b: OpInstance) -> Iterator[Work]:
    seq, most, at = (attribute(b, a) for a in ("seq", "max_len", "at"))
    for image, columns in product(range(attribute(b, "batch")), cut(b.shape(1)[1], b.tile[0])):
        # a position is known only at run time: any row
        places = range(at, at + seq) if at >= 0 else range(most)
        reads = [(1, 0, ([image * seq + r for r in range(seq)], columns))]
        yield Work(([image * most + r for r in places], columns), 1, reads)


def _pointwise(b: OpInstance) -> Iterator[Work]:
    for box in product(*(cut(n, t) for n, t in zip(b.out, b.tile, strict=True))):
        yield Work(box, 1, [])


KINDS: dict[str, Callable[[OpInstance], Iterator[Work]]] = {
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
    "pad": _pad,
    "strided_copy": _strided_copy,
    "reduce": _reduce,
    "topk": _topk,
    "take_along": _take_along,
    "embedding": _embedding,
    "softmax": _softmax,
    "attention": _attention,
    "combine": _combine,
    "rms_norm": _norm,
    "layer_norm": _norm,
    "rope": _rope,
    "append": _append,
    "pointwise": _pointwise,
}


def work(b: OpInstance) -> Iterator[Work]:
    """The tiles of an op in row-major order of its grid, epilogue reads included."""
    for tile in KINDS[b.op.kind](b):
        for index, how in b.op.epilogue.operands if b.op.epilogue else ():
            of = {
                "elements": tile.writes,
                "columns": tile.writes[-1:],
                "rows": (*tile.writes[:-1], [0]),
                "images": (tile.writes[0], tile.writes[-1]),
            }
            tile.reads.append((index, tile.steps, of[how]))
        yield tile


# --- by loops -----------------------------------------------------------------------------------------------


def owners(b: OpInstance) -> Any:
    """For each element of the result the tile that writes it, -1 where none does."""
    owner = np.full(b.out, -1)
    for number, tile in enumerate(work(b)):
        assert (owner[np.ix_(*tile.writes)] == -1).all(), f"{b.op.name}: two tiles write one element"
        owner[np.ix_(*tile.writes)] = number
    return owner


def seen_as(owner: Any, operand: Operand) -> Any:
    if operand.flatten:
        return owner.reshape(owner.shape[0], -1)
    return owner[..., operand.columns[0] : operand.columns[1]] if operand.columns else owner


def by_loops(graph: Graph) -> dict[tuple[str, str, int], Uses]:
    """(producer, consumer, operand) -> which producer tiles each consumer tile needs, and from which step
    on."""
    found: dict[tuple[str, str, int], Uses] = {}
    made = {op.name: owners(graph.bound(op)) for op in graph.ops}
    for op in graph.ops:
        sources = [
            (n, w.name, seen_as(made[w.name], o))
            for n, o in enumerate(op.operands)
            for w in graph.writers(o.tensor)
            if w.name != op.name
            and not (op.kind == "append" and n == 0)
            # of which rows before the position alone are read
            and not (w.kind == "append" and getattr(op.attributes, "forwarded", False))
        ]
        for number, tile in enumerate(work(graph.bound(op))):
            for operand, step, indices in tile.reads:
                for n, writer, owner in sources:
                    if n == operand:
                        uses = found.setdefault((writer, op.name, n), {})
                        for producer in set(owner[np.ix_(*indices)].ravel().tolist()) - {-1}:
                            uses[number, producer] = min(step, uses.get((number, producer), step))
    return found


def block_tiles(e: Edge) -> Any:
    """For each block of the producer (row-major over dimensions) the tile that it is."""
    tiles = tiles_of(e.producer)
    shape = tuple(int(c.count) for c in e.blocking)
    block = np.ravel_multi_index([tiles.value(c.index) for c in e.blocking], shape)
    assert sorted(block.tolist()) == list(range(tiles.count)), "blocks and tiles are not one to one"
    return np.argsort(block)


def derived(e: Edge) -> Uses:
    """What tilegen derives for one edge."""
    r, tile = relation(e), block_tiles(e)
    pairs = list(zip(r.tile.tolist(), tile[r.block].tolist(), strict=True))
    assert len(pairs) == len(set(pairs)), "a pair stands twice"
    return dict(zip(pairs, r.step.tolist(), strict=True))


def by_tilegen(graph: Graph) -> dict[tuple[str, str, int], tuple[Uses, bool]]:
    """As by_loops, from tilegen; and whether all accesses of the operand are exact."""
    found: dict[tuple[str, str, int], tuple[Uses, bool]] = {}
    for e in graph.edges:
        key = (e.producer.op.name, e.consumer.op.name, e.access.operand)
        uses, exact = found.get(key, ({}, True))
        for pair, step in derived(e).items():
            uses[pair] = min(step, uses.get(pair, step))
        found[key] = (uses, exact and e.access.exact)
    return found


def disagreement(graph: Graph) -> str:
    """Where tilegen and the loops differ, or nothing: equal where the access is exact, a superset that waits
    no later elsewhere."""
    expected, given = by_loops(graph), by_tilegen(graph)
    for key in sorted({k for k, uses in expected.items() if uses} | set(given)):
        right, (found, exact) = expected.get(key, {}), given.get(key, ({}, True))
        if missing := [p for p in right if p not in found]:
            return f"{key}: tilegen misses (consumer tile, producer tile) {missing[:5]} of {len(right)}"
        if late := [p for p in right if found[p] > right[p]]:
            return (
                f"{key}: tilegen needs {late[0]} first at step {found[late[0]]}, the loops at"
                f" {right[late[0]]}"
            )
        if exact and found != right:
            return (
                f"{key}: tilegen has more than the loops:"
                f" {[(p, k) for p, k in found.items() if right.get(p) != k][:5]}"
            )
    return ""


# --- by isl -------------------------------------------------------------------------------------------------


class _Isl(StrPrinter):
    """An index expression in isl's syntax."""

    def _quotient(self, name: str, e: sp.Expr) -> str:
        p, q = sp.fraction(sp.together(e))
        return f"{name}(({self._print(p)})/{self._print(q)})"

    def _print_floor(self, e: sp.floor) -> str:
        return self._quotient("floor", e.args[0])

    def _print_ceiling(self, e: sp.ceiling) -> str:
        return self._quotient("ceil", e.args[0])

    def _print_Mod(self, e: sp.Mod) -> str:
        return f"(({self._print(e.args[0])}) mod {self._print(e.args[1])})"

    def _nested(self, name: str, args: Sequence[sp.Expr]) -> str:
        head, *rest = (self._print(a) for a in args)
        for argument in rest:
            head = f"{name}({head}, {argument})"
        return head

    def _print_Min(self, e: sp.Min) -> str:
        return self._nested("min", e.args)

    def _print_Max(self, e: sp.Max) -> str:
        return self._nested("max", e.args)


def isl_text(e: Any) -> str:
    return str(_Isl().doprint(sp.sympify(e)))


def _inside(name: str, i: Interval) -> str:
    lo, hi = isl_text(i.lo), isl_text(i.hi)
    spaced = f" and ({name} - ({lo})) mod {i.stride} = 0" if i.stride != 1 else ""
    return f"{lo} <= {name} < {hi}{spaced}"


def _grid(b: OpInstance) -> list[str]:
    return [f"0 <= {c.name} < {isl_text(n)}" for c, n in zip(b.coords, b.grid, strict=True)]


def by_isl(e: Edge) -> Uses:
    """The dependence as isl composes it from the two access maps, with the least step of each pair."""
    elements = [f"e{d}" for d in range(len(e.box))]
    step = {"first": "k = -1", "epilogue": f"k = {isl_text(e.consumer.steps)}"}.get(
        e.access.when, f"0 <= k < {isl_text(e.consumer.steps)}"
    )
    read = [*_grid(e.consumer), step, *(_inside(n, i) for n, i in zip(elements, e.box, strict=True))]
    write = [*_grid(e.producer), *(_inside(n, i) for n, i in zip(elements, e.producer.write, strict=True))]
    c, p = ([s.name for s in b.coords] for b in (e.consumer, e.producer))
    reads = isl.Map(f"{{ [{', '.join([*c, K.name])}] -> [{', '.join(elements)}] : {' and '.join(read)} }}")
    writes = isl.Map(f"{{ [{', '.join(p)}] -> [{', '.join(elements)}] : {' and '.join(write)} }}")
    needs = reads.apply_range(writes.reverse()).wrap()
    cs, ps = ", ".join(f"c{n}" for n in range(len(c))), ", ".join(f"p{n}" for n in range(len(p)))
    regroup = isl.Map(f"{{ [[{cs}, k] -> [{ps}]] -> [[{cs}, {ps}] -> [k]] }}")
    first = needs.apply(regroup).unwrap().lexmin().wrap().flatten()
    return _points(first, tiles_of(e.consumer).grid, tiles_of(e.producer).grid)


def _points(s: isl.Set, consumer: tuple[int, ...], producer: tuple[int, ...]) -> Uses:
    uses: Uses = {}
    n, size = len(consumer), len(consumer) + len(producer) + 1

    def add(point: isl.Point) -> None:
        at = [point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(size)]
        tile, block = np.ravel_multi_index(at[:n], consumer), np.ravel_multi_index(at[n:-1], producer)
        uses[int(tile), int(block)] = at[-1]

    s.foreach_point(add)
    return uses
