"""NVRTC: CUDA text to a cubin, with its log. Needs no GPU and no driver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilegen.errors import CompileError, CompilerMissing


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, and what the compiler said."""

    code: bytes
    log: str
    architecture: str


def compile_cuda(source: str, architecture: str = "sm_90a", options: tuple[str, ...] = ()) -> Cubin:
    """Compile straight to machine code, with the lines of the source for profilers. CompilerMissing when no
    NVRTC is installed; CompileError carries the log."""
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        status, *rest = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
        return rest[0] if len(rest) == 1 else rest

    try:
        program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    except RuntimeError as error:  # what cuda-bindings raises when the library is not there
        raise CompilerMissing(_missing(error)) from None
    usual = ("--std=c++17", "--generate-line-info", "--ptxas-options=-v")
    flags = [f"--gpu-architecture={architecture}", *usual, *options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    log = (
        _text(checked, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().rstrip("\0")
    )
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        nvrtc.nvrtcDestroyProgram(program)
        raise CompileError(f"NVRTC refused the generated source for {architecture}", log, source)
    code = _text(checked, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(program)
    return Cubin(code, log, architecture)


def _text(checked: Any, size: Any, get: Any, program: Any) -> bytes:
    """What NVRTC writes into a buffer that is given."""
    count = checked(size(program))
    buffer = bytes(count + 2)  # CPython keeps one object for each bytes of length 0 or 1: those are not ours
    checked(get(program, buffer))
    return buffer[:count]


@lru_cache(maxsize=1)
def version() -> str:
    """NVRTC's version, for cache keys; CompilerMissing when there is none."""
    from cuda.bindings import nvrtc

    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise CompilerMissing(_missing(error)) from None
    return f"nvrtc {major}.{minor}"


def _missing(error: RuntimeError) -> str:
    """What cuda-bindings says goes on over several lines, the first of which names the libraries."""
    first = (str(error).strip().splitlines() or [""])[0].partition(":")[0]
    return (
        f"NVRTC was not found ({first}); pip install 'nvidia-cuda-nvrtc==13.0.*', or install the CUDA toolkit"
    )
