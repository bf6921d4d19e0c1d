"""What kernels on a GPU have in common: arguments and outputs checked, a workspace for each stream."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tilegen.errors import ArgumentError, TargetError
from tilegen.kernel import Kernel, check, given_outputs, refuse_shared
from tilegen.plan import Plan
from tilegen.spec import DTYPES
from tilegen.targets.cuda import current_stream

if TYPE_CHECKING:
    import torch

W = TypeVar("W")


class PerStream(Generic[W]):
    """One workspace for each stream. A graph being captured gets its own, since it may be replayed beside the stream's other work: one for each
    stream that takes part, since branches of a graph run side by side. Two copies of one graph must not."""

    def __init__(self) -> None:
        import torch

        self._made, self._guard, self._capturing = dict[tuple[int, int], W](), threading.Lock(), torch.cuda.is_current_stream_capturing

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


class GpuKernel(Kernel):
    """A kernel on torch's current stream. Asynchronous, like torch's own ops. bound: the arguments that prepare() has fixed."""

    def __init__(self, plan: Plan, certificate: Any, library: Any, bound: dict[str, torch.Tensor]):
        import torch

        super().__init__(plan, certificate, library, plan.machine.sms // plan.gang)
        self._bound = bound
        self.given = tuple(t for t in self._arguments if t.name not in bound)
        self._declared = tuple(plan.graph.tensors[name] for name in plan.outputs)
        self._inner = tuple(t for t in self._tensors if t.role in ("intermediate", "partial"))
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._fresh = [partial(torch.empty, t.shape, dtype=getattr(torch, t.dtype)) for t in self._declared]

    def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
        if len(arguments) != len(self.given):
            expected = ", ".join(f"{t.name} {t.shape}" for t in self.given)
            raise ArgumentError(f"{self.plan.program} takes {len(self.given)} tensors ({expected}), {len(arguments)} were given")
        held = [check(t, a, "cuda") for t, a in zip(self.given, arguments, strict=True)]
        made = out is None
        outputs = [fresh(device=self._device) for fresh in self._fresh] if made else given_outputs(self.plan.program, self._declared, out, "cuda")
        self._run(held, outputs, current_stream(self._device.index))
        if not outputs:
            return None
        return (outputs[0] if made else out) if len(outputs) == 1 else tuple(outputs)

    def _run(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], stream: int) -> None:
        """Launch on the stream: held are the arguments that are not bound. Refuses outputs that share memory (_refuse_shared)."""
        raise NotImplementedError

    def _refuse_shared(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        refuse_shared(self._declared, outputs, {**self._bound, **{t.name: a for t, a in zip(self.given, held, strict=True)}})

    def check(self) -> None:
        """Wait for all launches so far; HangError when one of them gave up waiting."""
        raise NotImplementedError

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that prepare() packed tile by tile."""
        raise NotImplementedError

    @property
    def workspace_bytes(self) -> int:
        return sum(math.prod(t.plan_shape) * DTYPES[t.dtype] for t in self._inner)

    def _intermediates(self) -> dict[str, torch.Tensor]:
        import torch

        return {t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=self._device) for t in self._inner}

    def _with_bound(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is bound and these besides, checked."""
        known = [t.name for t in self._arguments]
        for name in weights:
            if name not in known:
                raise ArgumentError(f"prepare: {name!r} is not an argument of {self.plan.program}; they are {', '.join(known)}")
            check(self._arguments[known.index(name)], weights[name], "cuda")
        return {**self._bound, **weights}


def _capture_id(stream: int) -> int:
    """A number of the capture under way on a stream, not 0."""
    from cuda.bindings import driver

    result = driver.cuStreamGetCaptureInfo(stream)
    if int(result[0]) != 0:
        raise TargetError(f"CUDA driver: the capture of this stream cannot be identified ({result[0]})")
    return -1 - int(result[2])
