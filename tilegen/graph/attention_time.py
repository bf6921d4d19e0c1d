"""What an attention takes on Hopper's tensor cores, in µs.

    step  = meet + keys · (softmax + products · D) / clock · turn
    tile  = fixed + head · rows / 128 · D / 64 + turns · step, or its share of all bytes from memory; rows:
            those that are queries'
    step += bytes of what is added to scores, through the cache
    alone = the longest of the SMs' sums of tiles + first + start · CTAs / SMs

A warpgroup has 64 rows of queries. Both work on each block of keys of a tile of 128. Its queries come while
the tile before is computed, so an SM's first tile takes `first` besides. Of a tile of 64 they take turns,
and join their sums: turns = ⌈steps / 2⌉, each as long as `turn` says. The constants were fitted to measured
times (benchmarks.calibrate measure --others). Attention of few rows over caches is bound by memory, and not
told of here.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from tilegen.analysis.regions import Array, tiles_of
from tilegen.arch.machine import CLOCK, Machine
from tilegen.frontend.program import element_bytes
from tilegen.ops.attention import FEW, AttentionAttributes, halved, over_caches
from tilegen.ops.base import OpInstance


@dataclass(frozen=True)
class AttentionRates:
    """Of an H200 and its kernel. Times in µs, but for clocks of 64 rows by each of both warpgroups."""

    fixed: float = 1.304  # of a tile of 128 rows
    first: float = 1.064  # and of an SM's first one
    joined: float = 1.837  # of a tile of 64 rows
    head: float = 1.339  # of 128 rows of 64 columns: queries that come, results that go
    meet: float = 0.3465  # of a step, until its keys are there
    softmax: float = 4.75  # clocks of a key
    products: float = 0.07847  # and a column of the head
    turn: float = 1.287  # by how much longer those are that are taken in turns
    start: float = 1.175  # of a launch, where all SMs have a CTA


RATES = AttentionRates()


def by_tensor_cores(b: OpInstance, machine: Machine) -> bool:
    """Whether it is an attention that this model knows."""
    a = b.attributes
    if not machine.architecture.wgmma or not isinstance(a, AttentionAttributes):
        return False
    return not over_caches(b) or a.q_len * (a.heads // a.kv_heads) > FEW


def tile_times(b: OpInstance, machine: Machine, rates: AttentionRates = RATES) -> Array:
    """Of each tile: those of a causal attention have as much work as steps."""
    a, tiles, (queries, keys, heads) = AttentionAttributes.of(b), tiles_of(b), b.tile
    d, half = int(a.head_dim), halved(b)
    block = np.arange(tiles.count) % tiles.grid[-1]
    rows = heads * np.minimum(queries, int(a.q_len) - queries * block)
    moved = rates.head * rows / 128 * d / 64
    products = keys * (rates.softmax + rates.products * d) / CLOCK
    step = rates.meet + products * (rates.turn if half else 1.0)
    step += 1e6 * _bias_bytes(b) / (machine.cache / machine.sms)
    steps = tiles.steps
    memory = 1e6 * b.operand_bytes / len(steps) / (machine.memory / machine.sms)
    fixed, turns = (rates.joined, (steps + 1) // 2) if half else (rates.fixed, steps)
    return np.maximum(fixed + moved + turns * step, memory)


def _bias_bytes(b: OpInstance) -> float:
    """Of what is added to the scores of a tile in a step: a row for all queries, or for each."""
    a, (queries, keys, heads) = AttentionAttributes.of(b), b.tile
    if a.bias is None:
        return 0.0
    rows = (heads if a.bias[1] != 1 else 1) * (queries if a.bias[2] != 1 else 1)
    return float(rows * keys * element_bytes(b.dtype(b.index("bias"))))


def alone_us(b: OpInstance, machine: Machine, rates: AttentionRates = RATES) -> float:
    """The op in a launch of its own, the longest tiles first, each on the SM that is free first."""
    times = np.sort(tile_times(b, machine, rates))[::-1]
    before = 0.0 if halved(b) else rates.first
    return _longest_first(times, machine.sms) + before + rates.start * min(1.0, len(times) / machine.sms)


def _longest_first(times: Array, sms: int) -> float:
    if times[0] == times[-1]:
        return float(times[0]) * -(-len(times) // sms)
    free = [0.0] * sms
    for us in times.tolist():
        heapq.heapreplace(free, free[0] + us)
    return max(free)
