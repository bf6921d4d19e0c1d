"""The CPU target: the plan's C++, compiled with the system's compiler and called on torch tensors without
copies."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilegen.config import count
from tilegen.errors import HangError, TargetError
from tilegen.frontend.dims import most
from tilegen.runtime import cache
from tilegen.runtime.cxx import compile_source, compiler, native, version
from tilegen.schedule.hang import describe_hang
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.emit import generate

if TYPE_CHECKING:
    import torch

FLAGS = ("-O3", "-march=native", "-std=c++17", "-pthread", "-ffp-contract=fast")
TSAN_FLAGS = ("-O2", "-g", "-std=c++17", "-pthread", "-fsanitize=thread", "-DTG_MAIN")


class Library:
    """The compiled plan, over what moves where anything does. `run` is re-entrant for different states."""

    target, source_name = "cpu", "kernel.cpp"

    def __init__(self, plan: Plan):
        self.plan = plan
        path = compiler()
        key = cache.key_of(plan.digest, path, version(path), native(), " ".join(FLAGS))

        def build(folder: Path) -> dict[str, str]:
            compile_source(generate(plan), folder, (*FLAGS, "-shared", "-fPIC"), "kernel.so")
            return {"note": f"{plan.program} {dict(plan.sizes)} {plan.machine.name}"}

        files = cache.get_or_build("binaries", key, build)
        self.source_path = files["kernel.cpp"]
        self._library = ctypes.CDLL(str(files["kernel.so"]))
        self._library.tg_create.restype = ctypes.c_void_p
        self._library.tg_destroy.argtypes = [ctypes.c_void_p]
        self._library.tg_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_int64,
            ctypes.c_void_p,
            *([ctypes.c_void_p] if plan.dim else []),
        ]
        self._library.tg_counter_value.argtypes = [ctypes.c_void_p, ctypes.c_int]

    def __reduce__(self) -> tuple[type[Library], tuple[Plan]]:
        return Library, (self.plan,)

    @property
    def source(self) -> str:
        return self.source_path.read_text()

    def create(self) -> int:
        """A fresh state: zeroed counters. One run at a time may use it."""
        return int(self._library.tg_create())

    def destroy(self, state: int) -> None:
        self._library.tg_destroy(state)

    def counters(self, state: int) -> list[int]:
        return [self._library.tg_counter_value(state, n) for n in range(most(self.plan.semaphore_count))]

    def run(
        self,
        state: int,
        held: Mapping[str, torch.Tensor],
        workers: int,
        plan: Plan | None = None,
        size: int | None = None,
    ) -> None:
        """Run all tiles on the plan's tensors. size: of what moves, and plan: the plan there. HangError names
        the tile that waited too long."""
        tensors = (ctypes.c_void_p * len(held))(*(held[name].data_ptr() for name in self.plan.graph.tensors))
        hang = (ctypes.c_int * 7)()
        timeout = count("TILEGEN_TIMEOUT_MS", 10000)
        sizes = () if size is None else ((ctypes.c_int * 1)(size),)
        status = self._library.tg_run(state, tensors, workers, timeout, hang, *sizes)
        if status < 0:
            raise TargetError(
                f"the system gives fewer threads than the {workers} that the kernel runs on; set"
                " TILEGEN_NUM_THREADS to fewer, or raise the limit (ulimit -u, ulimit -v)"
            )
        if status:
            raise HangError(describe_hang(plan or self.plan, *hang, over=self.plan if plan else None))


def sanitized(plan: Plan, folder: Path, extra: Sequence[str] = ()) -> Path:
    """A program of its own under ThreadSanitizer. Run it with TSAN_OPTIONS="halt_on_error=1 exitcode=66"."""
    return compile_source(generate(plan), folder, (*TSAN_FLAGS, *extra), "kernel")


def default_workers(plan: Plan) -> int:
    """Static lists need a thread each; dynamic scheduling runs on any number."""
    if not isinstance(plan.scheduling, str):
        return len(plan.scheduling)
    cores = count("TILEGEN_NUM_THREADS") or len(os.sched_getaffinity(0))
    return max(1, min(plan.machine.clusters(plan.cluster), most(plan.order.count), cores))
