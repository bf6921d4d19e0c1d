"""A discrete-event model of a plan on its machine: when each tile starts, waits and ends.

An SM takes its next tile as soon as it is free. A tile takes max(FLOPs / rate, bytes from memory / bandwidth, bytes from cache /
bandwidth) plus a fixed cost; a wait at step k of n holds back only the share 1 - k/n of the work that comes after it. Every tile waits
only for lower ranks, so walking the ranks once in order is the exact event order.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegen.analysis.regions import Array, evaluate, tiles_of
from tilegen.arch.machine import Machine
from tilegen.errors import PlanError
from tilegen.frontend.spec import DTYPES
from tilegen.ops.attention import shares
from tilegen.ops.base import Bound
from tilegen.schedule.plan import Plan


@dataclass(frozen=True)
class Timeline:
    """One entry per rank, times in µs: where a tile ran, from when to when, how long of that it stood waiting."""

    plan: Plan
    sm: Array
    start: Array
    end: Array
    waited: Array

    @property
    def makespan(self) -> float:
        return float(self.end.max())

    @property
    def busy(self) -> float:
        """Share of the SM time that is work: neither waiting nor idle."""
        return float((self.end - self.start - self.waited).sum()) / (self.makespan * workers(self.plan))

    def by_op(self) -> list[tuple[str, int, float, float, float, float, float]]:
        """(op, tiles, waves, first start, last end, work, waiting), work and waiting summed over tiles."""
        rows = []
        for b in self.plan.bounds:
            ranks = self.plan.ranks[b.op.name]
            work = float((self.end[ranks] - self.start[ranks] - self.waited[ranks]).sum())
            rows.append(
                (
                    b.op.name,
                    len(ranks),
                    len(ranks) / workers(self.plan),
                    float(self.start[ranks].min()),
                    float(self.end[ranks].max()),
                    work,
                    float(self.waited[ranks].sum()),
                )
            )
        return rows

    def _where(self) -> str:
        """132 SMs, 132 SMs in gangs of 2, or 4 workers"""
        machine, gang = self.plan.machine, self.plan.gang
        if machine.family == "cpu":
            return f"{workers(self.plan)} workers"
        return f"{machine.sms} SMs" + (f" in gangs of {gang}" if gang > 1 else "")

    def text(self) -> str:
        lines = [f"{'op':<14}{'tiles':>7}{'waves':>8}{'from µs':>10}{'to µs':>10}{'work':>8}{'waiting':>9}"]
        total = self.makespan * workers(self.plan)
        for name, tiles, waves, first, last, work, waiting in self.by_op():
            lines.append(f"{name:<14}{tiles:>7}{waves:>8.2f}{first:>10.1f}{last:>10.1f}{work / total:>8.1%}{waiting / total:>9.1%}")
        lines.append(
            f"makespan {self.makespan:.1f} µs on {self._where()}, {self.busy:.1%} busy"
        )
        return "\n".join(lines)


def workers(plan: Plan) -> int:
    """Gangs that run tiles side by side."""
    return max(1, plan.machine.sms // plan.gang)


def tile_us(b: Bound, machine: Machine) -> float:
    """Time of one full tile of an op when all SMs are busy; kept with the op."""
    times: dict[Machine, float] = b.__dict__.setdefault("_tile_us", {})
    if machine not in times:
        times[machine] = _tile_us(b, machine)
    return times[machine]


def tile_times(b: Bound, machine: Machine) -> Array:
    """Time of each tile: those of a causal attention have as much work as steps."""
    steps, mean = tiles_of(b).steps, float(np.mean(tiles_of(b).steps))
    work = tile_us(b, machine) - machine.tile_us
    return machine.tile_us + work * steps / mean if mean > 0 else np.full(len(steps), machine.tile_us)


def _tile_us(b: Bound, machine: Machine) -> float:
    peak = machine.flops32 if b.dtype(0) == "float32" else machine.flops16
    flops, share = b.kind.flops(b) / b.op.parts, 1.0 / machine.sms
    compute = flops / (peak * share * efficiency(b, machine))
    tiles = max(1, math.prod(int(n) for n in b.grid))
    memory = _operand_bytes(b) / tiles / b.op.parts / (machine.memory * share)
    cache = _tile_bytes(b) / b.op.parts / (machine.cache * share)
    return machine.tile_us + 1e6 * max(compute, memory, cache)


def efficiency(b: Bound, machine: Machine) -> float:
    """Share of the tensor rate that a tile shape can reach: shared memory feeds 128 bytes a cycle, an m64 instruction reads A once and B again."""
    if machine.family != "cuda" or b.op.kind not in ("linear", "matmul", "conv2d"):
        return 0.5 if machine.family == "cuda" and b.op.kind == "attention" else 1.0
    rows, columns = (b.tile[0], b.tile[1]) if b.op.kind != "conv2d" else (math.prod(b.tile[:3]), b.tile[3])
    columns *= dict(b.op.attributes).get("groups", 1)
    padded = -(-rows // 64) * 64
    tensor = padded * columns / 32
    shared = (padded * 128 + padded / 64 * columns * 128 + (padded + columns) * 128) / 128
    return tensor / max(tensor, shared) * rows / padded


def _operand_bytes(b: Bound) -> float:
    """Bytes of all operands and the result, each once."""
    shapes = [(b.shape(n), b.dtype(n)) for n in range(len(b.op.operands))] + [(b.out, b.result.dtype)]
    return float(sum(math.prod(int(n) for n in shape) * DTYPES[dtype] for shape, dtype in shapes))


def _tile_bytes(b: Bound) -> float:
    """Bytes that the first tile moves through the shared cache."""
    origin: dict[str, Any] = {c.name: 0 for c in b.coords}
    total = 0.0
    steps = int(evaluate(b.steps, origin))
    for access in b.reads:
        last = {**origin, "k": max(0, steps - 1)}
        size = 1.0
        for i in access.box:
            size *= max(0, int(evaluate(i.hi, last)) - int(evaluate(i.lo, {**origin, "k": 0}))) / i.stride
        size /= shares(b) if b.op.kind == "attention" and access.when == "step" else 1  # of the keys it may read
        total += size * DTYPES[b.dtype(access.operand)]
    size = 1.0
    for i in b.write:
        size *= int(evaluate(i.hi, origin)) - int(evaluate(i.lo, origin))
    return total + size * DTYPES[b.result.dtype]


def _waits_by_tile(plan: Plan) -> tuple[list[int], list[float], list[int]]:
    """CSR over ranks: (offsets, share of the tile that comes before the wait, semaphore)."""
    table = plan.wait_table
    steps = np.ones(plan.order.count)
    for b in plan.bounds:
        steps[plan.ranks[b.op.name]] = np.maximum(tiles_of(b).steps, 1)
    before = np.clip(table.step / steps[table.rank], 0.0, 1.0) if len(table.rank) else np.zeros(0)
    offsets = np.searchsorted(table.rank, np.arange(plan.order.count + 1))
    return offsets.tolist(), before.tolist(), table.semaphore.tolist()


def simulate(plan: Plan) -> Timeline:
    """Run the plan on its machine's model. PlanError where it is given no Plan."""
    if not isinstance(plan, Plan):
        raise PlanError(f"expected a Plan, given a {type(plan).__name__}: tg.simulate(tg.plan(program, on=…))")
    machine, count = plan.machine, plan.order.count
    duration, op_of = np.zeros(count), np.zeros(count, dtype=np.int64)
    posts: list[list[int]] = [[] for _ in range(count)]
    for n, b in enumerate(plan.bounds):
        ranks = plan.ranks[b.op.name]
        duration[ranks], op_of[ranks] = tile_times(b, machine), n
        for m in plan.posts_of(b.op.name):
            for rank, semaphore in zip(ranks.tolist(), plan.posted(m).tolist(), strict=True):
                posts[rank].append(semaphore)
    offsets, before, semaphore = _waits_by_tile(plan)
    free = [(0.0, sm) for sm in range(workers(plan))]
    owner = None
    if not isinstance(plan.placement, str):
        owner, place = np.zeros((2, count), dtype=np.int64)
        for sm, ranks_of_sm in enumerate(plan.placement):
            owner[list(ranks_of_sm)] = sm
            place[list(ranks_of_sm)] = np.arange(len(ranks_of_sm))
        idle = [[0.0] * plan.gang for _ in plan.placement]
        taken = [plan.sms_of(plan.graph.ops[n], p) for n, p in zip(op_of.tolist(), place.tolist(), strict=True)]
    ready = [0.0] * len(plan.targets)
    sms, start, end, waited = [0] * count, [0.0] * count, [0.0] * count, [0.0] * count
    times = duration.tolist()
    for rank in range(count):
        if owner is None:
            begin, sm = heapq.heappop(free)
        else:
            sm = int(owner[rank])
            begin = max(idle[sm][n] for n in taken[rank])
        work = times[rank]
        lo, hi = offsets[rank], offsets[rank + 1]
        finish = begin + work
        if hi > lo:
            work += machine.wait_us * (hi - lo - 1)
            finish = begin + work
            for w in range(lo, hi):
                finish = max(finish, ready[semaphore[w]] + machine.handoff_us + (1.0 - before[w]) * work)
        sms[rank], start[rank], end[rank], waited[rank] = sm, begin, finish, finish - begin - work
        for n in posts[rank]:
            ready[n] = max(ready[n], finish)
        if owner is None:
            heapq.heappush(free, (finish, sm))
        else:
            for n in taken[rank]:
                idle[sm][n] = finish
    return Timeline(plan, np.array(sms), np.array(start), np.array(end), np.array(waited))
