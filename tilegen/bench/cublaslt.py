"""y = act(x wᵀ + b) by cublasLt, its heuristics' whole list tried: what a user gets who tunes that library
for a shape.

The first entry of the list, which torch takes, is often not the fastest. Each algorithm of the list is timed
once for each shape, over copies of x and w that together pass the L2 cache; the fastest is kept for the
process. The library is the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tilegen.errors import TargetError
from tilegen.runtime import timing

WORKSPACE = 64 << 20  # bytes: Hopper's split kernels want 32 MiB
ASKED = 32  # algorithms of the heuristics' list
HOST_CYCLES = 2_000_000  # the GPU idles for about a millisecond while the host enqueues what is timed

EPILOGUES = {
    ("", False): 1,
    ("relu", False): 2,
    ("", True): 4,
    ("relu", True): 6,
    ("gelu_tanh", False): 32,
    ("gelu_tanh", True): 36,
}
# CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14, torch.float8_e4m3fn: 28}
COMPUTE_32F, DESC_TRANSA, DESC_EPILOGUE, DESC_BIAS, PREF_WORKSPACE = 68, 3, 7, 8, 1
DESC_FAST_ACCUM = 25  # of numbers of one byte: sums stay in the tensor cores, as tilegen's do
TRANSPOSED = 1


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class Shape:
    """One product as cublasLt sees it: y (M, N) = x (M, K) wᵀ, w (N, K), rows of x lie ldx elements apart."""

    m: int
    n: int
    k: int
    ldx: int
    ldw: int
    dtype: torch.dtype
    result: torch.dtype
    activation: str
    bias: bool


class Product:
    """The descriptors of one shape. cublasLt counts columns first, so it computes yᵀ (N, M) = w xᵀ: A = w,
    transposed; B = xᵀ as it lies."""

    def __init__(self, library: Any, shape: Shape):
        self.library, self.shape, kind = library, shape, TYPES[shape.dtype]
        self.description = self._made("cublasLtMatmulDescCreate", COMPUTE_32F, TYPES[torch.float32])
        self._set(DESC_TRANSA, ctypes.c_int32(TRANSPOSED))
        self._set(DESC_EPILOGUE, ctypes.c_uint32(EPILOGUES[shape.activation, shape.bias]))
        if shape.dtype.itemsize == 1:
            self._set(DESC_FAST_ACCUM, ctypes.c_int8(1))
        self.a = self._layout(kind, shape.k, shape.n, shape.ldw)
        self.b = self._layout(kind, shape.k, shape.m, shape.ldx)
        self.d = self._layout(TYPES[shape.result], shape.n, shape.m, shape.n)

    def algorithms(self, handle: Any) -> list[Any]:
        """The heuristics' list, the one that it holds for best first."""
        preference = self._made("cublasLtMatmulPreferenceCreate")
        size = ctypes.c_size_t(WORKSPACE)
        checked(
            self.library.cublasLtMatmulPreferenceSetAttribute(
                preference, PREF_WORKSPACE, ctypes.byref(size), ctypes.sizeof(size)
            )
        )
        found, count = (_Result * ASKED)(), ctypes.c_int()
        layouts = (self.description, self.a, self.b, self.d, self.d)
        checked(
            self.library.cublasLtMatmulAlgoGetHeuristic(
                handle, *layouts, preference, ASKED, found, ctypes.byref(count)
            )
        )
        checked(self.library.cublasLtMatmulPreferenceDestroy(preference))
        return [found[n].algo for n in range(count.value) if found[n].state == 0]

    def __call__(
        self,
        handle: Any,
        algorithm: Any,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        workspace: torch.Tensor,
    ) -> torch.Tensor:
        y = torch.empty(x.shape[0], w.shape[0], dtype=self.shape.result, device=x.device)
        if bias is not None:
            self._set(DESC_BIAS, ctypes.c_void_p(bias.data_ptr()))
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        a, b, d = (ctypes.c_void_p(t.data_ptr()) for t in (w, x, y))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        scratch = (ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(workspace.numel()))
        factors = ctypes.byref(one), ctypes.byref(zero)
        checked(
            self.library.cublasLtMatmul(
                handle,
                self.description,
                factors[0],
                a,
                self.a,
                b,
                self.b,
                factors[1],
                d,
                self.d,
                d,
                self.d,
                ctypes.byref(algorithm),
                *scratch,
                stream,
            )
        )
        return y

    def _made(self, create: str, *given: int) -> Any:
        made = ctypes.c_void_p()
        checked(getattr(self.library, create)(ctypes.byref(made), *given))
        return made

    def _layout(self, kind: int, rows: int, columns: int, between: int) -> Any:
        made = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(between)
        checked(self.library.cublasLtMatrixLayoutCreate(ctypes.byref(made), kind, *sizes))
        return made

    def _set(self, attribute: int, value: Any) -> None:
        checked(
            self.library.cublasLtMatmulDescSetAttribute(
                self.description, attribute, ctypes.byref(value), ctypes.sizeof(value)
            )
        )


def checked(status: int) -> None:
    if status:
        raise TargetError(f"cublasLt: status {status}")


@lru_cache(maxsize=1)
def library() -> Any:
    """libcublasLt of the CUDA that torch was built for; TargetError where there is none."""
    name = f"libcublasLt.so.{(torch.version.cuda or '').split('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise TargetError(f"{name} cannot be loaded: {error}") from None


class _Tuned:
    """What the process keeps: a handle, a workspace, and the fastest algorithm of each shape with its
    descriptors."""

    def __init__(self) -> None:
        self.library = library()
        self.handle = ctypes.c_void_p()
        checked(self.library.cublasLtCreate(ctypes.byref(self.handle)))
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")
        self.known: dict[
            Shape, Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
        ] = {}

    def best(
        self, shape: Shape, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
    ) -> Callable[..., torch.Tensor]:
        if shape not in self.known:
            product = Product(self.library, shape)
            calls = [self._call(product, a) for a in product.algorithms(self.handle)]
            if not calls:
                raise TargetError(f"cublasLt has no algorithm for {shape}")
            self.known[shape] = fastest(calls, x, w, bias)
        return self.known[shape]

    def _call(self, product: Product, algorithm: Any) -> Callable[..., torch.Tensor]:
        return lambda x, w, bias: product(self.handle, algorithm, x, w, bias, self.workspace)


@lru_cache(maxsize=1)
def _tuned() -> _Tuned:
    return _Tuned()


def fastest(
    calls: list[Callable[..., torch.Tensor]], x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
) -> Callable[..., torch.Tensor]:
    """The call that takes least over copies of x and w that pass the L2 cache; one that fails takes
    forever."""
    size = x.numel() * x.element_size() + w.numel() * w.element_size()
    copies = [(_copy(x), _copy(w)) for _ in range(timing.set_count(size))]

    def run(call: Callable[..., torch.Tensor]) -> None:
        for a, b in copies:
            call(a, b, bias)

    def seconds(call: Callable[..., torch.Tensor]) -> float:
        try:
            call(*copies[0], bias)
        except TargetError:  # the heuristics offer some that the product does not take
            return math.inf
        torch.cuda._sleep(HOST_CYCLES)  # type: ignore[no-untyped-call]
        return timing.event_seconds(lambda: run(call), 1)

    times = [seconds(call) for call in calls]
    if min(times) == math.inf:
        raise TargetError("cublasLt refuses every algorithm that its heuristics list")
    return calls[times.index(min(times))]


def _copy(t: torch.Tensor) -> torch.Tensor:
    """Of the same strides: a shape's descriptors hold them."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


@torch.fx.wrap
def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    result: torch.dtype | None = None,
) -> torch.Tensor:
    """y = act(x wᵀ + b): x (…, K), w (N, K), b (N,) or None; activation: "", relu or gelu_tanh; result: y's
    dtype, where it is not x's. The first call of a shape tunes it, outside any capture."""
    rows = x.reshape(-1, x.shape[-1])
    rows, w = (t if t.stride(1) == 1 else t.contiguous() for t in (rows, w))
    shape = Shape(
        rows.shape[0],
        w.shape[0],
        w.shape[1],
        rows.stride(0),
        w.stride(0),
        rows.dtype,
        result or rows.dtype,
        activation,
        bias is not None,
    )
    return _tuned().best(shape, rows, w, bias)(rows, w, bias).reshape(*x.shape[:-1], w.shape[0])
