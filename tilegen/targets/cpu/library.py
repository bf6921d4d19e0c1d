"""The CPU target: the plan's C++, compiled with the system's compiler and called on torch tensors without
copies."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tilegen.config import count
from tilegen.errors import CompileError, CompilerMissing, HangError, TargetError
from tilegen.frontend.dims import most
from tilegen.runtime import cache
from tilegen.schedule.hang import describe_hang
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.emit import generate

if TYPE_CHECKING:
    import torch

FLAGS = ("-O3", "-march=native", "-std=c++17", "-pthread", "-ffp-contract=fast")
# for our own builds: another compiler's new warning must not stop a user
WARNINGS = ("-Wall", "-Wextra", "-Werror")
TSAN_FLAGS = ("-O2", "-g", "-std=c++17", "-pthread", "-fsanitize=thread", "-DTG_MAIN")


@lru_cache(maxsize=8)
def _which(name: str, path: str) -> str | None:
    return shutil.which(name, path=path)


def _find(name: str) -> str | None:
    return _which(name, os.environ.get("PATH", os.defpath)) or shutil.which(name)


def compiler() -> str:
    """$TILEGEN_CXX, $CXX, c++, g++ or clang++, whichever is there first. CompilerMissing when the one named,
    or all, are not."""
    for variable in ("TILEGEN_CXX", "CXX"):
        named = os.environ.get(variable)
        if named:
            path = _find(named)
            if path is None:
                raise CompilerMissing(
                    f"${variable} names {named!r}, which is not an executable on this machine"
                )
            return path
    for name in ("c++", "g++", "clang++"):
        path = _find(name)
        if path is not None:
            return path
    raise CompilerMissing(
        "the CPU target needs a C++17 compiler; install g++ or clang++ (Debian: apt-get install g++), or set"
        " TILEGEN_CXX"
    )


@lru_cache(maxsize=8)
def version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise CompileError(f"the compiler {path} cannot be started: {error.strerror}") from None
    if done.returncode or not done.stdout.strip():
        raise CompileError(
            f"{path} --version failed with status {done.returncode}: is it a C++ compiler?", done.stderr
        )
    return done.stdout.splitlines()[0]


@lru_cache(maxsize=1)
def native() -> str:
    """This machine's instruction sets: a binary of -march=native runs only where they are the same."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return next(
        (line for line in text.splitlines() if line.startswith(("flags", "Features"))), os.uname().machine
    )


def compile_source(source: str, folder: Path, flags: Sequence[str], output: str) -> Path:
    """Write kernel.cpp into the folder and compile it. CompileError carries the compiler's log."""
    path = folder / "kernel.cpp"
    path.write_text(source)
    command = [compiler(), *flags, "-o", str(folder / output), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed", done.stderr, source)
    if not (folder / output).is_file() or (folder / output).read_bytes()[:4] not in (
        b"\x7fELF",
        b"\xcf\xfa\xed\xfe",
    ):
        raise CompileError(f"{' '.join(command)} ended well and wrote no library", done.stderr, source)
    return folder / output


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
    return max(1, min(plan.machine.sms // plan.cluster, most(plan.order.count), cores))
