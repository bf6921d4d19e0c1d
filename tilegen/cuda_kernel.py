"""kernel(x, w1, w2) on a GPU: launches on torch's current stream, safe to capture, several streams at once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilegen.codegen.hopper import NOTE_WORDS
from tilegen.config import count, knob
from tilegen.errors import ArgumentError, HangError, TargetError
from tilegen.kernel import Kernel, check, given_outputs
from tilegen.plan import Plan
from tilegen.spec import DTYPES
from tilegen.targets.cpu import describe_hang
from tilegen.targets.cuda import Counters, Parameters
from tilegen.targets.hopper import HopperLibrary, pack
from tilegen.targets.portable import PortableLibrary
from tilegen.trace import Trace

if TYPE_CHECKING:
    import torch

CudaLibrary = HopperLibrary | PortableLibrary
KEPT = 256  # launches whose tensor maps are kept, by the addresses of their tensors


@dataclass
class _Workspace:
    """What one stream, or one captured graph, may use: counters and intermediates."""

    counters: Counters
    intermediates: dict[str, torch.Tensor]


class CudaKernel(Kernel):
    """A plan on a GPU. Asynchronous, like torch's own ops; a hang is raised by the next call or by check().

    exclusive: the user's word that no other tilegen kernel with static lists runs beside this one (on another stream, in another process);
    launches are then programmatic only, not cooperative, and follow each other faster.
    """

    def __init__(
        self, plan: Plan, certificate: Any, library: CudaLibrary, exclusive: bool = False, weights: dict[str, torch.Tensor] | None = None
    ):
        import torch

        super().__init__(plan, certificate, library, plan.machine.sms // plan.gang)
        self._library, self._exclusive = library, exclusive
        self._launch = library.launcher(exclusive)
        self._bound = weights or {}
        self._given = tuple(t for t in self._arguments if t.name not in self._bound)
        self._declared = tuple(plan.graph.tensors[name] for name in plan.outputs)
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._shapes = [(t, getattr(torch, t.dtype)) for t in self._declared]
        self._hang = torch.full((8,), -1, dtype=torch.int32).pin_memory()
        self._hang_view = self._hang.numpy()
        self._packed = {name: pack(op, self._bound[op.bound.op.operands[1].tensor]) for name, op in library.packed.items()}
        self._libraries: dict[frozenset[str], CudaLibrary] = {frozenset(): library} if not self._bound else {}
        self._by_stream: dict[int, _Workspace] = {}
        self._launches: OrderedDict[tuple[int, ...], Parameters] = OrderedDict()
        self._guard = threading.Lock()
        self._notes = 0
        self._patience_ns = 1_000_000 * count("TILEGEN_TIMEOUT_MS", 10000)

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that prepare() packed tile by tile."""
        return sum(p.nbytes for p in self._packed.values())

    @property
    def workspace_bytes(self) -> int:
        tensors = [t for t in self._tensors if t.role in ("intermediate", "partial")]
        return sum(math.prod(t.plan_shape) * DTYPES[t.dtype] for t in tensors) + 4 * self._library.counter_words

    def prepare(self, **weights: torch.Tensor) -> CudaKernel:  # type: ignore[override]
        """A kernel with some arguments fixed; their contents must not change any more: they may be packed tile by tile, once."""
        known = [t.name for t in self._arguments]
        for name in weights:
            if name not in known:
                raise ArgumentError(f"prepare: {name!r} is not an argument of {self.plan.program}; they are {', '.join(known)}")
            check(self._arguments[known.index(name)], weights[name], "cuda")
        bound = {**self._bound, **weights}
        names = frozenset(bound)
        if names not in self._libraries:
            self._libraries[names] = type(self._library)(self.plan, names)
        prepared = CudaKernel(self.plan, self.proof, self._libraries[names], self._exclusive, bound)
        prepared._libraries = self._libraries  # one copy of the code on the GPU, however many weights it is prepared for
        return prepared

    # --- calling it ------------------------------------------------------------------------------------------------------

    def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
        import torch

        if self._hang_view[0] >= 0:
            self.check()
        if len(arguments) != len(self._given):
            expected = ", ".join(f"{t.name} {t.shape}" for t in self._given)
            raise ArgumentError(f"{self.plan.program} takes {len(self._given)} tensors ({expected}), {len(arguments)} were given")
        held = [check(t, a, "cuda") for t, a in zip(self._given, arguments, strict=True)]
        if out is None:
            outputs = [torch.empty(t.shape, dtype=dtype, device=self._device) for t, dtype in self._shapes]
        else:
            named = {**self._bound, **{t.name: a for t, a in zip(self._given, held, strict=True)}}
            outputs = given_outputs(self.plan.program, self._declared, out, named, "cuda")
        stream = torch.cuda.current_stream()
        raw = stream.cuda_stream
        workspace = self._workspace(raw)
        if knob("TILEGEN_POISON") == "1":
            for t in (*outputs, *workspace.intermediates.values()):
                t.fill_(float("nan"))
        key = (workspace.counters.address, self._notes, *(t.data_ptr() for t in held), *(t.data_ptr() for t in outputs))
        parameters = self._launches.get(key) or self._parameters(key, held, outputs, workspace)
        self._launch(parameters, raw)
        if not outputs:
            return None
        return (out if out is not None else outputs[0]) if len(outputs) == 1 else tuple(outputs)

    def _parameters(
        self, key: tuple[int, ...], held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], workspace: _Workspace
    ) -> Parameters:
        """Tensor maps and pointers of a launch, kept for the next one with the same addresses."""
        for a in (*held, *self._bound.values(), *outputs):
            if a.device != self._device:
                raise ArgumentError(f"a tensor is on {a.device}, the kernel is on {self._device}")
        addresses = {t.name: a.data_ptr() for t, a in zip(self._given, held, strict=True)}
        addresses |= {name: a.data_ptr() for name, a in self._bound.items()}
        addresses |= {t.name: a.data_ptr() for t, a in zip(self._declared, outputs, strict=True)}
        addresses |= {name: a.data_ptr() for name, a in workspace.intermediates.items()}
        packed = {name: a.data_ptr() for name, a in self._packed.items()}
        made = self._library.parameters(addresses, packed, workspace.counters.address, self._hang.data_ptr(), self._patience_ns, self._notes)
        with self._guard:
            self._launches[key] = made
            if len(self._launches) > KEPT:
                self._launches.popitem(last=False)
        return made

    def _workspace(self, stream: int) -> _Workspace:
        """The workspace of a stream; a graph being captured gets its own, since it may be replayed beside the stream's other work."""
        import torch

        key = _capture_id(stream) if torch.cuda.is_current_stream_capturing() else stream
        found = self._by_stream.get(key)
        if found is not None:
            return found
        made = {
            t.name: torch.empty(t.plan_shape, dtype=getattr(torch, t.dtype), device=self._device)
            for t in self._tensors
            if t.role in ("intermediate", "partial")
        }
        with self._guard:
            return self._by_stream.setdefault(key, _Workspace(Counters(self._library.counter_words), made))

    def trace(self, *arguments: torch.Tensor) -> Trace:
        """Run once with time stamps taken inside the kernel: when each tile waited, loaded, multiplied and stored, on which SM."""
        import torch

        if not isinstance(self._library, HopperLibrary):
            raise TargetError(f"only the kernel for sm_90a can be traced; this one is for {self._library.architecture}")
        library = HopperLibrary(self.plan, frozenset(self._bound), variant="trace")
        traced = CudaKernel(self.plan, self.proof, library, self._exclusive, self._bound)
        words = library.ctas * (library.generated.turns + 1) * NOTE_WORDS
        notes = torch.zeros(5, words, dtype=torch.int32, device=self._device)
        for launch in notes:  # the first load the code; back to back, as in use; the last is read
            traced._notes = launch.data_ptr()
            traced(*arguments)
        traced.check()
        return Trace.read(self.plan, notes[-1].cpu().numpy().reshape(-1, NOTE_WORDS), library.ctas, library.generated.turns)

    # --- hangs -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Wait for all launches so far; HangError when one of them gave up waiting: it names the tile, the semaphore and its posts."""
        import torch

        torch.cuda.synchronize(self._device)
        if self._hang_view[0] < 0:
            return
        rank, part, operand, step, semaphore, seen, target = (int(n) for n in self._hang_view[:7])
        self._hang_view[:] = -1
        for workspace in self._by_stream.values():
            workspace.counters.zero()
        raise HangError(describe_hang(self.plan, rank, part, operand, step, semaphore, seen, target))


def _capture_id(stream: int) -> int:
    """A number of the capture under way on a stream, negative so that it is no stream's."""
    from cuda.bindings import driver

    result = driver.cuStreamGetCaptureInfo(stream)
    if int(result[0]) != 0:
        raise TargetError(f"CUDA driver: the capture of this stream cannot be identified ({result[0]})")
    return -1 - int(result[2])

