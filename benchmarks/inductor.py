"""Inductor's kernels ahead of a measurement: one GPU for many processes that compile, and a cell's kernels
compiled by a pool of them into the cache that the process which measures reads.

While Inductor times its choices it has its GPU's lock, so no other process's timing is beside it, but what
others run while they compile may be.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.precompile import Compiled, compiled, in_pool
from benchmarks.workloads import Task
from tilegen.bench import contenders
from tilegen.bench.contenders import builders
from tilegen.bench.ladder import best_convolutions
from tilegen.runtime.data import random_arguments


@contextlib.contextmanager
def gpu_alone(lock: Path) -> Iterator[None]:
    """While no other process of this GPU has the lock."""
    with lock.open("a") as file:  # closing it gives the lock back
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def inductor_times_alone(lock: Path) -> None:
    from torch._inductor.runtime.benchmarking import benchmarker

    timed_by_inductor = benchmarker.benchmark_gpu

    @functools.wraps(timed_by_inductor)
    def timed_alone(choice: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        choice()  # without the lock: its first call loads the kernel, which takes longer than all others
        torch.cuda.synchronize()
        with gpu_alone(lock):
            return timed_by_inductor(choice, *args, **kwargs)

    benchmarker.benchmark_gpu = timed_alone  # type: ignore[method-assign]


def compile_cells(
    wanted: Sequence[tuple[Task, str]], jobs: int, seconds: float, say: Callable[[Compiled], None]
) -> None:
    """Each (task, contender of torch.compile), in their order, by a pool of processes that share this GPU.
    What has not begun after `seconds` is left to the process that measures."""
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    spawn = get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(jobs, spawn, _begin, (Path(folder) / "lock", threads)) as pool,
    ):
        in_pool(pool, compile_cell, wanted, seconds, say)


def _begin(lock: Path, threads: int) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)  # read where Inductor is imported
    inductor_times_alone(lock)


def compile_cell(task: Task, name: str) -> Compiled:
    """What torch.compile makes of a cell for one of its contenders, into Inductor's cache."""

    def make() -> None:
        with torch.no_grad(), best_convolutions():
            given = [random_arguments(task.program, device=contenders.DEVICE)]
            if made := builders(task.program, {}, given).get(name):
                made().calls[0]()

    return compiled(task, name, make)
