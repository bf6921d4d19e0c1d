"""What kernels on a GPU have in common: arguments and outputs checked, a workspace for each stream."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

import torch

from tilegen.config import knob
from tilegen.errors import TargetError
from tilegen.frontend.program import DTYPES, Program, Tensor
from tilegen.kernels.kernel import Kernel
from tilegen.runtime import fast_call
from tilegen.runtime.arguments import TORCH_DTYPES, check, given_outputs, refuse_shared
from tilegen.runtime.driver import current_stream
from tilegen.runtime.kept import kept
from tilegen.runtime.launch_graph import StreamLaunch
from tilegen.schedule.plan import Plan

W = TypeVar("W")
ALIGNMENT = 256  # bytes: of an intermediate, as of a tensor of torch's own
_remembering = threading.Lock()


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

    def there(self, stream: int) -> W:
        """That of a stream, outside captures; it has been made."""
        return self._made[stream, 0]

    def __iter__(self) -> Iterator[W]:
        return iter(tuple(self._made.values()))


class Memory:
    """Intermediates of a stream, or of a captured graph: for one kernel, or for several that follow each
    other there."""

    def __init__(self, bytes: int):
        self.bytes, self._made = bytes, PerStream[torch.Tensor]()

    def __call__(self, stream: int, tensors: Sequence[Tensor], on: torch.device) -> dict[str, torch.Tensor]:
        """These tensors, one after the other."""
        empty = partial(torch.empty, self.bytes, dtype=torch.uint8, device=on)
        whole = self._made(stream, lambda: kept(empty, on))
        made, at = dict[str, torch.Tensor](), 0
        for t in tensors:
            size = math.prod(t.shape) * DTYPES[t.dtype]
            made[t.name] = whole[at : at + size].view(TORCH_DTYPES[t.dtype]).view(t.shape)
            at += aligned(size)
        return made


def _maker(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """What makes a tensor on the current device, and of what; as the code that inductor generates does, in a
    third of torch.empty's time."""
    strides = torch.empty(shape, device="meta").stride()
    return vars(torch._C._dynamo.guards)["_empty_strided_cuda"], (shape, strides, dtype)


def without_memory(a: torch.Tensor) -> torch.Tensor:
    """In a weight's place, where it is held otherwise: of its shape, and all of it one NaN."""
    return torch.full((), float("nan"), dtype=a.dtype, device=a.device).expand(a.shape)


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def share_memory(kernels: Iterable[Kernel]) -> None:
    """Kernels on a GPU of which one runs after the other, on a stream, have the same memory for their
    intermediates."""
    found = [k for k in kernels if isinstance(k, GpuKernel)]
    memory = Memory(max((k.inner_bytes for k in found), default=0))
    for kernel in found:
        kernel.memory = memory


def ranges_wanted() -> bool:
    """Whether launches stand in NVTX ranges: by the knob, else where a profiler listens."""
    return (knob("TILEGEN_NVTX") or str(int("NVTX_INJECTION64_PATH" in os.environ))) == "1"


def range_name(plan: Plan) -> str:
    """gpt3_mlp(M=512, H=12288, I=6144): up, down"""
    sizes = ", ".join(f"{name}={value}" for name, value in plan.sizes)
    return f"{plan.program}({sizes}): {', '.join(op.name for op in plan.graph.ops)}"


class GpuKernel(Kernel):
    """A kernel on torch's current stream. Asynchronous, like torch's own ops. bound: the arguments that
    prepare() has fixed.

    poison: whether outputs and intermediates are filled with NaN before each launch, as the knob said when
    the kernel was made: to read it at each call costs as much as an output.
    """

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
        workers = plan.machine.clusters(plan.cluster)
        super().__init__(plan, certificate, library, workers, bound, program, size, plan_at)
        self.memory = Memory(self.inner_bytes)
        self.poison = knob("TILEGEN_POISON") == "1"
        self._range = range_name(plan) if ranges_wanted() else ""
        self._remembered = set[int]()  # streams that `fast` knows

    def _current_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def at(self, plan: Plan, program: Program | None, size: int) -> Kernel:
        """As Kernel.at; what calls it again is its own."""
        made = super().at(plan, program, size)
        assert isinstance(made, GpuKernel)
        made.fast, made._remembered = None, set()
        return made

    def _making(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        if self._device.type != "cuda":
            return super()._making(shape, dtype)
        (empty, of), device = _maker(shape, dtype), self._device

        # without the kernel: a cycle would free it at any time, while a graph is captured too
        def made() -> Any:
            if torch._C._cuda_getDevice() == device.index:
                return empty(*of)
            with torch.cuda.device(device):
                return empty(*of)

        return made

    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any:
        """As Kernel.launched, in as few steps as there are."""
        if self.fast is not None:
            results = self.fast(*arguments) if out is None else self._again(arguments, out)
            if results is not NotImplemented:
                return results
        held = list(map(check, self.given, arguments, repeat(self._place)))
        made = out is None
        outputs = (
            [fresh() for fresh in self._fresh]
            if made
            else given_outputs(self.plan.program, self.outputs, out, self._place)
        )
        stream = current_stream(self._device.index)
        if self._range:
            self._named(held, outputs, made, stream)
        else:
            self._run(held, outputs, made, stream)
        if not outputs:
            return None
        return (outputs[0] if made else out) if len(outputs) == 1 else tuple(outputs)

    def _again(self, arguments: Sequence[torch.Tensor], out: Any) -> Any:
        """A call like those before, into tensors that are there; NotImplemented where it is another."""
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        fast: Any = self.fast
        if fast.into(*arguments, *outputs) is NotImplemented:
            return NotImplemented
        return out if len(outputs) == 1 else tuple(outputs)

    def _remember(self, stream: int, launches: Callable[[], Sequence[StreamLaunch]]) -> None:
        """From now on `fast` makes calls on this stream, which the launches given are for. Not where a graph
        is captured, launches stand in ranges or tensors are poisoned."""
        if stream in self._remembered or self.poison or self._range:
            return
        if torch.cuda.is_current_stream_capturing():
            return
        module = fast_call.host()
        if module is None:
            return
        with _remembering:
            if self.fast is None:
                device = fast_call.CUDA, self._device.index
                makers = [_maker(t.shape, TORCH_DTYPES[t.dtype]) for t in self.outputs]
                fixed = self._bound.values()
                self.fast = fast_call.made(
                    module, device, self.given, self.outputs, makers, fixed, self._alarms
                )
            names = (*self._given_names, *self.plan.outputs)
            with torch.cuda.device(self._device):
                fast_call.add(self.fast, stream, launches(), names)
            self._remembered.add(stream)

    @property
    def _alarms(self) -> Sequence[int]:
        """Addresses of int32 words that are negative while no launch has something to say."""
        raise NotImplementedError

    def _named(self, *given: Any) -> None:
        """Launch in an NVTX range."""
        nvtx: Any = torch.cuda.nvtx  # carries no types
        nvtx.range_push(self._range)
        try:
            self._run(*given)
        finally:
            nvtx.range_pop()

    def _run(
        self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], made: bool, stream: int
    ) -> None:
        """Launch on the stream: held are the arguments that are not bound; made: the outputs are new. Others
        are refused where they share memory (_refuse_shared)."""
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
    def workspace_bytes(self) -> int:
        return self.inner_bytes

    @property
    def inner_bytes(self) -> int:
        return sum(aligned(math.prod(t.shape) * DTYPES[t.dtype]) for t in self._inner)

    def _intermediates(self, stream: int) -> dict[str, torch.Tensor]:
        return self.memory(stream, self._inner, self._device)


def _capture_id(stream: int) -> int:
    """A number of the capture under way on a stream, not 0."""
    from cuda.bindings import driver

    result = driver.cuStreamGetCaptureInfo(stream)
    if int(result[0]) != 0:
        raise TargetError(f"CUDA driver: the capture of this stream cannot be identified ({result[0]})")
    return -1 - int(result[2])
