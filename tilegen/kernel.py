"""kernel(x, w1, w2): a compiled plan, called on torch tensors."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegen.config import knob
from tilegen.errors import ArgumentError, TargetError
from tilegen.generate import Generated
from tilegen.plan import Plan
from tilegen.positions import positions
from tilegen.spec import DTYPES, Tensor

if TYPE_CHECKING:
    import torch

ALIGNMENT = 16  # bytes: what vector and bulk copies need


@dataclass
class _Workspace:
    """What one run at a time may use: counters and intermediates."""

    state: int
    intermediates: dict[str, torch.Tensor]


class Kernel:
    """A plan on a target. Call it with the spec's inputs, weights and states, in declaration order; it may be called from several threads.

    Gives one tensor, or a tuple in return order; out= takes tensors to write instead.
    """

    def __init__(self, plan: Plan, certificate: Any, library: Any, workers: int | None = None):
        from tilegen.targets.cpu import default_workers

        self.plan, self.proof, self._library = plan, certificate, library
        self.workers = workers or default_workers(plan)
        if not isinstance(plan.placement, str) and self.workers != len(plan.placement):
            raise TargetError(
                f"the plan's placement is static, {len(plan.placement)} lists, which need as many threads; given {self.workers}"
            )
        self._tensors = tuple(plan.graph.tensors.values())
        self._arguments = tuple(plan.graph.tensors[name] for name in plan.arguments)
        self._positions = positions(plan.graph)
        self._free: list[_Workspace] = []
        self._lock = threading.Lock()

    # --- what it is ------------------------------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """What runs: cpu or interpret."""
        return str(self._library.target)

    @property
    def source(self) -> str:
        """The generated source."""
        return str(self._library.source)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediates, partial sums and counters that a run needs besides its arguments and outputs."""
        tensors = [t for t in self._tensors if t.role in ("intermediate", "partial")]
        return sum(math.prod(t.plan_shape) * DTYPES[t.dtype] for t in tensors) + 128 * (len(self.plan.targets) + 4)  # and ticket, exits, abort, progress

    def explain(self) -> str:
        from tilegen.explain import explain_plan

        return explain_plan(self.plan, self.proof)

    @property
    def generated(self) -> Generated:
        """Source, plan, proof and what a launch is: what `tilegen generate` writes."""
        return Generated(self.plan, self.proof, self.target, "", self.source, self._library.source_name)

    def export(self, folder: str | Path) -> Path:
        """Write into a folder what one needs to use the kernel elsewhere (tilegen.generate)."""
        return self.generated.export(folder)

    def prepare(self, **weights: torch.Tensor) -> BoundKernel:
        """Fix weights: the kernel then takes the other arguments only. The CPU target repacks nothing (0 bytes)."""
        names = [t.name for t in self._arguments]
        for name in weights:
            if name not in names:
                raise ArgumentError(f"prepare: {name!r} is not an argument of {self.plan.program}; they are {', '.join(names)}")
            check(self._arguments[names.index(name)], weights[name])
        return BoundKernel(self, weights)

    # --- calling it ------------------------------------------------------------------------------------------------------

    def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
        import torch

        if len(arguments) != len(self._arguments):
            expected = ", ".join(f"{t.name} {t.shape}" for t in self._arguments)
            raise ArgumentError(f"{self.plan.program} takes {len(self._arguments)} tensors ({expected}), {len(arguments)} were given")
        held = {t.name: check(t, a) for t, a in zip(self._arguments, arguments, strict=True)}
        states = [t.name for t in self._arguments if t.role == "state"]
        for state in states:
            shared = _overlapping(held[state], {name: other for name, other in held.items() if name != state})
            if shared:
                raise ArgumentError(f"{state!r} shares memory with {shared!r}: a state is written in place")
        self._check_positions(held)
        declared = [self.plan.graph.tensors[name] for name in self.plan.outputs]
        if out is None:
            outputs = [torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in declared]
        else:
            outputs = given_outputs(self.plan.program, declared, out)
            refuse_shared(declared, outputs, held)
        held.update({t.name: o for t, o in zip(declared, outputs, strict=True)})
        workspace = self._take()
        try:
            held.update(workspace.intermediates)
            if knob("TILEGEN_POISON") == "1":
                self._poison(outputs, workspace)
            self._library.run(workspace.state, {t.name: held[t.name] for t in self._tensors}, self.workers)
        finally:
            with self._lock:
                self._free.append(workspace)
        if not outputs:
            return None
        return (out if out is not None else outputs[0]) if len(outputs) == 1 else tuple(outputs)

    def _take(self) -> _Workspace:
        import torch

        with self._lock:
            if self._free:
                return self._free.pop()
        made = {
            t.name: torch.empty(t.plan_shape, dtype=getattr(torch, t.dtype)) for t in self._tensors if t.role in ("intermediate", "partial")
        }
        return _Workspace(self._library.create(), made)

    def _poison(self, outputs: list[torch.Tensor], workspace: _Workspace) -> None:
        for t in (*outputs, *workspace.intermediates.values()):
            t.fill_(float("nan"))

    def _check_positions(self, held: dict[str, torch.Tensor]) -> None:
        """A position must leave room for the new rows in every cache it is used with."""
        for p in self._positions:
            problem = p.problem(int(held[p.tensor][0]))
            if problem:
                raise ArgumentError(problem, p.where)

    def __del__(self) -> None:
        for workspace in getattr(self, "_free", []):
            self._library.destroy(workspace.state)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel with some arguments fixed."""

    kernel: Kernel
    weights: dict[str, Any]

    def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
        names = [name for name in self.kernel.plan.arguments if name not in self.weights]
        if len(arguments) != len(names):
            raise ArgumentError(
                f"{self.kernel.plan.program}, prepared, takes {len(names)} tensors ({', '.join(names)}), {len(arguments)} were given"
            )
        given = {**self.weights, **dict(zip(names, arguments, strict=True))}
        return self.kernel(*(given[n] for n in self.kernel.plan.arguments), out=out)


def given_outputs(program: str, declared: Sequence[Tensor], out: Any, device: str = "cpu") -> list[torch.Tensor]:
    """The tensors of out=, checked: one for each declared output. Whether they lie apart is another question (refuse_shared)."""
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(given) != len(declared):
        raise ArgumentError(f"out: {program} has {len(declared)} outputs, {len(given)} were given")
    return [check(t, o, device) for t, o in zip(declared, given, strict=True)]


def refuse_shared(declared: Sequence[Tensor], outputs: Sequence[torch.Tensor], held: Mapping[str, torch.Tensor]) -> None:
    """ArgumentError where an output lies in another's memory, or in an argument's."""
    before = dict(held)
    for t, o in zip(declared, outputs, strict=True):
        shared = _overlapping(o, before)
        if shared:
            raise ArgumentError(f"out: {t.name!r} shares memory with {shared!r}")
        before[t.name] = o


def check(t: Tensor, a: Any, device: str = "cpu") -> torch.Tensor:
    """The tensor as the plan wants it, or an ArgumentError. A channels_last NCHW tensor is taken as the NHWC view that it is."""
    import torch

    if not isinstance(a, torch.Tensor):
        raise ArgumentError(f"{t.name!r}: expected a torch tensor {t.shape}, given {type(a).__name__}")
    if not (a.is_cuda if device == "cuda" else a.is_cpu):
        raise ArgumentError(f"{t.name!r} is on {a.device}, this kernel was compiled for {device}")
    if a.dtype is not getattr(torch, t.dtype):
        raise ArgumentError(f"{t.name!r}: expected dtype {t.dtype}, given {str(a.dtype).removeprefix('torch.')}")
    if a.requires_grad:
        raise ArgumentError(f"{t.name!r} requires grad; tilegen kernels have no backward: pass .detach()")
    if a.shape != t.shape and len(t.shape) == a.dim() == 4 and t.form in ("spatial", "filter"):
        permuted = a.permute(0, 2, 3, 1)
        if tuple(permuted.shape) == t.shape and permuted.is_contiguous():
            a = permuted
    if a.shape != t.shape:
        raise ArgumentError(f"{t.name!r}: expected shape {t.shape}, given {tuple(a.shape)}")
    if not a.is_contiguous():
        raise ArgumentError(f"{t.name!r} {t.shape}: expected a contiguous tensor, given strides {tuple(a.stride())}")
    if a.data_ptr() % ALIGNMENT:
        raise ArgumentError(f"{t.name!r}: its data must start at a multiple of {ALIGNMENT} bytes, it starts at {a.data_ptr():#x}")
    return a


def _overlapping(a: torch.Tensor, others: Mapping[str, torch.Tensor]) -> str:
    """The name of a tensor that lies in some of this one's memory, or an empty string."""
    begin = a.data_ptr()
    end = begin + a.nbytes
    for name, b in others.items():
        start = b.data_ptr()
        if start < end and begin < start + b.nbytes:
            return name
    return ""
