"""The system's C++ compiler: of the CPU target, of the emulated GPU, and of what calls kernels on a GPU
(fast_call)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tilegen.errors import CompileError, CompilerMissing

# for our own builds: another compiler's new warning must not stop a user
WARNINGS = ("-Wall", "-Wextra", "-Werror")


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
        "a C++17 compiler is needed; install g++ or clang++ (Debian: apt-get install g++), or set TILEGEN_CXX"
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
