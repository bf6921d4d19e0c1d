"""What a linear takes on Hopper's tensor cores, in µs, for every way to cut it.

    step     = ‖products + scaling, bytes from L2, least step‖ · what a pair waits
    memory   = bytes from memory · (1 + narrow · share of the SMs that are idle, of all waves)

scaling is what a norm that was fused into the linear adds; its constants were measured in layers that decode
(docs/perf-log.md). What follows of steps is told in tilegen.graph.product_time.
"""

from __future__ import annotations

import math

from tilegen.arch.machine import Machine
from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES
from tilegen.graph.product_time import (
    ROW_BYTES,
    ProductTime,
    Rates,
    fills_at_once,
    pays_by_gpc,
    products_clocks,
    rates_of,
    rings_us,
)
from tilegen.graph.residual import LinearTraits, Residual
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.gemm import LinearAttributes, curves, groups, k_range, normed, patches, read_beside
from tilegen.ops.patches import BLOCK, Patches

DEEPEST, STAGE_ROWS = 4, 256  # blocks of 64 columns in a step, and rows of a stage, where weights stream
STAGED_ROWS = 128  # of a CTA, from which on results leave and residuals come by TMA
RESULTS = 32_768  # bytes of the buffers that a warpgroup with a tile to itself has besides
PACKED = 2  # rows of tiles up to which weights may be packed: they are read once or twice
ALONE = ClusterShape()


def rows_in_eights(b: OpInstance) -> int:
    """Of the result, as wgmma and TMA take them. Times depend on no other number of rows: so a size that
    moves has the tiles of a kernel of its own."""
    return ceil_div(int(b.out[0]), 8) * 8


def rows_of_block(b: OpInstance, height: int, width: int) -> int:
    """Rows of 128 bytes of activations and weights that 64 columns of K bring a CTA of height x width: of
    activations no more than there are."""
    return min(height, rows_in_eights(b)) + int(groups(b)) * width


def columns_of_step(b: OpInstance, deep: int) -> int:
    """Of K; deep: blocks of 64 that hold them."""
    seen = patches(b)
    return seen.step if seen and seen.step != BLOCK else BLOCK * deep


def time_of_cut(
    b: OpInstance,
    machine: Machine,
    height: int,
    width: int,
    cluster: ClusterShape = ALONE,
    deep: int = 1,
    pingpong: bool = False,
    rates: Rates | None = None,
) -> ProductTime:
    """A linear whose CTAs compute height x width each; deep: blocks of 64 columns in a step; pingpong: as
    TileOp has it; rates: of the formula alone, where they are given."""
    learned, rates = rates is None, rates or rates_of(machine)
    rows, columns, of_groups, seen = rows_in_eights(b), int(b.out[1]), int(groups(b)), patches(b)
    read, curved = read_beside(b), curves(b)
    wide = of_groups * width
    down, across = ceil_div(rows, height), ceil_div(columns, width)
    count = ceil_div(down, cluster.m) * ceil_div(across, cluster.n)
    waves = ceil_div(count, machine.clusters(cluster.size))
    filled = min(1.0, count * cluster.size / waves / machine.sms)
    lo, hi = k_range(b)
    loaded = min(height, rows)
    shared = ClusterShape(cluster.m, cluster.n if loaded >= 64 else 1, cluster.k)
    activations = rates.activations if cluster.size == 1 else rates.activations_of_clusters
    bytes = ROW_BYTES * deep * (activations * loaded / shared.n + wide / shared.m)
    # empty blocks of 64 rows are not multiplied, nor are rows that a swapped tile has not
    swapped = height % 64 != 0
    occupied = height if swapped else min(height, ceil_div(rows, 64) * 64)
    apart = rates.apart if shared.k > 1 else 1.0
    scaling = deep * rates.scaling(min(height, rows)) if normed(b) else 0.0
    clock = rates.clock / (1 + rates.hot * (1 - 1 / waves))
    in_step = columns_of_step(b, deep)
    clocks = in_step / BLOCK * products_clocks(occupied, width, of_groups, pingpong, loaded + wide, rates)
    step = rates.side_by_side(
        clocks / clock + scaling,
        apart * bytes / (rates.l2 * rates.clock) * filled,
        max(
            rates.least_step_of_pairs if cluster.size > 1 else rates.least_step,
            deep * _copies_clocks(seen, loaded / shared.n, wide / shared.m, rates) / rates.clock,
        ),
    )
    waiting = rates.waiting(shared) * (rates.by_one if pingpong and waves == 1 else 1.0)
    numbers, tiles = height * wide, count * cluster.size / machine.sms
    each = _of_number(b, rates, swapped, pingpong)
    stored = min(height, rows) * width
    beside = read * stored
    curve = rates.curve_turned if swapped else rates.curve
    sent = rates.sent_turned if swapped else rates.sent
    each += sent * 2 * (1 - 1 / cluster.k) + curved * curve / of_groups
    staged = height >= STAGED_ROWS and not swapped
    by_threads = rates.beside_turned if swapped else rates.beside
    fetched = beside / cluster.k * by_threads
    loaded_beside = beside / cluster.k * rates.beside_by_tma if staged else fetched
    # constants were fitted to pairs without their sums
    sums = sums_bytes(height, wide, cluster.k) if cluster.k > 2 else 0
    read_of_x = seen.numbers if seen else rows * (hi - lo)
    moved = 2.0 * (of_groups * columns * (hi - lo) + read_of_x + rows * columns)
    multiplied = count * cluster.size * ceil_div(hi - lo, 64) / cluster.k * occupied * wide / 32  # clocks
    steps = ceil_div(ceil_div(hi - lo, in_step), cluster.k)
    stage = deep * (loaded + wide)
    packed = ceil_div(down, cluster.m) <= PACKED
    traits = LinearTraits(
        height=height,
        width=width,
        numbers=height * width,
        m=cluster.m,
        n=cluster.n,
        k=cluster.k,
        pingpong=pingpong,
        deep=in_step / BLOCK,
        tiles=tiles,
        filled=filled,
        steps=steps,
        rows=rows,
        rows_there=rows / (down * height),
        columns_there=columns / (across * width),
        columns=columns,
        swapped=swapped,
        packed=packed,
        down=down,
        across=across,
        stage=stage,
        beside=read,
        curves=curved,
        patches=math.prod(seen.window) if seen else 0,
        stride=seen.stride[1] if seen else 0,
    )
    # linears with norms in them, or of several groups, were not measured
    measured = learned and not normed(b) and of_groups == 1
    return ProductTime(
        step * waiting,
        steps,
        numbers * each + loaded_beside + stored / cluster.k * rates.leaving(columns, swapped),
        waves,
        rates.from_memory(moved, machine, filled) + numbers * rates.epilogue,
        rings_us(machine),
        min(1.0, tiles),
        filled,
        stage,
        rates.trip_of_clusters if shared.m * shared.n > 2 else rates.trip,
        RESULTS if pingpong and staged else sums,
        pingpong,
        fetched - loaded_beside,
        cluster.size > 1,
        fills_at_once(waves == 1, not packed, pingpong, steps),
        multiplied / machine.sms / rates.limit,
        rates,
        Residual(machine, traits, steps * waves, moved) if measured else None,
    )


def by_gpc(b: OpInstance, machine: Machine) -> bool:
    """Whether a CTA of its launch walks the list of its SM, so that SMs of a GPC have neighbouring tiles, not
    the list of its own number. Not measured of patches, norms, clusters, and numbers of other sizes."""
    if not isinstance(b.attributes, LinearAttributes) or b.op.cluster > 1 or patches(b) or normed(b):
        return False
    if DTYPES[b.tensors[b.op.operands[0].tensor].dtype] != 2:
        return False
    lo, hi = (int(n) for n in k_range(b))
    down, across = (most(n) for n in b.grid)
    width = int(groups(b)) * b.tile[1]
    return pays_by_gpc(down, across, machine.sms, b.tile[0], width, ceil_div(hi - lo, BLOCK))


def _of_number(b: OpInstance, rates: Rates, swapped: bool, pingpong: bool) -> float:
    """Of the epilogue."""
    if not swapped:
        return rates.in_turn if pingpong else rates.epilogue
    return rates.turned_staged if not pingpong and turned_by_tma(b) else rates.turned


def turned_by_tma(b: OpInstance) -> bool:
    """Whether results of a swapped tile that both math warpgroups share leave by TMA."""
    return not read_beside(b) and int(b.out[1]) % 8 == 0 and DTYPES[b.result.dtype] == 2


def _copies_clocks(seen: Patches | None, rows: float, weights: float, rates: Rates) -> float:
    """Of an SM's bulk copies, which bring so many rows of patches and of weights: a row at a time."""
    if not seen:
        return 0.0
    of_patches = rates.patches_apart if max(seen.stride) > 1 else rates.patches
    return of_patches * rows + rates.beside_patches * weights


def time_of_tile(
    b: OpInstance,
    machine: Machine,
    tile: tuple[int, ...],
    cluster: ClusterShape,
    pingpong: bool = False,
    rates: Rates | None = None,
) -> ProductTime:
    """A linear with this tile, which the CTAs of a cluster split; pingpong: as TileOp has it."""
    height, width = tile[0] // cluster.m, tile[1] // cluster.n
    return time_of_cut(b, machine, height, width, cluster, ceil_div(tile[2], 64), pingpong, rates)


def linear_time(b: OpInstance, machine: Machine, rates: Rates | None = None) -> ProductTime:
    """A linear as it is cut."""
    return time_of_tile(b, machine, b.tile, b.op.cluster_shape, b.op.pingpong, rates)


def sums_bytes(rows: int, columns: int, k: int) -> int:
    """That a CTA is sent by the k - 1 others that split its tile's sums: of whole blocks of 64 rows for each
    math warpgroup, unless the tile is swapped."""
    whole = rows if rows == 64 or rows % 64 else 128 * ceil_div(rows, 128)
    return 4 * whole * columns * (k - 1) // k
