"""What random pairs and random programs share: random numbers, declared tensors, tiles and options."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import tilegen as tg
from tilegen.frontend.value import Value
from tilegen.graph.graph import Graph
from tilegen.ops.append import ropes
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.options import Options

CLUSTERS = {
    "linear": ("k", "km", "m", "n"),
    "matmul": ("k", "km", "m", "n"),
    "conv2d": ("k", "n"),
}


class Draw:
    """Random numbers, and the inputs and weights of the program that is being drawn. seed: or what draws.
    times: how many times as large as tiny ones sizes may be; above 1 heads of an attention have a GPU's."""

    def __init__(self, seed: Any, dtype: str = "float32", times: int = 1):
        self.random = seed if isinstance(seed, random.Random) else random.Random(str(seed))
        self.dtype, self.times = dtype, times
        self.count = 0
        self.extra: list[Value] = []  # more outputs

    def n(self, high: int, low: int = 1) -> int:
        return self.random.randint(low, high)

    def size(self, high: int, low: int = 1) -> int:
        """Of rows or columns: of large ones whole eights as often as any number."""
        if self.times > 1 and self.maybe():
            return 8 * self.n(max(1, high * self.times // 8))
        return self.n(high * self.times, low)

    def head(self, high: int) -> int:
        """Columns of a head: of large ones whole eights."""
        if self.times == 1:
            return self.n(high)
        return 8 * (self.n(high) if self.maybe(0.8) else self.n(32))

    def maybe(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def pick(self, items: Any) -> Any:
        return self.random.choice(list(items))

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def input(self, *shape: int, dtype: str = "") -> Value:
        return tg.input(self._name("x"), shape, dtype or self.dtype)

    def weight(self, *shape: int, dtype: str = "") -> Value:
        return tg.weight(self._name("w"), shape, dtype or self.dtype)

    def int8(self, *shape: int) -> Value:
        return tg.weight(self._name("w"), shape, "int8")

    def state(self, *shape: int) -> Value:
        return tg.state(self._name("s"), shape, self.dtype)

    def ids(self, *shape: int) -> Value:
        return tg.input(self._name("ids"), shape, "int32")

    def position(self) -> Value:
        return tg.input(self._name("at"), (1,), "int32")


def heads_of(d: Draw) -> tuple[int, int, int]:
    """heads, key heads, head size"""
    kv = d.n(3)
    return kv * d.n(3), kv, d.n(5)


def divisor(d: Draw, n: int) -> int:
    return int(d.pick(t for t in range(1, n + 1) if n % t == 0))


def inner_sizes(b: OpInstance) -> tuple[int, ...]:
    """What the entries of a tile cut, in order."""
    kind, out = b.op.kind, tuple(int(n) for n in b.out)
    a: Any = b.attributes
    match kind:
        case "linear":
            return (*out, b.shape(0)[1])
        case "matmul":
            return (a.m, a.n, a.k)
        case "conv2d":
            return (*out, b.shape(0)[3])
        case "grouped_conv2d":
            return (*out[:3], a.groups)
        case "softmax":
            return (a.rows,)
        case "attention":
            return (a.q_len, a.k_len)
        case "rms_norm" | "layer_norm" if len(out) == 4:
            return (out[1],)
        case "rms_norm" | "layer_norm" | "reduce" | "topk":
            return (out[0],)
        case "cat" | "pad":
            return out[:-1]
        case "group_norm":
            return (a.groups,)
        case "upsample":
            return tuple(int(n) for n in b.shape(0))
        case "rope" | "rotary":
            return (out[0], out[1] // a.head_dim)
        case "append":
            return (b.shape(1)[1],)
    return out


def draw_tile(d: Draw, b: OpInstance, parts: int, most: int = 80) -> tuple[int, ...]:
    """A tile of any size, wider than the tensor now and then, with at most about `most` tiles and 16
    steps."""
    sizes = inner_sizes(b)
    tile = [d.n(size + 2) for size in sizes]
    while prod(-(-s // t) for s, t in zip(sizes, tile, strict=True)) > most:
        entry = d.n(len(tile) - 1, 0)
        tile[entry] = min(2 * tile[entry], sizes[entry])
    a: Any = b.attributes
    if b.op.kind == "attention":
        group = a.heads // a.kv_heads
        tile.append(d.pick([n for n in range(1, group + 1) if group % n == 0]))
    if b.op.kind == "append" and ropes(b):
        tile[0] = -(-tile[0] // a.head_dim) * a.head_dim
    if parts > 1:
        for at in (3,) if b.op.kind == "conv2d" else (0, 1):
            tile[at] = -(-tile[at] // parts) * parts
    return tuple(tile)


def draw_options(
    d: Draw, graph: Graph, most: int = 80, clusters: tuple[int, ...] = (2,), **more: Any
) -> Options:
    """Tiles for all ops, clusters for some, and a split sum where a linear has chunks enough."""
    tiles, of_cluster, split_k, split_kv = {}, {}, {}, {}
    for op in graph.ops:
        b, cluster = graph.bound(op), 1
        if op.kind in CLUSTERS and d.maybe(0.3):
            cluster = d.pick(clusters)
            of_cluster[op.name] = f"{cluster}:{d.pick(CLUSTERS[op.kind])}"
        tiles[op.name] = draw_tile(d, b, cluster, most)
        if op.kind == "linear":
            chunks = -(-b.shape(0)[1] // tiles[op.name][2])
            if chunks >= 2 and d.maybe(0.25):
                split_k[op.name] = d.n(min(3, chunks), 2)
        if op.kind == "attention" and graph.bound(op).has("position"):
            steps = -(-AttentionAttributes.of(b).k_len // tiles[op.name][1])
            if steps >= 2 and d.maybe(0.5):
                split_kv[op.name] = d.n(min(4, steps), 2)
    return Options.of(tiles=tiles, cluster=of_cluster, split_k=split_k, split_kv=split_kv, **more)
