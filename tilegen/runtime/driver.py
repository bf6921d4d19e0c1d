"""The driver side of CUDA: load a cubin, encode tensor maps, launch on torch's current stream. Touched only
where a driver and a GPU are."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from tilegen.errors import TargetError
from tilegen.runtime.launch import MAP_BYTES

if TYPE_CHECKING:
    from tilegen.runtime.launch import TensorMap


@lru_cache(maxsize=1)
def missing() -> str:
    """Why no GPU can be used, or an empty string. Asked before any driver call: without libcuda some of them
    hang."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return ""


def checked(result: tuple[Any, ...]) -> Any:
    from cuda.bindings import driver

    status, *rest = result
    if status != driver.CUresult.CUDA_SUCCESS:
        refused(int(status))
    return rest[0] if len(rest) == 1 else rest


def refused(status: int) -> NoReturn:
    """TargetError with the name of what the driver answered."""
    from cuda.bindings import driver

    named: Any = {int(known): known.name for known in driver.CUresult}
    raise TargetError(f"CUDA driver: {named.get(status, status)}")


# what a launch at other addresses calls of the driver
FAST = (
    *("cuLaunchKernelEx", "cuTensorMapReplaceAddress", "cuStreamIsCapturing"),
    *("cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"),
)


def fast_functions() -> tuple[int, ...]:
    """The addresses of FAST."""
    library = ctypes.CDLL("libcuda.so.1")
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FAST)


def current_stream(device: int) -> int:
    """The handle of torch's current stream, as the code that inductor generates asks for it:
    torch.cuda.current_stream() makes an object each time."""
    import torch

    return int(torch._C._cuda_getCurrentRawStream(device))


class Parameters:
    """Kernel parameters in memory that stays: one buffer each, and the array of their addresses that a launch
    takes."""

    def __init__(self, buffers: Sequence[bytes]):
        self._buffers = [_Aligned(b) for b in buffers]
        self._pointers = (ctypes.c_void_p * len(self._buffers))(*(b.address for b in self._buffers))
        self.address = ctypes.addressof(self._pointers)

    @property
    def raw(self) -> list[bytes]:
        """What stands in each."""
        return [b.raw for b in self._buffers]

    def place(self, maps: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> Place:
        """Where a tensor's address stands: (number, bytes added to it) of maps in the first parameter,
        (parameter, number) of words."""
        first = self._buffers[0].address
        return Place(
            tuple((first + MAP_BYTES * n, offset) for n, offset in maps),
            tuple(ctypes.c_uint64.from_address(self._buffers[p].address + 8 * n) for p, n in words),
        )


class Place:
    """Where the address of one tensor stands in parameters. They are read while a launch is enqueued, so they
    may be written again after it."""

    __slots__ = ("_maps", "_replace", "_words")

    def __init__(self, maps: tuple[tuple[int, int], ...], words: tuple[ctypes.c_uint64, ...]):
        self._maps, self._words = maps, words
        self._replace: Any = _replace_address() if maps else None

    @property
    def items(self) -> tuple[tuple[int, int, bool], ...]:
        """(where, bytes from the tensor's address, whether in a map) of each."""
        maps = tuple((at, offset, True) for at, offset in self._maps)
        return (*maps, *((ctypes.addressof(word), 0, False) for word in self._words))

    def move(self, address: int) -> None:
        """To encode a map takes ten times as long (CUDA driver API, cuTensorMapReplaceAddress)."""
        for at, offset in self._maps:
            if self._replace(at, address + offset):
                raise TargetError(f"CUDA driver: a tensor map does not take the address {address:#x}")
        for word in self._words:
            word.value = address


class _Aligned:
    """Bytes at a multiple of 64, as a tensor map wants it."""

    def __init__(self, data: bytes):
        self._memory = ctypes.create_string_buffer(len(data) + 64)
        self.address = ctypes.addressof(self._memory) + -ctypes.addressof(self._memory) % 64
        self._bytes = len(data)
        ctypes.memmove(self.address, data, len(data))

    @property
    def raw(self) -> bytes:
        return ctypes.string_at(self.address, self._bytes)


@lru_cache(maxsize=1)
def _replace_address() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapReplaceAddress
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return function


class Launcher:
    """A kernel with its grid, ready to be launched on any stream."""

    def __init__(
        self, function: Any, grid: int, block: int, shared_bytes: int, cooperative: bool, programmatic: bool
    ):
        from cuda.bindings import driver

        self._function, self._launch = function, driver.cuLaunchKernelEx
        attributes, kinds = [], driver.CUlaunchAttributeID
        if cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        self._grid, self._block, self._shared_bytes, self._attributes = grid, block, shared_bytes, attributes
        self._configs = dict[int, Any]()  # of each stream
        self._success = driver.CUresult.CUDA_SUCCESS

    def __call__(self, parameters: Parameters, stream: int) -> None:
        config = self._configs.get(stream) or self._configs.setdefault(stream, self.config(stream))
        result = self._launch(config, self._function, parameters.address, 0)
        if result[0] != self._success:
            checked(result)

    @property
    def function(self) -> int:
        """The handle of the kernel's function."""
        return int(self._function)

    def config(self, stream: int) -> Any:
        """Grid, shared memory and attributes of a launch on a stream (CUlaunchConfig)."""
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._block, 1, 1
        config.sharedMemBytes, config.hStream = self._shared_bytes, stream
        config.attrs, config.numAttrs = self._attributes, len(self._attributes)
        return config


class Module:
    """A loaded cubin."""

    def __init__(self, code: bytes):
        if missing():
            raise TargetError(missing())
        import torch
        from cuda.bindings import driver

        torch.cuda.current_stream()  # makes torch's context current
        torch.cuda.synchronize()
        self._library = checked(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))

    def write(self, name: str, data: bytes) -> None:
        """Into a variable of the cubin, on the current GPU."""
        from cuda.bindings import driver

        address, size = checked(driver.cuLibraryGetGlobal(self._library, name.encode()))
        if len(data) != size:
            raise TargetError(f"{name} has {size} bytes; given {len(data)}")
        checked(driver.cuMemcpyHtoD(address, data, size))
        checked(driver.cuCtxSynchronize())  # the copy may end after the call

    def launcher(
        self,
        name: str,
        grid: int,
        block: int,
        shared_bytes: int = 0,
        cooperative: bool = True,
        programmatic: bool = False,
    ) -> Launcher:
        """Cooperative launches fail rather than hang when not all CTAs fit; programmatic ones may start while
        the one before ends."""
        from cuda.bindings import driver

        kernel = checked(driver.cuLibraryGetKernel(self._library, name.encode()))
        function = checked(driver.cuKernelGetFunction(kernel))
        if shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
        return Launcher(function, grid, block, shared_bytes, cooperative, programmatic)

    def launch(
        self, name: str, grid: int, block: int, arguments: Sequence[int], shared_bytes: int = 0
    ) -> None:
        """Launch cooperatively on torch's current stream. Arguments are 64-bit."""
        import torch

        values = Parameters([int(a).to_bytes(8, "little") for a in arguments])
        self.launcher(name, grid, block, shared_bytes)(values, torch.cuda.current_stream().cuda_stream)


def encode(address: int, m: TensorMap) -> bytes:
    """The 128 bytes of a tensor map whose first element is at the address (CUDA driver API,
    cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col)."""
    from cuda.bindings import driver

    u64, u32 = driver.cuuint64_t, driver.cuuint32_t
    where = getattr(driver.CUtensorMapDataType, m.data_type), m.rank, address
    sizes = [u64(n) for n in m.shape], [u64(n) for n in m.pitches]
    how = (
        [u32(n) for n in m.element_strides],
        getattr(driver.CUtensorMapInterleave, m.interleave),
        getattr(driver.CUtensorMapSwizzle, m.swizzle),
        getattr(driver.CUtensorMapL2promotion, m.l2_promotion),
        getattr(driver.CUtensorMapFloatOOBfill, m.oob_fill),
    )
    if m.im2col:
        corners = list(m.im2col.lower), list(m.im2col.upper)
        made = driver.cuTensorMapEncodeIm2col(*where, *sizes, *corners, m.box[0], m.im2col.pixels, *how)
    else:
        made = driver.cuTensorMapEncodeTiled(*where, *sizes, [u32(n) for n in m.box], *how)
    return ctypes.string_at(checked(made).getPtr(), 128)


@contextmanager
def beside_a_capture() -> Iterator[None]:
    """Calls of the driver that a capture on this thread would forbid, and that are not part of it."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    mode = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(mode))


class Counters:
    """Zeroed words in device memory, allocated outside torch and outside any capture: a graph must not zero
    them again at each replay."""

    def __init__(self, words: int):
        from cuda.bindings import driver

        self.words = words
        with beside_a_capture():
            self.address = int(checked(driver.cuMemAlloc(4 * words)))
            self.zero()

    def zero(self) -> None:
        """Also after a launch that hung; nothing may be running on them."""
        from cuda.bindings import driver

        stream = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        checked(driver.cuMemsetD32Async(self.address, 0, self.words, stream))
        checked(driver.cuStreamSynchronize(stream))
        checked(driver.cuStreamDestroy(stream))

    def __del__(self) -> None:
        if not sys.is_finalizing():
            from cuda.bindings import driver

            with beside_a_capture():
                driver.cuMemFree(self.address)  # which waits for launches that still use them
