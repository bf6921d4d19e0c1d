"""The interpreter: a plan run tile by tile with real numbers, under adversarial interleavings, with vector
clocks.

It is the definition of what a plan means. Virtual SMs take ranks and interleave at every wait, read, write
and post; each read is checked, element by element, to be ordered after the write it needs (by posts and waits
alone, whatever the interleaving happened to be; where ranks are drawn not even the order of tiles on one SM
counts, since that is chance), and tiles compute from nothing but what they read: everything else in their
operands is garbage.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tilegen.errors import DeadlockError, RaceError, TargetError
from tilegen.ops.base import OpInstance
from tilegen.ops.pointwise import evaluate, spread
from tilegen.ops.reference import plan_view, view
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan

STRATEGIES = ("random", "reverse", "starve", "round-robin")


@dataclass
class _Shadow:
    """Who wrote each element of a tensor last: thread and its clock then; -1 where nobody did. Reads are kept
    for states only."""

    thread: Any
    clock: Any
    reads: list[tuple[tuple[slice, ...], int, int, str]] = field(default_factory=list)


@dataclass
class _Run:
    """The state of one run."""

    tensors: Mapping[str, torch.Tensor]  # in plan shape
    clocks: Any  # [thread, thread]: what each tile knows of the others, by posts and waits
    times: Any  # [thread]: each thread's own clock
    counts: list[int]
    semaphore_clocks: Any  # [semaphore, thread]
    shadows: dict[str, _Shadow]
    next_rank: int = 0
    doing: dict[int, str] = field(default_factory=dict)  # thread -> what it stands at


# yields (semaphore, target) to wait for, or None between events
Step = Generator[tuple[int, int] | None, None, None]


class Interpreter:
    """Runs a plan; has the interface of a compiled library. strategy: one of STRATEGIES; the same seed gives
    the same interleaving. Where a size moves, a run is given the plan at its size."""

    target, source_name = "interpret", "plan.expanded.json"

    def __init__(
        self, plan: Plan, strategy: str = "random", seed: int = 0, data: Mapping[str, Any] | None = None
    ):
        if strategy not in STRATEGIES:
            raise TargetError(f"unknown strategy {strategy!r}; expected one of {', '.join(STRATEGIES)}")
        self.plan, self.strategy, self.seed = plan, strategy, seed
        # a changed copy may be given, to see what it does
        self.data = data or (plan.to_json() if plan.dim else expanded(plan))
        self._given = data
        self._bounds = {b.op.name: b for b in plan.bounds}
        written = {op.result for op in plan.graph.ops}
        self._synchronised = [t for t in plan.graph.tensors.values() if t.name in written]

    def __reduce__(self) -> tuple[Any, ...]:
        return Interpreter, (self.plan, self.strategy, self.seed, self._given)

    @property
    def source(self) -> str:
        return json.dumps(self.data, indent=1)

    def create(self) -> int:
        return 0

    def destroy(self, state: int) -> None:
        return None

    def run(
        self,
        state: int,
        tensors: Mapping[str, torch.Tensor],
        workers: int = 0,
        plan: Plan | None = None,
        size: int | None = None,
    ) -> None:
        """RaceError or DeadlockError names the tiles."""
        if self.plan.dim and plan:
            return Interpreter(plan, self.strategy, self.seed).run(state, tensors, workers)
        lists = self.data["scheduling"]
        clusters = (
            len(lists)
            if not isinstance(lists, str)
            else (workers or min(16, self.plan.machine.clusters(self.plan.cluster)))
        )
        threads = clusters * self.plan.cluster
        shaped = {n: plan_view(self.plan.graph.tensors[n], t) for n, t in tensors.items()}
        shadows = {
            t.name: _Shadow(np.full(t.plan_shape, -1, np.int32), np.zeros(t.plan_shape, np.int64))
            for t in self._synchronised
        }
        targets = self.data["semaphores"]
        run = _Run(
            shaped,
            np.zeros((threads, threads), np.int64),
            np.ones(threads, np.int64),
            [0] * len(targets),
            np.zeros((len(targets), threads), np.int64),
            shadows,
        )
        self._schedule(run, [self._cluster(run, g, lists) for g in range(clusters)])
        for semaphore, (count, target) in enumerate(zip(run.counts, targets, strict=True)):
            if count != target:
                raise RaceError(
                    f"semaphore {semaphore} ends at {count}, its target is {target}: the next run would start"
                    " wrong"
                )

    # --- scheduling -----------------------------------------------------------------------------------------

    def _schedule(self, run: _Run, clusters: list[Step]) -> None:
        """Advance clusters in the strategy's order until all are done; a cluster that waits is passed over
        until its semaphore is there."""
        chance = random.Random(self.seed)
        waiting: dict[int, tuple[int, int]] = {}
        alive = list(range(len(clusters)))
        turn = 0
        while alive:
            ready = [g for g in alive if g not in waiting or run.counts[waiting[g][0]] >= waiting[g][1]]
            if not ready:
                raise DeadlockError(
                    "no SM can go on: " + "; ".join(self._stuck(run, g, waiting[g]) for g in alive[:4])
                )
            turn += 1
            g = self._pick(ready, turn, chance)
            waiting.pop(g, None)
            try:
                wanted = next(clusters[g])
            except StopIteration:
                alive.remove(g)
                continue
            if wanted is not None:
                waiting[g] = wanted

    def _pick(self, ready: list[int], turn: int, chance: random.Random) -> int:
        match self.strategy:
            case "random":
                return chance.choice(ready)
            case "reverse":
                return ready[-1]
            case "starve":
                return ready[0]
            case _:
                return ready[turn % len(ready)]

    def _stuck(self, run: _Run, cluster: int, wanted: tuple[int, int]) -> str:
        semaphore, target = wanted
        return (
            f"{run.doing.get(cluster, '?')} waits for semaphore {semaphore}: {run.counts[semaphore]} of"
            f" {target} posts"
        )

    def _cluster(self, run: _Run, cluster: int, lists: Any) -> Step:
        turn = 0
        while True:
            if isinstance(lists, str):
                rank = run.next_rank
                run.next_rank += 1
            else:
                rank = lists[cluster][turn] if turn < len(lists[cluster]) else len(self.data["tiles"])
            if rank >= len(self.data["tiles"]):
                return
            yield from self._tile(run, cluster, turn, self.data["tiles"][rank])
            turn += 1

    # --- one tile -------------------------------------------------------------------------------------------

    def _tile(self, run: _Run, cluster: int, turn: int, tile: Mapping[str, Any]) -> Step:
        """The CTAs of a cluster read in turn, then each writes its part and posts; where they split K,
        they exchange sums in between.

        A tile of fewer CTAs is run by the cluster's first SMs; of a list one of a single CTA by each in turn.
        """
        b = self._bounds[tile["op"]]
        name = f"{tile['op']}{tuple(tile['coord'])}"
        run.doing[cluster] = name
        alone = len(tile["ctas"]) == 1 and not isinstance(self.data["scheduling"], str)
        first = cluster * self.plan.cluster + (turn % self.plan.cluster if alone else 0)
        threads = [first + cta_rank for cta_rank in range(len(tile["ctas"]))]
        exchange = b.op.cluster_shape.k > 1
        # one for all, or one each
        buffers: list[dict[str, torch.Tensor]] = [{}] * len(threads) if exchange else [{} for _ in threads]
        if isinstance(self.data["scheduling"], str):
            run.clocks[threads] = 0  # which tiles share an SM is chance: what ran here before orders nothing
        else:
            run.clocks[threads, threads] = run.times[threads]
        run.times[threads] += 1
        for thread, cta, own in zip(threads, tile["ctas"], buffers, strict=True):
            for read in cta["reads"]:
                for semaphore, target in read["waits"]:
                    yield semaphore, target
                    np.maximum(run.clocks[thread], run.semaphore_clocks[semaphore], out=run.clocks[thread])
                self._read(run, thread, name, b, read, own)
                yield None
        if len(threads) > 1 and exchange:  # it orders every CTA after all reads of the others
            known = run.clocks[threads].max(axis=0)
            known[threads] = run.times[threads]
            run.clocks[threads] = known
            run.times[threads] += 1
        results = [self._compute(run, b, tile, own) for own in (buffers[:1] if exchange else buffers)]
        for thread, cta, result in zip(
            threads, tile["ctas"], results * len(threads) if exchange else results, strict=True
        ):
            for write in cta["writes"]:
                self._write(run, thread, name, b, write, result)
                yield None
            for semaphore, amount in cta["posts"]:
                run.clocks[thread, thread] = run.times[thread]
                np.maximum(
                    run.semaphore_clocks[semaphore], run.clocks[thread], out=run.semaphore_clocks[semaphore]
                )
                run.counts[semaphore] += amount
                run.times[thread] += 1
                yield None

    def _read(
        self,
        run: _Run,
        thread: int,
        name: str,
        b: OpInstance,
        read: Mapping[str, Any],
        buffers: dict[str, torch.Tensor],
    ) -> None:
        tensor, source = read["tensor"], run.tensors[read["tensor"]]
        bounds = tuple((lo, hi, stride[0] if stride else 1) for lo, hi, *stride in read["box"])
        box = slices(b.kind.runtime_read(b, tensor, bounds, self._position(run, b)))
        if tensor not in buffers:
            buffers[tensor] = garbage(source)
        shadow = run.shadows.get(tensor)
        if shadow is not None:
            self._check_read(run, thread, name, tensor, box, shadow, read["box"])
        buffers[tensor][box] = source[box].to(buffers[tensor].dtype)

    def _position(self, run: _Run, b: OpInstance) -> int:
        """The op's position, 0 where it has none."""
        return 0 if b.position is None else int(run.tensors[b.operand("position").tensor][0])

    def _check_read(
        self,
        run: _Run,
        thread: int,
        name: str,
        tensor: str,
        box: tuple[slice, ...],
        shadow: _Shadow,
        where: Any,
    ) -> None:
        writer, clock = shadow.thread[box], shadow.clock[box]
        role = self.plan.graph.tensors[tensor].role
        if role != "state" and (writer < 0).any():
            raise RaceError(
                f"{name} reads {tensor}{where} before all of it is written: element"
                f" {first_of(writer < 0, box)} is missing"
            )
        late = (writer >= 0) & (clock > run.clocks[thread][np.maximum(writer, 0)])
        if late.any():
            raise RaceError(
                f"{name} reads {tensor}{where}: nothing orders it after the write of element"
                f" {first_of(late, box)}"
            )
        if role == "state":
            shadow.reads.append((box, thread, int(run.times[thread]), name))

    def _compute(
        self, run: _Run, b: OpInstance, tile: Mapping[str, Any], buffers: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The op on operands that hold what the tile read and garbage elsewhere; right only inside the
        tile."""
        operands: list[Any] = []
        for n, o in enumerate(b.op.operands):
            value = buffers.get(o.tensor)
            if value is None:  # nothing of it was read
                value = garbage(run.tensors[o.tensor])
            operands.append(
                int(value[0]) if n == b.position else view(value.reshape(b.tensors[o.tensor].plan_shape), o)
            )
        accumulators = b.kind.reference(b, operands)
        if b.op.epilogue is None:
            return accumulators[0]
        names = {f"acc{g}": a for g, a in enumerate(accumulators)}
        read = enumerate(b.op.epilogue.operands)
        names |= {f"e{n}": spread(operands[index], how) for n, (index, how) in read}
        return torch.as_tensor(
            evaluate(b.op.epilogue.expression, names), device=run.tensors[b.op.result].device
        )

    def _write(
        self, run: _Run, thread: int, name: str, b: OpInstance, write: Mapping[str, Any], result: torch.Tensor
    ) -> None:
        tensor = write["tensor"]
        bounds = b.kind.runtime_write(
            b, tuple((lo, hi, 1) for lo, hi, *_ in write["box"]), self._position(run, b)
        )
        box = tuple(slice(*x) for x in bounds)
        shadow = run.shadows[tensor]
        writer = shadow.thread[box]
        twice = (writer >= 0) & (shadow.clock[box] > run.clocks[thread][np.maximum(writer, 0)])
        if twice.any():
            raise RaceError(
                f"{name} writes {tensor}{write['box']}: nothing orders it after another write of element"
                f" {first_of(twice, box)}"
            )
        for other, reader, clock, reader_name in shadow.reads:
            if overlap(box, other) and clock > run.clocks[thread][reader] and reader_name != name:
                raise RaceError(
                    f"{name} writes {tensor}{write['box']}: nothing orders it after the read by {reader_name}"
                )
        shadow.thread[box] = thread
        shadow.clock[box] = run.times[thread]
        target = run.tensors[tensor]
        target[box] = result[box].to(target.dtype)


def slices(box: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    return tuple(slice(*bounds) for bounds in box)


def garbage(like: torch.Tensor) -> torch.Tensor:
    """Finite nonsense: masked-out factors still give 0, used ones a result that is visibly wrong, as columns
    that no row has do."""
    dtype = torch.float32 if like.is_floating_point() else like.dtype
    return torch.full(like.shape, -7000, dtype=dtype, device=like.device)


def first_of(mask: Any, box: tuple[slice, ...]) -> tuple[int, ...]:
    """The first element of a box at which a mask is set."""
    at = np.argwhere(mask)[0]
    return tuple(int(s.start + i * (s.step or 1)) for s, i in zip(box, at, strict=True))


def overlap(a: tuple[slice, ...], b: tuple[slice, ...]) -> bool:
    return all(x.start < y.stop and y.start < x.stop for x, y in zip(a, b, strict=True))
