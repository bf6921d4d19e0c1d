"""Every cut of a linear that the kernel for Hopper can run: what a CTA computes, and what the CTAs of a
cluster split between them; with its time by the cost model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilegen.arch.gpus import SM_90
from tilegen.arch.machine import Machine
from tilegen.frontend.program import DTYPES
from tilegen.graph import residual
from tilegen.graph.forms import Config
from tilegen.graph.linear_time import (
    ALONE,
    DEEPEST,
    RESULTS,
    STAGE_ROWS,
    columns_of_step,
    rows_of_block,
    sums_bytes,
    time_of_cut,
)
from tilegen.graph.product_time import ROW_BYTES, ProductTime, stages_of
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.gemm import curves, groups, k_range, normed, patches, read_beside
from tilegen.ops.patches import BLOCK, Patches
from tilegen.targets.sm90.tile import BOX, HEIGHTS, HEIGHTS_IN_TURN, SUMS, SWAPPED_COLUMNS

SHARED = SM_90.shared_block - 4448  # bytes of shared memory for the ring and result buffers
# sums that a math thread can hold where it sends half of them away; where the other warpgroup has fewer
SUMS_OF_PAIRS, UNEVEN_SUMS_OF_PAIRS = 144, 176
# CTAs of a cluster -> how they may split a linear's tile
SHAPES: Mapping[int, tuple[ClusterShape, ...]] = {
    1: (ALONE,),
    2: (ClusterShape(k=2), ClusterShape(m=2), ClusterShape(n=2)),
    3: (ClusterShape(k=3),),
    4: (ClusterShape(m=4), ClusterShape(n=4), ClusterShape(2, 2), ClusterShape(k=4)),
    5: (ClusterShape(k=5),),
    6: (ClusterShape(k=6),),
    7: (ClusterShape(k=7),),
    8: (ClusterShape(2, 4), ClusterShape(4, 2), ClusterShape(k=8)),
}
LONG_SUM = 48  # steps of a sum that more than two CTAs split: shorter ones were not measured
LEAST_STAGES = 3  # of a ring
LEAST_SWAPPED = 24  # rows: wgmma of fewer columns waits for its left operand


@dataclass(frozen=True)
class Cut:
    """What a CTA computes of a linear's tile, and its cluster; pingpong: by its math warpgroups in turn;
    deep: blocks of 64 columns in a step, of which the last may be filled in part (tilegen.ops.patches)."""

    height: int
    width: int
    cluster: ClusterShape
    pingpong: bool = False
    deep: int = 1

    @staticmethod
    def of(tile: tuple[int, ...], cluster: ClusterShape, pingpong: bool) -> Cut:
        """A tile of a cluster."""
        return Cut(tile[0] // cluster.m, tile[1] // cluster.n, cluster, pingpong, ceil_div(tile[2], BLOCK))


@dataclass(frozen=True)
class _Linear:
    """What the time of a linear's cuts depends on."""

    rows: int
    columns: int
    k_range: tuple[int, int]
    groups: int
    normed: bool
    beside: int  # numbers that its epilogue reads for each of the result
    curves: int  # calls of curved functions for each
    result: str  # its dtype
    patches: Patches | None

    @staticmethod
    def of(b: OpInstance) -> _Linear:
        found: _Linear | None = b.__dict__.get("_linear")
        if found is None:
            rows, columns = (int(n) for n in b.out)
            lo, hi = (int(n) for n in k_range(b))
            share = groups(b), normed(b), read_beside(b), curves(b)
            found = _Linear(rows, columns, (lo, hi), *share, b.result.dtype, patches(b))
            b.__dict__["_linear"] = found
        return found


@dataclass(frozen=True)
class _Known:
    """Times of a linear's cuts, which are asked for again and again: in one launch, and in one of its own."""

    times: dict[Cut, ProductTime] = field(default_factory=dict)
    by_least_time: dict[tuple[int, bool, bool], list[tuple[float, Cut]]] = field(default_factory=dict)


@lru_cache(maxsize=16)
def _known(linear: _Linear, machine: Machine) -> _Known:
    return _Known()


def linear_configs(
    b: OpInstance, machine: Machine, cluster: int, stage: int = 0, mixed: bool = False
) -> Iterator[Config]:
    """Every config of a linear for clusters of `cluster` CTAs. stage: rows of 128 bytes that a stage of the
    ring has, which all ops of a launch share; 0: as many as a step of the op fills, which has a launch of
    its own. mixed: ops of other kinds are in its launch, and its steps will be made as deep as the stage
    (_deepened)."""
    for cut in _fitting_cuts(b, machine, cluster, not stage and not mixed):
        config = config_of(b, machine, cut, stage, mixed)
        if config.us < math.inf:
            yield config


def cuts_alone(b: OpInstance, machine: Machine, cluster: int) -> frozenset[Cut]:
    """Every cut that clusters of so many CTAs can compute in a launch of its own."""
    return frozenset(_fitting_cuts(b, machine, cluster, True))


def config_of(b: OpInstance, machine: Machine, cut: Cut, stage: int, mixed: bool) -> Config:
    tile = cut.height * cut.cluster.m, cut.width * cut.cluster.n, columns_of_step(b, cut.deep)
    return Config(tile, cut.cluster, _linear_us(b, machine, cut, stage, mixed), cut.pingpong)


def by_least_time(
    b: OpInstance, machine: Machine, cluster: int, alone: bool, mixed: bool
) -> Sequence[tuple[float, Cut]]:
    """Every cut, and what it takes at least in any ring, in that order. alone: in a launch of its own."""
    kept = _known(_Linear.of(b), machine).by_least_time
    key = cluster, alone, mixed
    if key not in kept:
        found = []
        for cut in _fitting_cuts(b, machine, cluster, alone):
            time = _time(b, machine, cut)
            if alone:
                least = time.formula(time.stages) * residual.LEAST
            elif _deep(b, mixed):  # deeper steps, of few rows among other ops, may take less
                least = time.memory
            else:
                least = max(time.least, time.memory)
            found.append((least, cut))
        kept[key] = sorted(found, key=lambda item: item[0])
    return kept[key]


def _fitting_cuts(b: OpInstance, machine: Machine, cluster: int, alone: bool) -> Iterator[Cut]:
    """Those that clusters of so many CTAs can compute; alone: with math warpgroups in turn, and in deeper
    steps, too."""
    if not machine.clusters(cluster) or (normed(b) and cluster > 1):
        return
    for shape in SHAPES[cluster]:
        if depths := _depths(b, shape, alone):
            yield from _of_depths(b, (cut for cut in _cuts(b, shape) if _fits(b, cut)), depths)
    if alone and cluster == 1 and not normed(b):
        yield from _of_depths(b, _cuts_in_turn(b), list(_steps(b, alone)))


def _steps(b: OpInstance, alone: bool) -> dict[int, int]:
    """Of how many blocks they may be, and how many there are then; alone: in a launch of its own."""
    (lo, hi), seen = k_range(b), patches(b)
    depths = range(1, (DEEPEST if alone and not normed(b) else 1) + 1)
    if seen and seen.step != BLOCK:
        depths = range(least := ceil_div(seen.step, BLOCK), least + 1)
    return {deep: ceil_div(hi - lo, columns_of_step(b, deep)) for deep in depths}


def _depths(b: OpInstance, shape: ClusterShape, alone: bool) -> list[int]:
    """Of steps that the CTAs of a cluster can share; alone: in a launch of its own."""
    steps = _steps(b, alone)
    # beside other ops a pair must take equal parts of the steps, or its rings drift apart
    shared = {d: n for d, n in steps.items() if n >= shape.k and (alone or n % shape.k == 0)}
    return [d for d, n in shared.items() if shape.k <= 2 or n * d >= LONG_SUM]


def _of_depths(b: OpInstance, cuts: Iterable[Cut], depths: Sequence[int]) -> Iterator[Cut]:
    """Each as deep as its steps may be."""
    seen = patches(b)
    most = STAGE_ROWS if not seen or seen.step == BLOCK else (SHARED - RESULTS) // ROW_BYTES // LEAST_STAGES
    for cut in cuts:
        filled = rows_of_block(b, cut.height, cut.width)
        for deep in depths:
            if deep == 1:
                yield cut
            elif deep * filled <= most:
                yield replace(cut, deep=deep)


def _cuts_in_turn(b: OpInstance) -> Iterator[Cut]:
    """What one math warpgroup may compute. CTAs that load together gain nothing there: they wait for each
    other (docs/perf-log.md)."""
    rows, columns = (int(n) for n in b.out)
    if DTYPES[b.result.dtype] != 2:
        return
    for height in _swapped_heights(rows) if rows > 64 else ():
        most = SUMS // (height // 2) * 64 // groups(b)
        for width in SWAPPED_COLUMNS:
            if width <= most:
                yield Cut(height, width, ALONE, True)
    for height in HEIGHTS_IN_TURN:
        if height - 64 >= rows:
            continue
        most = min(256, SUMS // (height // 64) * 2) // groups(b) // 8 * 8
        yield from (Cut(height, width, ALONE, True) for width in range(64, min(most, columns + 15) + 1, 8))


def _cuts(b: OpInstance, shape: ClusterShape) -> Iterator[Cut]:
    """What CTAs of such a cluster may compute: rows in blocks of 64, or, where these would hold too many that
    are not there, in eights of 128 or 256 columns."""
    rows, columns = (int(n) for n in b.out)
    for height in HEIGHTS:
        # one lower would do, or fewer rows of CTAs
        if height > 64 and (normed(b) or (height - 64) * shape.m >= max(rows, 64)):
            continue
        if shape.size > 2 and height * (shape.m - 1) >= rows:
            continue
        for width in range(16, 257, 8):
            if shape.size > 2 and width * (shape.n - 1) >= columns:
                break
            if width < columns + 16:
                yield Cut(height, width, shape)
    if rows <= 64 or normed(b):
        return
    shape = replace(shape, finishes_rows=shape.k > 1)
    for height in _swapped_heights(ceil_div(rows, shape.m)):
        if height * (shape.m - 1) < rows:
            yield from (
                Cut(height, width, shape)
                for width in SWAPPED_COLUMNS
                if width * (shape.n - 1) < columns
            )


def _swapped_heights(rows: int) -> Iterator[int]:
    """Eights of rows that a swapped tile may have where there are so many."""
    return (n for n in range(LEAST_SWAPPED, min(BOX, ceil_div(rows, 8) * 8) + 1, 8) if n % 64)


def _linear_us(b: OpInstance, machine: Machine, cut: Cut, stage: int, mixed: bool) -> float:
    """Of a linear cut in this way where stages have so many rows; forever where its steps do not fit them."""
    filled = rows_of_block(b, cut.height, cut.width)
    if stage and filled > stage:
        return math.inf
    if _deep(b, mixed):
        cut = replace(cut, deep=max(1, min(DEEPEST, (stage or STAGE_ROWS) // filled)))
    time = _time(b, machine, cut)
    if mixed:
        return time.among(stages_of(stage) if stage else time.stages)
    return time.formula(stages_of(stage)) if stage else time.alone(time.stages)


def _deep(b: OpInstance, mixed: bool) -> bool:
    """Whether its steps are made as deep as stages are (_deepened)."""
    return mixed and int(b.out[0]) <= 64


def _time(b: OpInstance, machine: Machine, cut: Cut) -> ProductTime:
    times = _known(_Linear.of(b), machine).times
    if cut not in times:
        times[cut] = time_of_cut(b, machine, cut.height, cut.width, cut.cluster, cut.deep, cut.pingpong)
    return times[cut]


def _fits(b: OpInstance, cut: Cut) -> bool:
    """Whether a CTA can compute height x width."""
    height, width, cluster = cut.height, cut.width, cut.cluster
    halved = width == 64 if height % 64 else height == 64  # math warpgroups have half of the sums each
    if halved and cluster.k > 1 and cluster.k % 2:
        return False
    if height % 64:
        if height % (8 * max(cluster.k, 2 if width == 64 else 1)) or groups(b) * width * height > 256 * SUMS:
            return False
        exchanged = sums_bytes(height, groups(b) * width, cluster.k)
        return LEAST_STAGES * (height + groups(b) * width) * ROW_BYTES + exchanged <= SHARED
    split = height == 64  # the two math warpgroups share the columns, else the rows
    uneven = not split and height % 128 != 0  # one of them has a block of rows less
    exchanges = cluster.k > 1
    across = groups(b) * width // (2 if split else 1)
    least = 8 * max(cluster.k, 2 if split else 1)
    by_tma = DTYPES[b.result.dtype] == 2 and int(b.out[1]) % 8 == 0  # as results of such tiles leave
    if width % least or across > 256 or (uneven and not by_tma):
        return False
    most = SUMS
    if height > 128 and exchanges:
        most = SUMS_OF_PAIRS
    elif uneven and cluster.size > 1:
        most = UNEVEN_SUMS_OF_PAIRS
    if ceil_div(height, 128) * across // 2 > most:
        return False
    exchanged = sums_bytes(height, groups(b) * width, cluster.k)
    results = 2 * 8192 if height > 64 else 0
    return LEAST_STAGES * (height + groups(b) * width) * ROW_BYTES + exchanged + results <= SHARED
