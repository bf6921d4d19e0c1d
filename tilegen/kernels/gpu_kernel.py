"""What kernels on a GPU have in common: arguments and outputs checked, a workspace for each stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from tilegen.config import knob
from tilegen.errors import TargetError
from tilegen.frontend.program import Program
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.arguments import TORCH_DTYPES, refuse_shared
from tilegen.runtime.driver import current_stream
from tilegen.schedule.plan import Plan

W = TypeVar("W")


class PerStream(Generic[W]):
    """One workspace for each stream. A graph being captured gets its own, since it may be replayed beside the
    stream's other work: one for each stream that takes part, since branches of a graph run side by side. Two
    copies of one graph must not."""

    def __init__(self) -> None:
        self._made, self._guard, self._capturing = (
            dict[tuple[int, int], W](),
            threading.Lock(),
            torch.cuda.is_current_stream_capturing,
        )

    def __call__(self, stream: int, make: Callable[[], W]) -> W:
        key = (stream, _capture_id(stream) if self._capturing() else 0)
        found = self._made.get(key)
        if found is not None:
            return found
        made = make()
        with self._guard:
            return self._made.setdefault(key, made)

    def __iter__(self) -> Iterator[W]:
        return iter(tuple(self._made.values()))


def ranges_wanted() -> bool:
    """Whether launches stand in NVTX ranges: by the knob, else where a profiler listens."""
    return (knob("TILEGEN_NVTX") or str(int("NVTX_INJECTION64_PATH" in os.environ))) == "1"


def range_name(plan: Plan) -> str:
    """gpt3_mlp(M=512, H=12288, I=6144): up, down"""
    sizes = ", ".join(f"{name}={value}" for name, value in plan.sizes)
    return f"{plan.program}({sizes}): {', '.join(op.name for op in plan.graph.ops)}"


class GpuKernel(Kernel):
    """A kernel on torch's current stream. Asynchronous, like torch's own ops. bound: the arguments that
    prepare() has fixed."""

    _place = "cuda"

    def __init__(
        self,
        plan: Plan,
        certificate: Any,
        library: Any,
        bound: dict[str, torch.Tensor],
        program: Program | None = None,
        size: int | None = None,
        plan_at: Callable[[int], Plan] | None = None,
    ):
        workers = plan.machine.sms // plan.cluster
        super().__init__(plan, certificate, library, workers, bound, program, size, plan_at)
        self._range = range_name(plan) if ranges_wanted() else ""

    def _current_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def _making(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """As the code that inductor generates makes a tensor: in a third of torch.empty's time."""
        if self._device.type != "cuda":
            return super()._making(shape, dtype)
        empty = vars(torch._C._dynamo.guards)["_empty_strided_cuda"]
        strides, device = torch.empty(shape, device="meta").stride(), self._device

        # without the kernel: a cycle would free it at any time, while a graph is captured too
        def made() -> Any:
            if torch._C._cuda_getDevice() == device.index:
                return empty(shape, strides, dtype)
            with torch.cuda.device(device):
                return empty(shape, strides, dtype)

        return made

    def _start(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], made: bool) -> None:
        stream = current_stream(self._device.index)
        if not self._range:
            return self._run(held, outputs, stream)
        nvtx: Any = torch.cuda.nvtx  # carries no types
        nvtx.range_push(self._range)
        try:
            self._run(held, outputs, stream)
        finally:
            nvtx.range_pop()

    def _run(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], stream: int) -> None:
        """Launch on the stream: held are the arguments that are not bound. Refuses outputs that share memory
        (_refuse_shared)."""
        raise NotImplementedError

    def _refuse_shared(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        refuse_shared(
            self.outputs,
            outputs,
            {**self._bound, **{t.name: a for t, a in zip(self.given, held, strict=True)}},
        )

    def check(self) -> None:
        """Wait for all launches so far; HangError when one of them gave up waiting."""
        raise NotImplementedError

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that prepare() packed tile by tile."""
        raise NotImplementedError

    @property
    def workspace_bytes(self) -> int:
        return self._inner_bytes

    def _intermediates(self) -> dict[str, torch.Tensor]:
        return {
            t.name: torch.empty(t.shape, dtype=TORCH_DTYPES[t.dtype], device=self._device)
            for t in self._inner
        }


def _capture_id(stream: int) -> int:
    """A number of the capture under way on a stream, not 0."""
    from cuda.bindings import driver

    result = driver.cuStreamGetCaptureInfo(stream)
    if int(result[0]) != 0:
        raise TargetError(f"CUDA driver: the capture of this stream cannot be identified ({result[0]})")
    return -1 - int(result[2])
