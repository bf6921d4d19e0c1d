"""The driver side of CUDA: load a cubin, launch a kernel on torch's current stream. Touched only where a driver and a GPU are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tilegen.errors import TargetError


@lru_cache(maxsize=1)
def missing() -> str:
    """Why no GPU can be used, or an empty string. Asked before any driver call: without libcuda some of them hang."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return ""


def _checked(result: tuple[Any, ...]) -> Any:
    from cuda.bindings import driver

    status, *rest = result
    if status != driver.CUresult.CUDA_SUCCESS:
        name = driver.cuGetErrorName(status)[1]
        raise TargetError(f"CUDA driver: {name.decode() if name else status}")
    return rest[0] if len(rest) == 1 else rest


class Module:
    """A loaded cubin."""

    def __init__(self, code: bytes):
        if missing():
            raise TargetError(missing())
        import torch
        from cuda.bindings import driver

        torch.cuda.current_stream()  # makes torch's context current
        torch.cuda.synchronize()
        self._library = _checked(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[int], shared_bytes: int = 0) -> None:
        """Launch on torch's current stream, cooperatively: it fails rather than hang when not all CTAs fit. Arguments are 64-bit."""
        import torch
        from cuda.bindings import driver

        function = _checked(driver.cuKernelGetFunction(_checked(driver.cuLibraryGetKernel(self._library, name.encode()))))
        values = [ctypes.c_uint64(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        config.attrs, config.numAttrs = [attribute], 1
        _checked(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))
