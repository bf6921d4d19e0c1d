"""Random programs: chains, fan-in, fan-out, residuals and several outputs, of two to six ops of all kinds and
tiny sizes.

The same seed gives the same program and the same options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tilegen as tg
from tests.random_draws import Draw, divisor, draw_options
from tilegen.frontend.program import Program
from tilegen.frontend.value import Value
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.options import Options
from tilegen.schedule.planner import lattices_of, tiled
from tilegen.targets.select import place

MACHINES = ("cpu:3", "h200", "7")
ORDERS = ("auto", "op_major", "op_major:2", "banded:2", "banded:3", "banded:2:2", "banded:4:3")


@dataclass
class Pool:
    """The values that ops may read, the given ones first."""

    draw: Draw
    values: list[Value]
    ids: list[Value] = field(default_factory=list)  # numbers of columns, which few ops read

    def like(self, shape: tuple[int, ...]) -> Value | None:
        """Another op's result, or an input, of this shape."""
        found = [v for v in self.values if v.shape == shape]
        return self.draw.pick(found) if found else None


def view(d: Draw, x: Value) -> Value:
    """x, or some of its columns."""
    if d.maybe(0.7) or x.shape[-1] < 2:
        return x
    return d.pick(x.chunk(2)) if x.shape[-1] % 2 == 0 else x.split([1, x.shape[-1] - 1])[1]


def activation(d: Draw, x: Value) -> Value:
    same = [lambda v: v] * 3
    return d.pick([*same, tg.relu, tg.gelu, tg.silu, lambda v: tg.scale(v, 0.5), tg.tanh])(x)


# --- ops on rows: (B, S, C) or (B, C) -----------------------------------------------------------------------


def _linear(p: Pool, x: Value) -> Value:
    d, x = p.draw, view(p.draw, x)
    n = d.size(16)
    bias = d.weight(n) if d.maybe(0.3) else None
    return activation(d, tg.linear(x, d.weight(n, x.shape[-1]), bias))


def _by_int8(p: Pool, x: Value) -> Value:
    """A linear by int8 weights, scaled by columns or by a number."""
    d, x = p.draw, view(p.draw, x)
    n = d.n(16)
    scale = d.weight(n, dtype="float32") if d.maybe() else 0.01
    bias = d.weight(n) if d.maybe(0.3) else None
    return activation(d, tg.linear(x, d.int8(n, x.shape[-1]), bias, scale_w=scale))


def _residual(p: Pool, x: Value) -> Value:
    """A linear layer back to x's own shape, plus what has this shape."""
    d, width = p.draw, x.shape[-1]
    y = tg.linear(x, d.weight(width, width))
    return d.pick([tg.add, tg.mul])(y, p.like(x.shape) or x)


def _gated(p: Pool, x: Value) -> Value:
    d = p.draw
    gate, up = tg.linear(x, d.weight(2 * d.size(8), x.shape[-1])).chunk(2)
    return tg.mul(tg.silu(gate), up)


def _norm(p: Pool, x: Value) -> Value:
    d, x = p.draw, view(p.draw, x)
    width = x.shape[-1]
    return (
        tg.rms_norm(x, d.weight(width)) if d.maybe() else tg.layer_norm(x, d.weight(width), d.weight(width))
    )


def _softmax(p: Pool, x: Value) -> Value:
    causal = len(x.shape) == 3 and x.shape[-1] >= x.shape[-2] and p.draw.maybe()
    if p.draw.maybe(0.3):
        return tg.log_softmax(x, scale=-0.7)
    return tg.softmax(x, scale=0.7, causal=causal)


def _reduced(p: Pool, x: Value) -> Value:
    """A number for each row, alone or with the row."""
    d = p.draw
    y = d.pick([tg.sum, tg.mean, tg.max, tg.min, tg.logsumexp])(view(d, x))
    if x.shape[-1] == 1 or d.maybe(0.2):
        return y
    return d.pick([lambda: tg.sub(x, y), lambda: tg.mul(tg.sigmoid(y), x), lambda: tg.maximum(x, y)])()


def _column(p: Pool, x: Value) -> Value:
    """A given column beside rows, which may be of float32 whatever these are."""
    how = {"dtype": "float32"} if p.draw.maybe(0.3) else {}
    return tg.relu(x) if x.shape[-1] == 1 else tg.add(p.draw.input(*x.shape[:-1], 1, **how), x)


def _cat(p: Pool, x: Value) -> Value:
    """x behind others, or zeros behind it."""
    if len(x.shape) < 4 and p.draw.maybe(0.2):
        return tg.pad(view(p.draw, x), p.draw.n(9))
    others = [v for v in p.values if v.shape[:-1] == x.shape[:-1]]
    return tg.cat([view(p.draw, p.draw.pick(others)) for _ in range(p.draw.n(2))] + [x])


def _moved(p: Pool, x: Value) -> Value:
    """Its elements in another order, or some of them, by one to three copies."""
    d, x = p.draw, view(p.draw, x)
    for _ in range(d.n(3)):
        rank = len(x.shape)
        match d.n(5):
            case 1:
                x = tg.permute(x, d.random.sample(range(rank), rank))
            case 2:
                x = tg.transpose(x, d.n(rank - 1, 0), d.n(rank - 1, 0))
            case 3:
                low = d.n(x.shape[dim := d.n(rank - 1, 0)] - 1, 0)
                x = tg.narrow(x, dim, low, d.n(x.shape[dim] - low))
            case 4:
                x = x[tuple(slice(lo := d.n(n - 1, 0), d.n(n, lo + 1), d.n(2)) for n in x.shape)]
            case _:
                at = d.n(rank - 2, 0)
                shape = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
                x = tg.reshape(x, shape if rank > 2 else (divisor(d, x.shape[0]), -1, x.shape[1]))
    if x.columns is None:
        return activation(d, x)
    return tg.relu(x) if len(x.shape) < 4 else tg.upsample(x, 1)  # an image whatever is made of it


def _looked_up(p: Pool, x: Value) -> Value:
    """x and rows of a table, given, or those of the largest numbers of an input."""
    d, (*lines, width) = p.draw, x.shape
    if len(lines) == 2 and d.maybe(0.4):
        numbers = lines[1] + d.n(3)
        _, ids = tg.topk(d.input(lines[0], numbers), lines[1])
        p.ids.append(ids)
        return tg.add(tg.embedding(ids, d.weight(numbers + d.n(3, 0), width)), x)
    return tg.add(tg.embedding(d.ids(*lines), d.weight(d.size(9), width)), x)


def _picked(p: Pool, x: Value) -> Value:
    """Numbers of x in given columns, or in those of the largest numbers of an input, which no rounding
    changes; beside these."""
    d, (*lines, width) = p.draw, x.shape
    if d.maybe(0.3):
        return activation(d, tg.take_along(x, d.ids(*lines, d.n(9))))
    scores = d.input(*lines, d.n(width))
    values, ids = tg.topk(scores, d.n(scores.shape[-1])) if d.maybe(0.7) else (None, tg.argmax(scores))
    p.ids.append(ids)
    picked = tg.take_along(x, view(d, ids))
    return tg.mul(picked, values) if values and picked.shape == values.shape and d.maybe() else picked


def _maths(p: Pool, x: Value) -> Value:
    """Functions, none of which makes numbers much larger."""
    words: list[Callable[[], Value]] = [
        lambda: tg.log(tg.abs(x) + 0.5),
        lambda: tg.sqrt(tg.abs(x)),
        lambda: tg.rsqrt(x**2 + 0.5),
        lambda: tg.exp(tg.tanh(-x)),
        lambda: tg.softplus(x) / 1.5,
        lambda: tg.hardswish(3.0 * x),
        lambda: tg.leaky_relu(x, 0.2),
        lambda: tg.clamp(x, -0.5, 1.0),
    ]
    return p.draw.pick(words)()


def _beside(p: Pool, x: Value) -> Value:
    """x with a number, a vector, a column or another value; what chooses is given, and changed by no
    rounding."""
    d, (*lines, width) = p.draw, x.shape
    how = {"dtype": "float32"} if d.maybe(0.3) else {}
    others: list[Callable[[], Any]] = [
        lambda: d.pick((-1.5, 0.25, 2)),
        lambda: d.weight(width, **how),
        lambda: d.input(*lines, 1, **how) if width > 1 else 0.5,
        lambda: p.like(x.shape) or x,
    ]

    def other() -> Any:
        return d.pick(others)()

    def at() -> Value:
        return d.input(*lines, width if d.maybe() else 1)

    words: list[Callable[[], Value]] = [
        lambda: tg.minimum(other(), x),
        lambda: tg.div(other(), tg.abs(x) + 1.0),
        lambda: tg.where(at() < 0.25, x, other()) if d.maybe() else tg.where(at() >= 0.5, other(), x),
        lambda: tg.pointwise("relu(e0) * gelu_erf(e1) - 2 * silu(e1)", x, p.like(x.shape) or x),
        lambda: tg.batch_norm(x, *(d.weight(width) for _ in range(4)), eps=1e-3),
    ]
    return d.pick(words)()


def _float8(p: Pool, x: Value) -> Value:
    """x and a product of float8, with scales or without."""
    d, (*lines, width) = p.draw, x.shape
    if d.times > 1 and d.maybe(0.7):  # one target refuses all of the program for it
        return _linear(p, x)
    k, kind = 16 * d.n(2 * d.times), "float8_e4m3fn"
    scales = {"scale_x": d.input(*lines, 1, dtype="float32")} if d.maybe() else {}
    if d.maybe():
        scales["scale_w"] = d.weight(width, dtype="float32") if d.maybe() else 0.5
    y = tg.linear(d.input(*lines, k, dtype=kind), d.weight(width, k, dtype=kind), dtype=d.dtype, **scales)
    return tg.add(y, x)


def _pointwise(p: Pool, x: Value) -> Value:
    other = p.like(x.shape)
    return (
        tg.add(tg.sigmoid(x), other)
        if other is not None and p.draw.maybe(0.7)
        else tg.gelu(x, approximate="tanh")
    )


# --- ops on (B, S, C) only ----------------------------------------------------------------------------------


def _rope(p: Pool, x: Value) -> Value:
    if x.shape[-1] % 2:
        return _linear(p, x)
    d, (b, s, width) = p.draw, x.shape
    heads = divisor(d, width // 2)
    if d.maybe(0.6):
        return tg.rope(x, heads=heads)
    turned = 2 * d.n(width // heads // 2) if d.maybe(0.4) else width // heads
    shape, dtype = (*d.pick([(s,), (1, s), (b, s)]), turned), d.pick(["", "float32"])
    tables = (d.input(*shape, dtype=dtype) for _ in range(2))
    return tg.rotary(x, *tables, heads=heads, interleaved=d.maybe(0.4))


def _heads(d: Draw, width: int) -> tuple[int, int]:
    """How many heads, and their size, which may be another than those columns have."""
    fits = [n for n in range(1, width + 1) if width % n == 0 and (d.times == 1 or width // n % 8 == 0)]
    heads = d.pick(fits) if fits else d.n(3)
    return heads, width // heads if fits else d.head(4)


def _wide(d: Draw, x: Value, width: int) -> Value:
    """x, or a linear of it that has so many columns."""
    return x if x.shape[-1] == width else tg.linear(x, d.weight(width, x.shape[-1]))


def _scores(p: Pool, x: Value) -> Value:
    """x yᵀ, y another value of the same width, or a given matrix for the whole batch."""
    d = p.draw
    other = [
        v for v in p.values if len(v.shape) == 3 and v.shape[0] == x.shape[0] and v.shape[-1] == x.shape[-1]
    ]
    y = d.pick(other) if other and d.maybe(0.7) else d.input(d.size(9), x.shape[-1])
    return tg.matmul(x, y, transpose_b=True)


def _product(p: Pool, x: Value) -> Value:
    d, (b, s, c) = p.draw, x.shape
    ta, tb = d.maybe(), d.maybe()
    inner, n = s if ta else c, d.size(9)
    right = (n, inner) if tb else (inner, n)
    lead = (b,) if d.maybe(0.6) else ()
    return tg.matmul(x, p.like((*lead, *right)) or d.input(*lead, *right), transpose_a=ta, transpose_b=tb)


def _attention(p: Pool, x: Value) -> Value:
    """q, k and v from one linear layer."""
    d = p.draw
    kv, group, size = d.n(2), d.n(2), d.head(4)
    heads = kv * group
    qkv = tg.linear(x, d.weight((heads + 2 * kv) * size, x.shape[-1]))
    q, k, v = qkv.split([heads * size, kv * size, kv * size])
    return tg.attention(q, k, v, heads=heads, kv_heads=kv, **_mask(d, d.maybe(), heads, q, k))


def _mask(d: Draw, causal: bool, heads: int, queries: Value, keys: Value | None) -> dict[str, Any]:
    """Of so many heads; keys: those of an attention that is not over caches."""
    how: dict[str, Any] = {"causal": causal, "softcap": 1.5 if d.maybe(0.2) else None}
    how["window"] = d.n(6) if causal and d.maybe(0.4) else None
    how["alibi"] = d.weight(heads, dtype="float32") if d.maybe(0.3) else None
    if keys is not None:
        how["lengths"] = d.ids(keys.shape[0]) if d.maybe(0.3) else None
        if d.maybe(0.3):
            whole = keys.shape[0], heads, queries.shape[1]
            sizes = (n if d.maybe() else 1 for n in whole)
            how["bias"] = d.pick((d.input, d.weight))(*sizes, keys.shape[1])
            how["bias"] = tg.log(tg.relu(how["bias"])) if d.maybe(0.4) else how["bias"]
        how["prefix"] = d.n(keys.shape[1]) if causal and not how["window"] and d.maybe() else None
        if d.maybe(0.3):
            size = d.n(5), d.n(5)
            rows, columns = (-(-v.shape[1] // n) for v, n in zip((queries, keys), size, strict=True))
            how["block_mask"] = [[d.maybe() for _ in range(columns)] for _ in range(rows)]
            how["block_size"] = size
    return how


def _cross_attention(p: Pool, x: Value) -> Value:
    """x asks, another value answers."""
    d = p.draw
    others = [
        v for v in p.values if len(v.shape) == 3 and v.shape[0] == x.shape[0] and v.shape[-1] == x.shape[-1]
    ]
    k, (heads, size) = d.pick(others), _heads(d, x.shape[-1])
    v = d.pick([v for v in others if v.shape == k.shape])
    x, k, v = (_wide(d, each, heads * size) for each in (x, k, v))
    causal = k.shape[1] >= x.shape[1] and d.maybe()
    return tg.attention(x, k, v, heads=heads, **_mask(d, causal, heads, x, k))


def _cache(p: Pool, x: Value) -> Value:
    """Keys go into a cache, at a fixed place or at a position; x asks the cache."""
    d, (b, s, c) = p.draw, x.shape
    fixed, room = d.maybe(), d.n(5, 0)
    place: Any = d.n(room, 0) if fixed else d.position()
    heads, size = _heads(d, c)
    x, new = (_wide(d, each, heads * size) for each in (x, p.like(x.shape) or x))
    cache = tg.append(d.state(b, s + room, heads * size), new, at=place)
    how = _mask(d, d.maybe() or not fixed, heads, x, cache if fixed else None)
    return tg.attention(x, cache, cache, heads=heads, at=None if fixed else place, **how)


# --- ops on (B, H, W, C) ------------------------------------------------------------------------------------


def _conv(p: Pool, x: Value) -> Value:
    d, x = p.draw, view(p.draw, x)
    stride, padding, dilation = ([d.n(2), d.n(2)] for _ in range(3))
    padding = [n - 1 for n in padding]
    size = [d.n(min(3, 1 + (x.shape[1 + i] + 2 * padding[i] - 1) // dilation[i])) for i in (0, 1)]
    n = d.size(5)
    bias = d.weight(n) if d.maybe(0.3) else None
    return activation(
        d,
        tg.conv2d(x, d.weight(n, *size, x.shape[3]), bias, stride=stride, padding=padding, dilation=dilation),
    )


def _grouped_conv(p: Pool, x: Value) -> Value:
    d, c = p.draw, x.shape[3]
    groups = divisor(d, c)
    size = [d.n(min(3, x.shape[1 + i])) for i in (0, 1)]
    w = d.weight(groups * d.n(2), *size, c // groups)
    return activation(d, tg.conv2d(x, w, stride=d.n(2), padding=[n // 2 for n in size], groups=groups))


def _conv_transposed(p: Pool, x: Value) -> Value:
    """Back to where a convolution came from, or further."""
    d = p.draw
    stride, padding, dilation = ([d.n(2), d.n(2)] for _ in range(3))
    size = [d.n(3), d.n(3)]
    more = [d.n(max(s, t) - 1, 0) for s, t in zip(stride, dilation, strict=True)]
    grown = [
        (n - 1) * s + t * (r - 1) + m + 1
        for n, s, t, r, m in zip(x.shape[1:3], stride, dilation, size, more, strict=True)
    ]
    padding = [min(before - 1, (n - 1) // 2) for before, n in zip(padding, grown, strict=True)]
    n = d.size(5)
    how = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation}
    bias = d.weight(n) if d.maybe(0.3) else None
    return activation(d, tg.conv_transpose2d(x, d.weight(n, *size, x.shape[3]), bias, **how))


def _weighed(p: Pool, x: Value) -> Value:
    """Its channels, by numbers that each image has for them."""
    d, c = p.draw, x.shape[3]
    each = tg.sigmoid(tg.linear(tg.global_avg_pool(x), d.weight(c, c)))
    return activation(d, tg.mul(x, each) if d.maybe() else tg.sub(each, x))


def _conv_residual(p: Pool, x: Value) -> Value:
    c = x.shape[3]
    y = tg.conv2d(x, p.draw.weight(c, 3, 3, c), padding=1)
    return tg.relu(tg.add(y, p.like(x.shape) or x))


def _pool(p: Pool, x: Value) -> Value:
    d = p.draw
    window = [d.n(min(3, x.shape[1 + i])) for i in (0, 1)]
    return tg.max_pool2d(x, window, stride=[d.n(2), d.n(2)], padding=[d.n(w // 2, 0) for w in window])


def _avg_pool(p: Pool, x: Value) -> Value:
    d = p.draw
    window = [d.n(min(3, x.shape[1 + i])) for i in (0, 1)]
    padding = [d.n(w // 2, 0) for w in window]
    return tg.avg_pool2d(x, window, stride=[d.n(2), d.n(2)], padding=padding, count_include_pad=d.maybe())


def _norm_of_pixels(p: Pool, x: Value) -> Value:
    return _norm(p, tg.upsample(x, 1))


def _group_norm(p: Pool, x: Value) -> Value:
    c = x.shape[3]
    return activation(p.draw, tg.group_norm(x, divisor(p.draw, c), p.draw.weight(c), p.draw.weight(c)))


def _upsample(p: Pool, x: Value) -> Value:
    return tg.upsample(x, [p.draw.n(3), p.draw.n(2)])


def _mean(p: Pool, x: Value) -> Value:
    return tg.global_avg_pool(x)


def _flat_linear(p: Pool, x: Value) -> Value:
    return tg.linear(tg.flatten(x), p.draw.weight(p.draw.size(8), prod(x.shape[1:])))


Op = Callable[[Pool, Value], Value]
ROWS: tuple[Op, ...] = (
    *(_linear, _linear, _residual, _gated, _norm, _softmax, _pointwise),
    *(_reduced, _column, _cat, _looked_up, _picked, _moved, _by_int8, _maths, _beside, _float8),
)
SEQUENCES: tuple[Op, ...] = (
    *ROWS,
    _rope,
    _scores,
    _product,
    _attention,
    _attention,
    _cross_attention,
    _cache,
)
IMAGES: tuple[Op, ...] = (
    *(_conv, _conv, _conv_residual, _grouped_conv, _weighed, _pool, _mean, _flat_linear),
    *(_avg_pool, _group_norm, _norm_of_pixels, _upsample, _conv_transposed, _column, _cat, _moved),
    *(_maths, _beside),
)


def grow(p: Pool) -> None:
    """One more op, on the newest value more often than not."""
    x = p.values[-1] if p.draw.maybe(0.6) else p.draw.pick(p.values)
    settled = len(x.shape) == 4
    ops = IMAGES if settled else SEQUENCES if len(x.shape) == 3 else ROWS
    p.values.append(p.draw.pick(ops)(p, x))


def draw_program(d: Draw) -> Program:
    """One to five ops or small groups of ops on one input; what nobody reads is returned, and now and then
    something read."""
    rows, images = (d.size(9), d.size(12)), (d.n(8, 2), d.n(8, 2), d.size(4))
    shape = d.pick([(d.n(2), *rows), (d.size(12), d.size(12)), (d.n(2), *images)])
    wanted = d.n(5)

    def program() -> tuple[Value, ...]:
        p = Pool(d, [d.input(*shape)])
        while len(p.values) <= wanted or len(p.values[0].builder.calls) < 2:
            grow(p)
        made = {v.tensor: v for v in (*p.values[1:], *p.ids)}  # a copy of all of a value is that value
        made.pop(p.values[0].tensor, None)
        read = {o.tensor for c in p.values[0].builder.calls for o in c.operands}
        return tuple(v for v in made.values() if v.tensor not in read or d.maybe(0.15))

    return tg.spec(program)()


@dataclass(frozen=True)
class Case:
    """A program with all that planning it takes."""

    program: Program
    machine: str
    options: Options
    graph: Graph  # tiled, before a policy is chosen


def draw_case(seed: Any) -> Case:
    """A program, a machine and options: tiles, clusters, split sums, policies, order, scheduling."""
    d = Draw(seed)
    case = None
    while case is None:
        case = _try_case(d)
    return case


def _try_case(d: Draw) -> Case | None:
    """None when a consumer reads nothing at all of a tensor, as a 1x1 filter that only ever stands on
    padding: there is nothing to plan."""
    program = draw_program(d)
    on, fused = d.pick(MACHINES), fuse(program)
    scheduling, order = d.pick(("dynamic", "lists", "static")), d.pick(ORDERS)
    options = draw_options(d, fused, 24, (2, 3) if on == "h200" else (2,), scheduling=scheduling, order=order)
    graph = tiled(fused, place(on), options)
    policies = {}
    for tensor, lattice in lattices_of(graph).items():
        if not any(len(r.tile) for r in lattice.relations):
            return None
        names = [p.name.split("=")[0] for p in lattice.points if not p.unawaited]
        chunk = f"chunk:{d.n(3)}"
        if not lattice.point(chunk).unawaited:
            names.append(chunk)
        if d.maybe(0.6):
            policies[tensor] = d.pick(names)
    return Case(program, on, Options.of(**{**options.__dict__, "policies": policies}), graph)
