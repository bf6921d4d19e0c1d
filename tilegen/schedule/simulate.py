"""A discrete-event model of a plan on its machine: when each tile starts, waits and ends.

An SM takes its next tile as soon as it is free. A tile takes max(FLOPs / rate, bytes from memory / bandwidth,
bytes from cache / bandwidth) plus a fixed cost; a wait at step k of n holds back only the share 1 - k/n of
the work that comes after it. Every tile waits only for lower ranks, so walking the ranks once in order is the
exact event order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from tilegen.analysis.regions import Array, tiles_of
from tilegen.errors import PlanError
from tilegen.graph.cost_model import on_wgmma, product_time, tile_times
from tilegen.graph.product_time import stages_of
from tilegen.schedule.plan import Plan


@dataclass(frozen=True)
class Timeline:
    """One entry per rank, times in µs: where a tile ran, from when to when, how long of that it stood
    waiting."""

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
        """132 SMs, 132 SMs in clusters of 2, or 4 workers"""
        machine, cluster = self.plan.machine, self.plan.cluster
        if not machine.architecture.mma_sync:
            return f"{workers(self.plan)} workers"
        return f"{machine.sms} SMs" + (f" in clusters of {cluster}" if cluster > 1 else "")

    def text(self) -> str:
        lines = [f"{'op':<14}{'tiles':>7}{'waves':>8}{'from µs':>10}{'to µs':>10}{'work':>8}{'waiting':>9}"]
        total = self.makespan * workers(self.plan)
        for name, tiles, waves, first, last, work, waiting in self.by_op():
            lines.append(
                f"{name:<14}{tiles:>7}{waves:>8.2f}{first:>10.1f}{last:>10.1f}"
                f"{work / total:>8.1%}{waiting / total:>9.1%}"
            )
        lines.append(f"makespan {self.makespan:.1f} µs on {self._where()}, {self.busy:.1%} busy")
        return "\n".join(lines)


def workers(plan: Plan) -> int:
    """Clusters that run tiles side by side."""
    return max(1, plan.machine.clusters(plan.cluster))


def _waits_by_tile(plan: Plan) -> tuple[list[int], list[float], list[int]]:
    """CSR over ranks: (offsets, share of the tile that comes after the wait, semaphore)."""
    table = plan.wait_table
    steps = np.ones(plan.order.count)
    for b in plan.bounds:
        steps[plan.ranks[b.op.name]] = np.maximum(tiles_of(b).steps, 1)
    before = np.clip(table.step / steps[table.rank], 0.0, 1.0) if len(table.rank) else np.zeros(0)
    offsets = np.searchsorted(table.rank, np.arange(plan.order.count + 1))
    return offsets.tolist(), (1.0 - before).tolist(), table.semaphore.tolist()


def simulate(plan: Plan) -> Timeline:
    """Run a plan on its machine's model: when each tile begins and ends, in microseconds.

    Raises:
        PlanError: it is given no Plan.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"expected a Plan, given a {type(plan).__name__}: tg.simulate(tg.plan(program, on=…))"
        )
    machine, count = plan.machine, plan.order.count
    products = [product_time(b, machine) for b in plan.bounds if on_wgmma(b, machine)]
    stages = stages_of(max(time.stage for time in products)) if len(products) > 1 else 0
    duration, op_of = np.zeros(count), np.zeros(count, dtype=np.int64)
    posts: list[list[int]] = [[] for _ in range(count)]
    for n, b in enumerate(plan.bounds):
        ranks = plan.ranks[b.op.name]
        duration[ranks], op_of[ranks] = tile_times(b, machine, stages), n
        for m in plan.posts_of(b.op.name):
            for rank, semaphore in zip(ranks.tolist(), plan.posted(m).tolist(), strict=True):
                posts[rank].append(semaphore)
    offsets, after, semaphore = _waits_by_tile(plan)
    free = [(0.0, sm) for sm in range(workers(plan))]
    owner = None
    if not isinstance(plan.scheduling, str):
        owner, place = np.zeros((2, count), dtype=np.int64)
        for sm, ranks_of_sm in enumerate(plan.scheduling):
            owner[list(ranks_of_sm)] = sm
            place[list(ranks_of_sm)] = np.arange(len(ranks_of_sm))
        idle = [[0.0] * plan.cluster for _ in plan.scheduling]
        taken = [
            plan.sms_of(plan.graph.ops[n], p) for n, p in zip(op_of.tolist(), place.tolist(), strict=True)
        ]
    ready = [0.0] * len(plan.targets)
    sms, start, end, waited = [0] * count, [0.0] * count, [0.0] * count, [0.0] * count
    times, handoff = duration.tolist(), machine.handoff_us
    for rank in range(count):
        if owner is None:
            begin, sm = free[0]
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
                released = ready[semaphore[w]] + handoff + after[w] * work
                if released > finish:
                    finish = released
        sms[rank], start[rank], end[rank], waited[rank] = sm, begin, finish, finish - begin - work
        for n in posts[rank]:
            if finish > ready[n]:
                ready[n] = finish
        if owner is None:
            heapq.heapreplace(free, (finish, sm))
        else:
            for n in taken[rank]:
                idle[sm][n] = finish
    return Timeline(plan, np.array(sms), np.array(start), np.array(end), np.array(waited))
