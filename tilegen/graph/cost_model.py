"""What ops cost on a machine, in µs: planning and simulation ask here, and nobody else models time.

A tile takes the longest of its products, its bytes from memory and its bytes from L2, and a fixed cost.
Where the kernel for Hopper offers many tile configs, steps are timed one by one: those of products and
attention as tilegen.graph.linear_time, conv_time and attention_time say; chunks of a matmul, which threads
bring, as matmul_time does. An op takes its waves of tiles, but never less than its bytes from memory.
docs/perf-log.md holds the measurements behind the constants.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegen.analysis.regions import Array, evaluate, tiles_of
from tilegen.arch.machine import CLOCK, Machine
from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES, element_bytes
from tilegen.graph import attention_time, matmul_time
from tilegen.graph.conv_box import by_boxes
from tilegen.graph.conv_time import conv_time
from tilegen.graph.linear_time import linear_time
from tilegen.graph.product_time import ProductTime, rates_of
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes, splits
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import LinearAttributes, groups
from tilegen.ops.norm import NormAttributes
from tilegen.ops.pad import PadAttributes
from tilegen.ops.rows import VECTOR, WARP, rows_of_tile, threads_of_row
from tilegen.ops.softmax import SoftmaxAttributes
from tilegen.ops.strided_copy import StridedCopyAttributes

# Of a tile's fixed cost, what one has whose rows fewer threads than a warp share, each: it is a turn of loads
# or two. Fitted to 13 norms and softmaxes of 64 to 512 columns (docs/perf-log.md, 2026-11-29).
OF_NARROW_NORM, OF_NARROW_SOFTMAX = 0.375, 0.625

# Share of memory's rate at which rows are padded: a vector's loads wait for those before it. Fitted to 12
# linears of padded copies (docs/perf-log.md, 2026-11-30).
OF_MEMORY_PADDED = 0.7

# --- a tile of any op ---------------------------------------------------------------------------------------


def tile_us(b: OpInstance, machine: Machine, stages: int = 0) -> float:
    """Time of one full tile of an op when all SMs are busy; kept with the op. stages: of the ring that it
    shares with other ops; 0: the ring is its own."""
    times: dict[tuple[Machine, int], float] = b.__dict__.setdefault("_tile_us", {})
    if (machine, stages) not in times:
        times[machine, stages] = _modelled_tile_us(b, machine, stages)
    return times[machine, stages]


def _modelled_tile_us(b: OpInstance, machine: Machine, stages: int) -> float:
    if on_wgmma(b, machine):
        time = product_time(b, machine)
        return time.tile_of_many(stages or time.stages)
    if attention_time.by_tensor_cores(b, machine):
        return float(np.mean(attention_time.tile_times(b, machine)))
    if matmul_time.by_threads(b, machine):
        return matmul_time.tile_us(b)
    match b.attributes:
        case AppendAttributes(seq=rows):  # of the cache it moves nothing else
            return _copied_us(b, machine, rows * b.tile[0])
        case StridedCopyAttributes():
            return _copied_us(b, machine, math.prod(b.tile))
        case PadAttributes():
            return _copied_us(b, machine, b.tile[0] * most(b.out[1]) / OF_MEMORY_PADDED)
    return _tile_us(b, machine)


def on_wgmma(b: OpInstance, machine: Machine) -> bool:
    """Whether it is a linear or a convolution whose steps are timed one by one."""
    product = isinstance(b.attributes, LinearAttributes) or by_boxes(b)
    return product and machine.architecture.wgmma and element_bytes(b.dtype(0)) == 2


def product_time(b: OpInstance, machine: Machine) -> ProductTime:
    """Of one of those; kept with the op, since every simulation asks for it."""
    times: dict[Machine, ProductTime] = b.__dict__.setdefault("_product_time", {})
    if machine not in times:
        linear = isinstance(b.attributes, LinearAttributes)
        times[machine] = linear_time(b, machine) if linear else conv_time(b, machine)
    return times[machine]


def tile_times(b: OpInstance, machine: Machine, stages: int = 0) -> Array:
    """Time of each tile: those of a causal attention have as much work as steps."""
    if on_wgmma(b, machine):
        return np.full(len(tiles_of(b).steps), tile_us(b, machine, stages))
    if attention_time.by_tensor_cores(b, machine):
        return attention_time.tile_times(b, machine)
    steps, mean = tiles_of(b).steps, float(np.mean(tiles_of(b).steps))
    fixed = _fixed_us(b, machine)
    work = tile_us(b, machine) - fixed
    return fixed + work * steps / mean if mean > 0 else np.full(len(steps), fixed)


def _tile_us(b: OpInstance, machine: Machine) -> float:
    peak = machine.flops32 if b.dtype(0) == "float32" else machine.flops16
    flops, share = b.kind.flops(b) / b.op.cluster, 1.0 / machine.sms
    compute = flops / (peak * share * efficiency(b, machine))
    tiles = max(1, math.prod(int(n) for n in b.grid))
    memory = b.operand_bytes / tiles / b.op.cluster / (machine.memory * share)
    cache = _tile_bytes(b) / b.op.cluster / (machine.cache * share)
    return _fixed_us(b, machine) + 1e6 * max(compute, memory, cache)


def _fixed_us(b: OpInstance, machine: Machine) -> float:
    """What a tile costs besides its bytes and products."""
    if matmul_time.by_threads(b, machine):
        return matmul_time.rates_of(b).fixed
    attributes = b.attributes
    of_rows = isinstance(attributes, (NormAttributes, SoftmaxAttributes)) and machine.architecture.mma_sync
    if not of_rows or _threads_of_row(b) >= WARP:
        return machine.tile_us
    return machine.tile_us * (OF_NARROW_NORM if isinstance(attributes, NormAttributes) else OF_NARROW_SOFTMAX)


def _threads_of_row(b: OpInstance) -> int:
    """That share a row of a norm or a softmax."""
    columns, first = most(b.out[-1]), (b.op.operands[0].columns or (0, 0))[0]
    ends = any(n % VECTOR for n in (columns, most(b.pitch(0)), first))
    return threads_of_row(columns, rows_of_tile(b), ends)


def _copied_us(b: OpInstance, machine: Machine, elements: Any) -> float:
    """A tile that reads and writes so many elements."""
    moved = 2 * elements * DTYPES[b.result.dtype]
    return machine.tile_us + 1e6 * moved / (machine.memory / machine.sms)


def efficiency(b: OpInstance, machine: Machine) -> float:
    """Share of the tensor rate that a tile shape can reach: shared memory feeds 128 bytes a cycle, an m64
    instruction reads A once and B again."""
    if not machine.architecture.mma_sync or not b.kind.mma:
        return 1.0
    width = b.kind.width
    if width is None:
        return 0.5  # an attention
    rows, columns = math.prod(b.tile[:width]), b.tile[width] * groups(b)
    padded = -(-rows // 64) * 64
    tensor = padded * columns / 32
    shared = (padded * 128 + padded / 64 * columns * 128 + (padded + columns) * 128) / 128
    return tensor / max(tensor, shared) * rows / padded


def _tile_bytes(b: OpInstance) -> float:
    """Bytes that the first tile moves through the shared cache."""
    origin: dict[str, Any] = {c.name: 0 for c in b.coords}
    total, written = 0.0, 1.0
    for i in b.write:
        written *= int(evaluate(i.hi, origin)) - int(evaluate(i.lo, origin))
    steps = int(evaluate(b.steps, origin))
    for access in b.reads:
        last = {**origin, "k": max(0, steps - 1)}
        size = 1.0
        for i in access.box:
            size *= max(0, int(evaluate(i.hi, last)) - int(evaluate(i.lo, {**origin, "k": 0}))) / i.stride
        # of the keys it may read
        size /= splits(b) if isinstance(b.attributes, AttentionAttributes) and access.when == "step" else 1
        size = min(size, b.kind.picked_by_tile(b, written)) if b.picks(access.operand) else size
        total += size * element_bytes(b.dtype(access.operand))
    return total + written * DTYPES[b.result.dtype]


# --- attention over caches ----------------------------------------------------------------------------------


def split_keys_us(b: OpInstance, machine: Machine, splits: int) -> float:
    """An attention over caches whose keys are split: waves of tiles of some blocks of keys each, and what
    brings the splits together."""
    tiles, steps = math.prod(int(n) for n in b.grid), int(b.steps)
    combined = 3.0 + 0.15 * splits if splits > 1 else 0.0
    return ceil_div(tiles * splits, machine.sms) * (1.5 + 1.2 * ceil_div(steps, splits)) + combined


# --- norms --------------------------------------------------------------------------------------------------


def norm_us(b: OpInstance, machine: Machine) -> float:
    """A norm of few rows: its tile, from the last store before it to the first load after it."""
    return (
        machine.handoff_us
        + machine.tile_us
        + 1e6 * 2 * DTYPES[b.result.dtype] * b.shape(0)[1] / (machine.memory / machine.sms)
    )


def scaling_us(b: OpInstance, machine: Machine) -> float:
    """What a linear of few rows takes longer when its steps scale their rows: nothing while it waits for
    weights longer than that."""
    rows, depth = (int(n) for n in b.shape(0))
    columns = int(b.out[1]) * int(groups(b))
    steps = ceil_div(depth, 64)
    products = steps * 2.0 * columns / machine.sms / CLOCK
    weights = 1e6 * element_bytes(b.dtype(1)) * columns * depth / machine.memory
    return max(products + steps * rates_of(machine).scaling(rows), weights) - max(products, weights)
