"""Tile configs on a Hopper GPU: of the cuts of linears (linear_cuts.py) and of convolutions that its kernel
can run, the best by the cost model; and into how many splits the keys of an attention over caches are split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.frontend.attributes import Attributes
from tilegen.graph import attention_time
from tilegen.graph.conv_box import SLIDING_DEPTH, ConvBox, by_boxes
from tilegen.graph.conv_time import time_of_box
from tilegen.graph.cost_model import split_keys_us
from tilegen.graph.forms import Config
from tilegen.graph.gathered import by_threads
from tilegen.graph.graph import Graph
from tilegen.graph.linear_time import (
    ALONE,
    DEEPEST,
    STAGE_ROWS,
    rows_of_block,
)
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.attention import FEW, AttentionAttributes, keys_of_block
from tilegen.ops.base import OpInstance, TileOp, ceil_div
from tilegen.ops.block_mask import fitting
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes
from tilegen.ops.pool import GlobalAvgPoolAttributes, PoolAttributes
from tilegen.targets.sm90.linear_cuts import (
    LEAST_STAGES,
    SHAPES,
    SHARED,
    by_least_time,
    config_of,
    linear_configs,
)

GATHERED = 52_000  # of it for a first layer of few channels
ON_ITS_WAY = 64_000  # bytes of an op's stages that hide what a load takes
STAGES = (*range(64, 385, 32), 448, 576)  # rows of 128 bytes that a stage of linears may have
# µs that an op of several takes longer whose CTAs load for each other: measured, why is not known
TOGETHER = 1.5
# clusters of several sizes in one launch are to gain so much: a pair's CTAs hand each other the tiles that
# one runs
MIXED = 0.97
PLANNED = tuple(SHAPES)  # sizes of clusters for a linear in a launch of its own
PAIRS = 1, 2  # sizes of clusters whose CTAs can also run an op each

Configs = Callable[[OpInstance, Machine, int], Iterator[Config]]
Staged = tuple[Config, int]  # a config, and the bytes of its stage


def best_configs(graph: Graph, machine: Machine, clusters: Sequence[int] = ()) -> Mapping[str, Config]:
    """Product -> its best config. Linears all with clusters of one size: of the sizes given, else of all that
    suit the launch, that with the least sum of times. Empty where none fits all products.

    Other ops are run by one CTA of a cluster, which then may not share what it loads: its CTAs' rings would
    drift apart. Pairs are for products with hardly anything between them: norms, rope and attention on half
    of the SMs cost more than pairs gain. In a net of convolutions each has the cluster that suits it.
    """
    products = [op for op in graph.ops if type(op.attributes) in CONFIGS and not by_threads(graph.bound(op))]
    alone = len(products) == len(graph.ops) and graph.consists_of(LinearAttributes)
    clusters = clusters or (PLANNED if alone and len(products) == 1 else PAIRS)
    between = not graph.consists_of(*CONFIGS, PoolAttributes, GlobalAvgPoolAttributes)
    if not between and any(isinstance(op.attributes, ConvAttributes) for op in products):
        return _net_configs(graph, products, machine, clusters)
    choices = []
    least = max((stage_rows(b, machine) for b in graph.ops_of(AttentionAttributes)), default=0)
    several = len(products) > 1 and graph.ops_of(LinearAttributes)
    for cluster in clusters if not between else clusters[:1]:
        for stage in (s for s in STAGES if s >= least) if several else (0,):
            found = {}
            for op in products:
                together = (TOGETHER if several else 0.0) if alone else None
                found[op.name] = _best(graph.bound(op), machine, cluster, stage, together)
            if found and all(found.values()):
                choices.append({name: config for name, config in found.items() if config is not None})
    best = min(choices, key=lambda chosen: sum(c.us for c in chosen.values()), default={})
    return best if alone or not best else _deepened(graph, best, machine)


def _best(b: OpInstance, machine: Machine, cluster: int, stage: int, together: float | None) -> Config | None:
    """Of a product the config with the least time; of a linear, for a ring whose stages have so many rows.
    together: µs that a cluster takes longer whose CTAs load for each other; None: none may, since ops of
    other kinds are in the launch."""
    if not isinstance(b.attributes, LinearAttributes):
        configs = (_weighed(b, c, together) for c in CONFIGS[type(b.attributes)](b, machine, cluster))
        return min((c for c in configs if c), key=lambda c: c.us, default=None)
    best: Config | None = None
    alone = together is not None and not stage
    for least, cut in by_least_time(b, machine, cluster, alone, together is None):
        if best and least >= best.us:
            break
        c = _weighed(b, config_of(b, machine, cut, stage, together is None), together)
        if c and c.us < (best.us if best else math.inf):
            best = c
    return best


def _weighed(b: OpInstance, c: Config, together: float | None) -> Config | None:
    """With what it costs that CTAs load for each other; None where they must not."""
    if not _loads_together(b, c):
        return c
    return None if together is None else replace(c, us=c.us + together)


def _net_configs(
    graph: Graph, products: Sequence[TileOp], machine: Machine, clusters: Sequence[int]
) -> Mapping[str, Config]:
    """The configs of a net of convolutions with the least sum of times: clusters of one size or of several,
    and stages of the ring, which are all of one size, not so large for some that too few bytes of others are
    on their way."""
    fitting: dict[str, list[Staged]] = {}
    known: dict[Any, list[Staged]] = {}  # of ops alike, of which a net has many
    alone = len(graph.ops) == 1
    for op in products:
        b = graph.bound(op)
        if (alike := _alike(b)) in known:
            fitting[op.name] = known[alike]
            continue
        configs_of = partial(conv_configs, alone=alone) if by_boxes(b) else CONFIGS[type(op.attributes)]
        every = (
            c
            for cluster in clusters
            for c in configs_of(b, machine, cluster)
            if cluster == 1 or not _loads_together(b, c)
        )
        fitting[op.name] = known[alike] = [(c, stage_bytes(b, c)) for c in every]
    gathers = any(by_threads(b) for b in graph.ops_of(ConvAttributes))
    room = SHARED - (GATHERED if gathers else 0)
    best, least = dict[str, Staged](), math.inf
    for allowed in [*((cluster,) for cluster in clusters), tuple(clusters)]:
        first = {name: _cheapest(configs, allowed, room) for name, configs in fitting.items()}
        for most in sorted({size for _, size in first.values()}):
            chosen = {name: _cheapest(configs, allowed, most) for name, configs in fitting.items()}
            us = _net_us(chosen.values(), room) / (MIXED if len(allowed) > 1 else 1.0)
            if us < least:
                best, least = chosen, us
    return _deepened(graph, {name: config for name, (config, _) in best.items()}, machine)


def _alike(b: OpInstance) -> tuple[Any, ...]:
    """All of an op that its configs and their times depend on: not how its tensors are called."""
    operands = tuple((b.shape(n), b.dtype(n)) for n in range(len(b.op.operands)))
    return b.op.kind, b.attributes, b.op.epilogue, operands, b.out, b.result.dtype


def _cheapest(configs: Sequence[Staged], allowed: Sequence[int], most: int) -> Staged:
    """Of the configs for clusters of these sizes and stages of at most so many bytes; one that takes forever
    where there is none."""
    return min(
        (c for c in configs if c[0].cluster.size in allowed and c[1] <= most),
        key=lambda c: c[0].us,
        default=(Config((), ALONE, math.inf), most),
    )


def _net_us(chosen: Collection[Staged], room: int) -> float:
    """The sum of times, where an op waits that has fewer bytes on their way than hide what a load takes."""
    stages = room // max(size for _, size in chosen)
    return sum(config.us * max(1.0, ON_ITS_WAY / max(1, stages * size)) for config, size in chosen)


def stage_bytes(b: OpInstance, c: Config) -> int:
    """Of a product's step in the ring."""
    if isinstance(b.attributes, LinearAttributes):
        return rows_of_block(b, c.tile[0], c.tile[1]) * ROW_BYTES * ceil_div(c.tile[2], 64)
    return _stage_rows(ConvBox.of(b, c.tile), c.tile[3]) * ROW_BYTES


def _stage_rows(box: ConvBox, width: int) -> int:
    """Of 128 bytes, with room for all rows that tensor cores read."""
    if box.slides_down:
        return box.stage_bytes(width) // ROW_BYTES
    return box.rows * box.blocks_loaded + width * box.blocks


def _deepened(graph: Graph, chosen: Mapping[str, Config], machine: Machine) -> dict[str, Config]:
    """Linears of few rows with steps so deep that their weights fill the ring: all its stages are of one
    size, that of the largest of any op. CTAs that share a sum have a step each at least."""
    linears = {b.op.name: b for b in graph.ops_of(LinearAttributes) if b.op.name in chosen}
    if not linears or any(int(b.out[0]) > 64 for b in linears.values()):
        return dict(chosen)
    rows = {name: rows_of_block(b, 64, chosen[name].tile[1]) for name, b in linears.items()}
    least = max(
        [
            *rows.values(),
            *(stage_rows(b, machine) for b in graph.ops_of(AttentionAttributes)),
        ]
    )
    # convolutions have stages of their own
    most = STAGE_ROWS if len(linears) == len(chosen) else least

    def depth(name: str, stage: int) -> int:
        blocks, sharing = ceil_div(int(linears[name].shape(0)[1]), 64), chosen[name].cluster.k
        shared = ceil_div(blocks, sharing - 1) - 1 if sharing > 1 else DEEPEST
        return max(1, min(DEEPEST, shared, stage // rows[name]))

    def filled(stage: int) -> float:
        bytes_of = {name: math.prod(int(n) for n in b.shape(1)) for name, b in linears.items()}
        return sum(n * depth(name, stage) * rows[name] / stage for name, n in bytes_of.items())

    stage = max(range(least, max(least, most) + 1, 8), key=lambda rows: (filled(rows), rows))
    return {
        name: replace(c, tile=(*c.tile[:2], 64 * depth(name, stage))) if name in rows else c
        for name, c in chosen.items()
    }


def stage_rows(b: OpInstance, machine: Machine) -> int:
    """Rows of 128 bytes in a stage of an attention: a block of keys, and its values where one warpgroup takes
    it."""
    tq, tk, th = attention_tile(b, machine)
    return tk * ceil_div(int(AttentionAttributes.of(b).head_dim), 64) * (2 if tq * th <= FEW else 1)


def _loads_together(b: OpInstance, c: Config) -> bool:
    """Whether both CTAs of a pair get some of what they load from one copy (linear._Load.multicast)."""
    return isinstance(b.attributes, LinearAttributes) and (
        c.cluster.m > 1 or (c.cluster.n > 1 and min(c.tile[0], int(b.out[0])) > 56)
    )


# --- convolutions -------------------------------------------------------------------------------------------


def conv_configs(b: OpInstance, machine: Machine, cluster: int, alone: bool = True) -> Iterator[Config]:
    """Configs of a conv2d worth thinking about: boxes of pixels that fill 64 or 128 rows best, and every
    width. A pair splits K. alone: in a launch of its own, as convolutions were measured."""
    channels = int(b.shape(0)[3])
    if cluster not in PAIRS or not machine.clusters(cluster):
        return
    deep = [64 * n for n in (1, 2, 3, 4) if 64 * (n - 1) < channels]
    if channels % 64 == SLIDING_DEPTH:  # the last block of 64 would be half there
        deep.append(SLIDING_DEPTH)
    widest = min(256, ceil_div(int(b.out[3]), 16) * 16)
    for rows in (64, 128):
        for box in (box for depth in deep for box in _boxes(b, rows, depth)):
            if ceil_div(channels, box.depth) % cluster:
                continue
            # narrower ones take longer than the model says: two of 48 columns 24.6 us, one of 96 18.5
            for width in range(widest if box.slides_down else 16, widest + 1, 16):
                if _fits(box, width, cluster):
                    time = time_of_box(b, machine, box, width, cluster)
                    tile = (*box.pixels, width, box.depth)
                    us = time.alone(time.stages) if alone else time.formula(time.stages)
                    yield Config(tile, ClusterShape(k=cluster), us)


def _boxes(b: OpInstance, rows: int, depth: int) -> Sequence[ConvBox]:
    """Of those that slide and of those that do not the one that needs the fewest tiles; kept with the op,
    since clusters of all sizes ask for them."""
    kept: dict[tuple[int, int], Sequence[ConvBox]] = b.__dict__.setdefault("_boxes", {})
    if (rows, depth) not in kept:
        kept[rows, depth] = _fewest_tiles(b, rows, depth)
    return kept[rows, depth]


def _fewest_tiles(b: OpInstance, rows: int, depth: int) -> Sequence[ConvBox]:
    images, lines, pixels = (int(n) for n in b.out[:3])
    best: dict[bool, tuple[tuple[int, int], ConvBox]] = {}
    for tw in sorted({ceil_div(pixels, n) for n in range(1, 17)} | {min(8, pixels), min(16, pixels)}):
        for th in sorted({ceil_div(lines, n) for n in range(1, lines + 1)}):
            for one in {ConvBox(b, (1, th, tw), depth).spanned, th * tw}:
                tb = min(images, rows // one)
                if tb < 1:
                    continue
                box = ConvBox(b, (tb, th, tw), depth)
                if box.rows != rows or box.spanned != tb * one or box.sliding_problem:
                    continue
                count = ceil_div(images, tb) * ceil_div(lines, th) * ceil_div(pixels, tw)
                rank = (count, tb * (th + 2) * (tw + 2))
                if box.slides not in best or rank < best[box.slides][0]:
                    best[box.slides] = (rank, box)
    return [box for _, box in best.values()]


def _fits(box: ConvBox, width: int, cluster: int) -> bool:
    exchanged = box.rows * width * 2 if cluster > 1 else 0
    results = 2 * 8192 if box.rows > 64 else 0
    least = LEAST_STAGES if box.slides_down else 4
    return least * _stage_rows(box, width) * ROW_BYTES + exchanged + results <= SHARED


# what tensor cores compute tile by tile
CONFIGS: Mapping[type[Attributes], Configs] = {
    LinearAttributes: linear_configs,
    ConvAttributes: conv_configs,
}


def kind_of(c: Config) -> tuple[Any, ...]:
    """Configs of a kind differ in a little width."""
    return c.cluster, c.pingpong, c.tile[0] if len(c.tile) == 3 else c.tile[:3]


def best_of_kinds(configs: Iterable[Config]) -> list[Config]:
    """The best config of each kind by the model, the best first."""
    first: dict[Any, Config] = {}
    for c in sorted(configs, key=lambda c: c.us):
        first.setdefault(kind_of(c), c)
    return list(first.values())


# --- attention ----------------------------------------------------------------------------------------------


def attention_tile(b: OpInstance, machine: Machine) -> tuple[int, ...]:
    """The usual one, or one of half the rows, for both warpgroups in turn: that with the least time for the
    op alone."""
    (usual,) = b.kind.tiles(b, machine)
    if usual[0] * usual[2] <= FEW:
        return tuple(usual)
    a = AttentionAttributes.of(b)
    half = FEW, fitting(a, keys_of_block(FEW, int(a.head_dim))), 1
    return min(
        (half, tuple(usual)),
        key=lambda t: attention_time.alone_us(OpInstance(replace(b.op, tile=t), b.tensors), machine),
    )


def best_splits(b: OpInstance, machine: Machine) -> int:
    """Shares of the keys with the least time."""
    most = min(int(b.steps), machine.sms)
    return min(range(1, most + 1), key=lambda splits: split_keys_us(b, machine, splits))
