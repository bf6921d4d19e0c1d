"""What a GPU's result file says of where it was measured: device, versions of all that takes part, clocks."""

from __future__ import annotations

import ctypes
import importlib.metadata
from typing import Any

import torch

from tilegen.bench.results import versions
from tilegen.runtime import timing

REMARKS = (
    (
        "tilegen: as tg.compile gives it, weights bound with prepare; tilegen-exclusive: compiled with"
        " exclusive=True, nothing else waits inside beside it"
    ),
    "cudnn.benchmark on, cudnn.benchmark_limit 0: all of cuDNN's plans are tried",
)


def environment() -> dict[str, Any]:
    """Device, versions and what else a reader should know, for the result file."""
    found = {
        **versions(),
        "triton": _distribution("triton"),
        "cuda": torch.version.cuda,
        "nvrtc": _distribution("nvidia-cuda-nvrtc"),
        "cublas": cublas_version(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "driver": timing.nvidia_smi("driver_version"),
    }
    clocks = {name: timing.nvidia_smi(f"clocks.max.{name}") for name in ("sm", "mem")}
    limits = {"max_clocks_mhz": clocks, "power_limit_w": timing.nvidia_smi("power.limit")}
    return {"device": torch.cuda.get_device_name(), **limits, "versions": found, "remarks": list(REMARKS)}


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cublas_version() -> str | None:
    """Of the cuBLAS that torch uses: major.minor.patch."""
    try:
        library = ctypes.CDLL(f"libcublas.so.{(torch.version.cuda or '').split('.')[0]}")
    except OSError:
        return None
    parts = [ctypes.c_int() for _ in range(3)]
    if any(library.cublasGetProperty(n, ctypes.byref(p)) for n, p in enumerate(parts)):
        return None
    return ".".join(str(p.value) for p in parts)
