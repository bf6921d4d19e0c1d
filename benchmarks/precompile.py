"""Every kernel of many tasks, compiled by a pool of processes into the cache that tg.compile reads: plans,
proofs and machine code, without a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

from benchmarks.workloads import Task
from tilegen.arch.machine import H200, Machine
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.schedule.plan import Plan
from tilegen.targets.select import place


@dataclass(frozen=True)
class Compiled:
    """One variant of a task. error: why there is none, else empty."""

    task: str
    variant: str
    seconds: float
    error: str = ""


def variants_of(task: Task, on: Machine | None = None) -> dict[str, Options]:
    """tilegen's contenders in a task on a machine, by name."""
    from tilegen.bench.compare import own_variants

    if task.group == "cusync":
        return {"tilegen": Options(), "tilegen-portable": Options()}
    if task.group == "portable":
        return {**own_variants(task.program, Options(), on=on), "tilegen-portable": Options()}
    return own_variants(task.program, Options(), on=on)


def compile_variant(task: Task, variant: str, on: Machine | None = None) -> Compiled:
    """What tg.compile and prepare will ask the cache for on a machine."""

    def make() -> None:
        from tilegen.bench.contenders import WAYS, Way

        compile_kernels(task.program, variants_of(task, on)[variant], WAYS.get(variant, Way()), on)

    return compiled(task, variant, make)


def compiled(task: Task, variant: str, make: Callable[[], None]) -> Compiled:
    """How long `make` takes, or why it ends before."""
    start, error = time.perf_counter(), ""
    try:
        make()
    except Exception as raised:  # told when it is measured, too; the others are still compiled
        error = f"{type(raised).__name__}: {(str(raised).strip().splitlines() or [''])[0]}"[:200]
    return Compiled(str(task), variant, round(time.perf_counter() - start, 2), error)


def compile_kernels(program: Program, options: Options, way: Any, on: Machine | None = None) -> None:
    """The kernels of a program that tg.compile and prepare load when they are asked in this way, on this
    machine, by default an H200."""
    from tilegen.targets.sm80.library import PortableLibrary
    from tilegen.targets.sm90.library import HopperLibrary

    plans = plans_of(program, options, way, on)
    if way.target != "cuda":
        PortableLibrary(plans[0], architecture="sm_90")
        return
    weights = {t.name for t in program.arguments if t.role == "weight" and way.prepared}
    for plan in plans:
        HopperLibrary(plan)
        if packed := frozenset(plan.arguments) & weights:
            HopperLibrary(plan, packed)


def plans_of(program: Program, options: Options, way: Any, machine: Machine | None = None) -> Sequence[Plan]:
    """Those of the launches that tg.compile makes on a machine."""
    from tilegen.runtime.request import planned, settled_lowering
    from tilegen.runtime.settled import settled
    from tilegen.schedule.launches import launch_plans, whole_plan

    on = place(machine or H200, "sm_90a" if way.target == "cuda" else way.target)
    if way.target != "cuda":
        return [planned(program, on, settled(program, on, options))[0]]
    lowering, _ = settled_lowering(program, on, options, way.lowering, False)
    if lowering == "persistent":
        return [planned(program, on, settled(program, on, options))[0]]
    chosen = replace(settled(program, on, Options()), policies=()) if options == Options() else options
    return launch_plans(whole_plan(program, on, chosen), on, chosen)


def precompile(
    wanted: Sequence[tuple[Task, str]],
    jobs: int,
    seconds: float,
    say: Callable[[Compiled], None],
    on: Machine | None = None,
) -> list[Compiled]:
    """Each (task, variant), in their order, for a machine; what has not begun after `seconds` is left to the
    process that measures."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=alone) as pool:
        return in_pool(pool, partial(compile_variant, on=on), wanted, seconds, say)


def in_pool(
    pool: ProcessPoolExecutor,
    compile_one: Callable[[Task, str], Compiled],
    wanted: Sequence[tuple[Task, str]],
    seconds: float,
    say: Callable[[Compiled], None],
) -> list[Compiled]:
    """Each (task, variant), in their order, by a pool's processes; none that has not begun after
    `seconds`."""
    found: list[Compiled] = []
    end = time.monotonic() + seconds
    waiting = {pool.submit(compile_one, *item): item for item in wanted}
    for done in as_completed(waiting):
        if done.cancelled():
            continue
        task, variant = waiting[done]
        error = done.exception()
        found.append(
            done.result()
            if error is None
            else Compiled(str(task), variant, 0.0, f"{type(error).__name__}: {error}"[:200])
        )
        say(found[-1])
        if time.monotonic() > end:
            for future in waiting:
                future.cancel()
    return found


def gpu_here() -> Machine | None:
    """The machine of this process's GPU; None where there is none."""
    from tilegen.targets.select import best_here, gpu_machine

    return None if best_here() == "cpu" else gpu_machine()


def alone() -> None:
    """A process of the pool: no GPU, one thread."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(1)
