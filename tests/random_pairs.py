"""Random pairs of ops: a producer of each kind feeding a consumer of each kind, in random sizes and tiles
that rarely divide anything.

The consumer is drawn first, since it says what shape it reads; the producer is one that can make that shape.
The same seed gives the same pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import tilegen as tg
from tests.random_draws import Draw, divisor, draw_options, heads_of
from tilegen.frontend.value import Value
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.schedule.planner import tiled
from tilegen.targets.select import place


@dataclass(frozen=True)
class Want:
    """What a consumer reads: a tensor of this shape, or some of its columns; `use` makes the consumer."""

    shape: tuple[int, ...]
    use: Callable[[Value], Value]


def columns(d: Draw, width: int) -> tuple[int, Callable[[Value], Value]]:
    """A width that holds `width` columns, and the view of them: all, or those between some others."""
    before, after = (d.n(9, 0), d.n(9, 0)) if d.maybe(0.4) else (0, 0)
    widths = [w for w in (before, width, after) if w]
    if len(widths) == 1:
        return width, lambda h: h
    return sum(widths), lambda h: h.split(widths)[1 if before else 0]


# --- consumers ----------------------------------------------------------------------------------------------


def rows_shape(d: Draw, high: int = 20) -> tuple[int, int]:
    return d.n(3), d.n(high)


def _linear(d: Draw) -> Want:
    width = d.n(40)
    total, view = columns(d, width)
    lead = rows_shape(d) if d.maybe() else (d.n(40),)
    return Want((*lead, total), lambda h: tg.linear(view(h), d.weight(d.n(30), width), name="c"))


def _linear_weight(d: Draw) -> Want:
    """A product of an activation with a matrix that another op made."""
    n, k = d.n(30), d.n(30)
    return Want((n, k), lambda h: tg.linear(d.input(d.n(20), k), h, name="c"))


def _gated_weight(d: Draw) -> Want:
    n, k = d.n(15), d.n(30)

    def use(h: Value) -> Value:
        gate, up = tg.linear(d.input(d.n(20), k), h, name="c").chunk(2)
        return tg.mul(tg.silu(gate), up)

    return Want((2 * n, k), use)


def _gated(d: Draw) -> Want:
    shape = (*rows_shape(d), d.n(30))

    def use(h: Value) -> Value:
        gate, up = tg.linear(h, d.weight(2 * d.n(12), shape[-1]), name="c").chunk(2)
        return tg.mul(tg.silu(gate), up)

    return Want(shape, use)


def _residual(d: Draw) -> Want:
    shape, k = (*rows_shape(d), d.n(40)), d.n(20)
    return Want(
        shape, lambda h: tg.add(tg.linear(d.input(*shape[:-1], k), d.weight(shape[-1], k), name="c"), h)
    )


def _fan_in(d: Draw) -> Want:
    """The same tensor as operand of the product and of its epilogue."""
    shape = (*rows_shape(d), d.n(30))
    return Want(shape, lambda h: tg.mul(tg.linear(h, d.weight(shape[-1], shape[-1]), name="c"), h))


def _matmul(d: Draw) -> Want:
    b, m, k, n = d.n(3), d.n(20), d.n(20), d.n(20)
    left, ta, tb = d.maybe(), d.maybe(), d.maybe()
    a_shape, b_shape = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    lead = () if not left and d.maybe() else (b,)
    if left:
        right = () if d.maybe(0.3) else (b,)
        return Want(
            (b, *a_shape),
            lambda h: tg.matmul(h, d.input(*right, *b_shape), transpose_a=ta, transpose_b=tb, name="c"),
        )
    return Want(
        (*lead, *b_shape),
        lambda h: tg.matmul(d.input(b, *a_shape), h, transpose_a=ta, transpose_b=tb, name="c"),
    )


def _softmax(d: Draw) -> Want:
    rows, causal = d.n(16), d.maybe()
    width = d.n(20) + (rows - 1 if causal else 0)
    total, view = columns(d, width)
    return Want((d.n(3), rows, total), lambda h: tg.softmax(view(h), causal=causal, scale=0.5, name="c"))


def _self_attention(d: Draw) -> Want:
    (heads, kv, size), (b, s) = heads_of(d), rows_shape(d, 16)

    def use(h: Value) -> Value:
        q, k, v = h.split([heads * size, kv * size, kv * size])
        return tg.attention(q, k, v, heads=heads, kv_heads=kv, causal=d.maybe(), name="c")

    return Want((b, s, (heads + 2 * kv) * size), use)


def _key_attention(d: Draw) -> Want:
    """Keys and values are made, queries are given, in another number."""
    (heads, kv, size), (b, k_len), causal = heads_of(d), rows_shape(d, 20), d.maybe()

    def use(h: Value) -> Value:
        k, v = h.chunk(2)
        q = d.input(b, d.n(k_len if causal else 20), heads * size)
        return tg.attention(q, k, v, heads=heads, kv_heads=kv, causal=causal, name="c")

    return Want((b, k_len, 2 * kv * size), use)


def _query_attention(d: Draw) -> Want:
    (heads, kv, size), (b, q_len), causal = heads_of(d), rows_shape(d, 16), d.maybe()

    def use(h: Value) -> Value:
        k_len = d.n(9, 0) + q_len if causal else d.n(20)
        k, v = (d.input(b, k_len, kv * size) for _ in range(2))
        return tg.attention(h, k, v, heads=heads, kv_heads=kv, causal=causal, name="c")

    return Want((b, q_len, heads * size), use)


def _cache_attention(d: Draw) -> Want:
    """New keys and values go into a cache, which attention reads: an append at a fixed place or at a
    position."""
    (heads, kv, size), (b, seq), fixed = heads_of(d), rows_shape(d, 8), d.maybe(0.7)
    at = d.n(9, 0)

    def use(h: Value) -> Value:
        place: Any = at if fixed else d.position()
        cache = tg.append(d.state(b, at + seq + d.n(9, 0), kv * size), h, at=place, name="c")
        q = d.input(b, d.n(min(6, cache.shape[1])), heads * size)
        return tg.attention(
            q, cache, cache, heads=heads, kv_heads=kv, causal=d.maybe(), at=None if fixed else place, name="r"
        )

    return Want((b, seq, kv * size), use)


def _norm(d: Draw) -> Want:
    width = d.n(30)
    total, view = columns(d, width)
    lead = rows_shape(d) if d.maybe() else (d.n(40),)
    if d.maybe():
        return Want((*lead, total), lambda h: tg.rms_norm(view(h), d.weight(width), name="c"))
    return Want((*lead, total), lambda h: tg.layer_norm(view(h), d.weight(width), d.weight(width), name="c"))


def _rope(d: Draw) -> Want:
    heads, size = d.n(5), 2 * d.n(3)
    total, view = columns(d, heads * size)
    return Want((*rows_shape(d), total), lambda h: tg.rope(view(h), heads=heads, name="c"))


def _pointwise(d: Draw) -> Want:
    shape = (*rows_shape(d), d.n(40)) if d.maybe() else image(d)
    return Want(shape, lambda h: tg.mul(h, d.input(*shape), name="c"))


def image(d: Draw, channels: int = 8) -> tuple[int, int, int, int]:
    return d.n(2), d.n(14), d.n(14), d.n(channels)


def conv(d: Draw, x: Value, **more: Any) -> Value:
    """A convolution of x with a filter that fits; even filters, strides, dilations and paddings of any
    size."""
    stride, padding, dilation = ([d.n(3), d.n(3)] for _ in range(3))
    padding = [p - 1 for p in padding]
    if d.maybe():
        dilation = [1, 1]
    size = [d.n(min(4, 1 + (x.shape[1 + i] + 2 * padding[i] - 1) // dilation[i])) for i in (0, 1)]
    return tg.conv2d(
        x, d.weight(d.n(8), *size, x.shape[3]), stride=stride, padding=padding, dilation=dilation, **more
    )


def _conv(d: Draw) -> Want:
    b, h, w, c = image(d)
    total, view = columns(d, c)
    return Want((b, h, w, total), lambda x: conv(d, view(x), name="c"))


def _conv_residual(d: Draw) -> Want:
    shape, c = image(d), d.n(4)

    def use(h: Value) -> Value:
        return tg.add(tg.conv2d(d.input(*shape[:3], c), d.weight(shape[3], 3, 3, c), padding=1, name="c"), h)

    return Want(shape, use)


def pool(d: Draw, x: Value, **more: Any) -> Value:
    window = [d.n(min(4, x.shape[1 + i])) for i in (0, 1)]
    return tg.max_pool2d(x, window, stride=[d.n(3), d.n(3)], padding=[d.n(w // 2, 0) for w in window], **more)


def _pool(d: Draw) -> Want:
    return Want(image(d), lambda h: pool(d, h, name="c"))


def _mean(d: Draw) -> Want:
    return Want(image(d), lambda h: tg.global_avg_pool(h, name="c"))


def _flatten(d: Draw) -> Want:
    shape = (d.n(3), d.n(5), d.n(5), d.n(6))
    return Want(shape, lambda h: tg.linear(tg.flatten(h), d.weight(d.n(20), prod(shape[1:])), name="c"))


CONSUMERS: dict[str, Callable[[Draw], Want]] = {
    "linear": _linear,
    "linear weight": _linear_weight,
    "gated weight": _gated_weight,
    "gated": _gated,
    "linear residual": _residual,
    "fan-in": _fan_in,
    "matmul": _matmul,
    "softmax": _softmax,
    "self attention": _self_attention,
    "key attention": _key_attention,
    "query attention": _query_attention,
    "cache attention": _cache_attention,
    "norm": _norm,
    "rope": _rope,
    "pointwise": _pointwise,
    "conv2d": _conv,
    "conv2d residual": _conv_residual,
    "max_pool2d": _pool,
    "global_avg_pool": _mean,
    "flatten": _flatten,
}


# --- producers ----------------------------------------------------------------------------------------------


def _make_matmul(d: Draw, shape: tuple[int, ...]) -> Value:
    *lead, m, n = shape
    k, ta, tb = d.n(12), d.maybe(), d.maybe()
    a = d.input(*lead, *((k, m) if ta else (m, k)))
    b = d.input(*(lead if d.maybe() else ()), *((n, k) if tb else (k, n)))
    return tg.matmul(a, b, transpose_a=ta, transpose_b=tb, name="p")


def _make_attention(d: Draw, shape: tuple[int, ...]) -> Value:
    b, q_len, width = shape
    heads = divisor(d, width)
    kv = divisor(d, heads)
    k, v = (d.input(b, 7, kv * (width // heads)) for _ in range(2))
    return tg.attention(d.input(*shape), k, v, heads=heads, kv_heads=kv, name="p")


def _make_conv(d: Draw, shape: tuple[int, ...]) -> Value:
    (b, p, q, n), c, stride, pad, filter_size = (
        shape,
        d.n(4),
        [d.n(2), d.n(2)],
        [d.n(1, 0), d.n(1, 0)],
        [d.n(3), d.n(3)],
    )
    sizes = [(out - 1) * s + r - 2 * z for out, s, r, z in zip((p, q), stride, filter_size, pad, strict=True)]
    if min(sizes) < 1:
        return tg.conv2d(d.input(b, p, q, c), d.weight(n, 1, 1, c), name="p")
    return tg.conv2d(
        d.input(b, *sizes, c), d.weight(n, *filter_size, c), stride=stride, padding=pad, name="p"
    )


def _make_pointwise(d: Draw, shape: tuple[int, ...]) -> Value:
    x = d.input(*shape)
    if len(shape) == 4:
        # a reader that takes x as spatial: a pointwise op alone takes its input as rows
        d.extra.append(tg.global_avg_pool(x))
    return tg.relu(x, name="p")


def makers(shape: tuple[int, ...]) -> dict[str, Callable[[Draw], Value]]:
    """Producers that can make a tensor of this shape."""
    *lead, width = shape
    found: dict[str, Callable[[Draw], Value]] = {"pointwise": lambda d: _make_pointwise(d, shape)}
    if len(shape) == 4:
        found["conv2d"] = lambda d: _make_conv(d, shape)
        found["max_pool2d"] = lambda d: tg.max_pool2d(
            d.input(shape[0], 2 * shape[1], 2 * shape[2], width), 2, name="p"
        )
        return found
    found["linear"] = lambda d: (lambda k: tg.linear(d.input(*lead, k), d.weight(width, k), name="p"))(
        d.n(12)
    )
    found["matmul"] = lambda d: _make_matmul(d, shape)
    found["rms_norm"] = lambda d: tg.rms_norm(d.input(*shape), d.weight(width), name="p")
    found["softmax"] = lambda d: tg.softmax(
        d.input(*shape), causal=width >= shape[-2] and d.maybe(), name="p"
    )
    if len(shape) == 3:
        found["attention"] = lambda d: _make_attention(d, shape)
        if width % 2 == 0:
            found["rope"] = lambda d: tg.rope(d.input(*shape), heads=divisor(d, width // 2), name="p")
    else:
        found["global_avg_pool"] = lambda d: tg.global_avg_pool(d.input(shape[0], 3, 2, width), name="p")
    return found


# --- pairs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    producer: str
    consumer: str
    graph: Graph


def draw_pair(seed: Any) -> Pair:
    """One random pair, tiled."""
    d = Draw(seed)
    consumer = d.pick(CONSUMERS)
    chosen: list[str] = []

    def pair() -> tuple[Value, ...]:
        want = CONSUMERS[consumer](d)
        options = makers(want.shape)
        chosen.append(d.pick(options))
        h = options[chosen[0]](d)
        return h, want.use(h), *d.extra  # the producer is an output too: nothing is folded into it

    graph = fuse(tg.spec(pair)())
    return Pair(chosen[0], consumer, tiled(graph, place("h200"), draw_options(d, graph)))
