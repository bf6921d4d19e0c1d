"""kernel(x, w1, w2): a compiled plan, called on torch tensors.

What the kernels of all targets share, and the kernel of the CPU and of the interpreter.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from tilegen.config import knob
from tilegen.errors import ArgumentError, TargetError
from tilegen.frontend.program import DTYPES, Program, Tensor
from tilegen.graph.positions import positions
from tilegen.kernels.generated import Generated
from tilegen.kernels.operator import Called, key_of
from tilegen.proof.checker import Certificate, prove
from tilegen.runtime.arguments import (
    TORCH_DTYPES,
    check,
    fixed,
    given_outputs,
    overlapping,
    refuse_shared,
)
from tilegen.runtime.cache import fingerprint
from tilegen.runtime.data import spoiled
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan

K = TypeVar("K", bound="Kernel")


@dataclass
class _Workspace:
    """What one run at a time may use: counters and intermediates."""

    state: int
    intermediates: dict[str, torch.Tensor]


class _Pool:
    """Workspaces that nobody uses now; their counters go with it."""

    def __init__(self, library: Any):
        self._library, self._free, self._lock = library, list[_Workspace](), threading.Lock()

    def take(self, make: Callable[[], _Workspace]) -> _Workspace:
        with self._lock:
            if self._free:
                return self._free.pop()
        return make()

    def give(self, workspace: _Workspace) -> None:
        with self._lock:
            self._free.append(workspace)

    def __del__(self) -> None:
        for workspace in self._free:
            self._library.destroy(workspace.state)


class Kernel(Called):
    """A plan on a target. Call it with the spec's inputs, weights and states, by position or by name:

        y = kernel(x, w1, w2) = kernel(x, w2=w2, w1=w1)

    It gives one tensor, or a tuple in return order. out= takes tensors to write instead; a tensor that a spec
    names `out` goes by position. Several threads may call it. It can be pickled and deep-copied: its plan and
    bound tensors travel, the binary comes from the cache or is compiled anew. `prepare` gives a kernel of the
    same kind with some arguments fixed.

    torch.compile, torch.export and torch.jit.trace take a call as one call of torch.ops.tilegen.<operator>,
    and so does autograd where an argument requires grad: the gradient is that of the program computed once
    more in torch (tilegen.kernels.operator). A program with states has none.
    """

    moves = False
    _place = "cpu"  # where tensors are: cpu or cuda

    def __init__(
        self,
        plan: Plan,
        certificate: Certificate,
        library: Any,
        workers: int | None = None,
        bound: Mapping[str, torch.Tensor] | None = None,
        program: Program | None = None,
        size: int | None = None,
        plan_at: Callable[[int], Plan] | None = None,
    ):
        from tilegen.targets.cpu.library import default_workers

        self.proof, self._library, self._workers_given = certificate, library, workers
        self.size, self.plan_at = size, plan_at  # of what moves, where the library runs several
        self.workers = workers or default_workers(plan)
        if not isinstance(plan.scheduling, str) and self.workers != len(plan.scheduling):
            raise TargetError(
                f"the plan is scheduled by {len(plan.scheduling)} lists, which need as many threads;"
                f" given {self.workers}"
            )
        self._bound = dict(bound or {})
        self._inner = tuple(t for t in plan.graph.tensors.values() if t.role in ("intermediate", "partial"))
        self._device = self._current_device()
        self._pool = _Pool(library)
        self._take_shapes(plan, program)

    def _take_shapes(self, plan: Plan, program: Program | None) -> None:
        """What depends on the sizes of the plan."""
        self.plan, self.program = plan, program
        self.key = key_of(self)
        self.outputs = tuple(plan.graph.tensors[name] for name in plan.outputs)
        self._fresh = [self._making(t.shape, TORCH_DTYPES[t.dtype]) for t in self.outputs]
        self.given = tuple(t for t in self.arguments if t.name not in self._bound)
        self._given_names = tuple(t.name for t in self.given)
        self._states = tuple(t.name for t in self.arguments if t.role == "state")
        self.differentiable = program is not None and not self._states
        self._positions = positions(plan.graph)

    def at(self, plan: Plan, program: Program | None, size: int) -> Kernel:
        """The kernel where what moves has this size: it shares binary, workspaces and what is bound."""
        made = object.__new__(type(self))  # copy.copy would make it anew, as pickle does
        made.__dict__.update(self.__dict__)
        made.size = size
        made._take_shapes(plan, program)
        return made

    def at_size(self, size: int) -> Self:
        """The kernel of one size of a program in which it moves."""
        assert self.plan_at is not None
        made = self.at(self.plan_at(size), None, size)
        assert isinstance(made, type(self))
        return made

    # --- what it is ------------------------------------------------------------

    @property
    def title(self) -> str:
        """The program's name."""
        return self.plan.program

    @property
    def identity(self) -> str:
        """What it runs, in words that are the same wherever it does."""
        return f"{self.plan.digest} {self.target} {type(self).__name__}"

    @property
    def device(self) -> torch.device:
        """Where its results are."""
        return self._device

    @property
    def bound(self) -> Mapping[str, torch.Tensor]:
        """The arguments that prepare() has fixed."""
        return self._bound

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The spec's inputs, weights and states in declaration order. `given`: those that prepare() has
        left."""
        return tuple(self.plan.graph.tensors[name] for name in self.plan.arguments)

    @property
    def target(self) -> str:
        """What runs: cuda, cpu or interpret."""
        return str(self._library.target)

    @property
    def source(self) -> str:
        """The generated source."""
        return str(self._library.source)

    @property
    def packed(self) -> Mapping[str, torch.Tensor]:
        """The copies of weights that prepare() has made. The CPU and the interpreter copy none."""
        return {}

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that prepare() has copied."""
        return sum(a.nbytes for a in self.packed.values())

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediates, partial sums and counters that a run needs besides its arguments and
        outputs."""
        return self.inner_bytes + 128 * (len(self.plan.targets) + 4)  # and next rank, exits, abort, progress

    @property
    def inner_bytes(self) -> int:
        """Bytes of intermediates and partial sums."""
        return sum(math.prod(t.plan_shape) * DTYPES[t.dtype] for t in self._inner)

    def explain(self) -> str:
        from tilegen.targets.select import place_of
        from tilegen.tools.explain import explain_plan

        return explain_plan(self.plan, place_of(self.plan), self.proof)

    def __repr__(self) -> str:
        proved = "proved" if self.proof.ok else "NOT proved"
        bound = f", prepared with {', '.join(self._bound)}" if self._bound else ""
        what = (
            f"{type(self).__name__} on {self.target}, {proved}, takes ({', '.join(self._given_names)}){bound}"
        )
        return f"<{what}: {self.plan!r}>"

    def _repr_html_(self) -> str:
        from tilegen.tools.notebook import kernel_html

        return kernel_html(self, self.plan, self.proof)

    @property
    def generated(self) -> Generated:
        """Source, plan, proof and what a launch is: what `tilegen generate` writes."""
        return Generated(self.plan, self.proof, self.target, "", self.source, self._library.source_name)

    def export(self, folder: str | Path) -> Path:
        """Write into a folder what one needs to use the kernel elsewhere (tilegen.kernels.generated)."""
        return self.generated.export(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (
            self.plan,
            self.proof,
            fingerprint(),
            self._library,
            self._workers_given,
            self._bound,
            self.program,
            self.size,
            self.plan_at,
        )

    # --- arguments fixed ------------------------------------------------------------

    def prepare(self, /, **weights: torch.Tensor) -> Kernel:
        """A kernel with these arguments fixed, which takes the others. They are constants: no gradient flows
        to them."""
        return self.prepared(weights, {})

    def prepared(
        self,
        weights: Mapping[str, torch.Tensor],
        copies: dict[str, torch.Tensor],
        once: frozenset[str] | None = None,
    ) -> Kernel:
        """As prepare. copies: of weights, made for this kernel or for others with the same tiles. once: those
        that are held packed and not as they are besides, and no others packed; None: packed where that is
        faster, and held as they are too."""
        bound = self._with_bound(weights)
        return Kernel(
            self.plan,
            self.proof,
            self._library,
            self._workers_given,
            bound,
            self.program,
            self.size,
            self.plan_at,
        )

    def held_packed(self, names: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
        """Of these weights those that a kernel prepared with them would read as packed copies alone, and hold
        whole in them; with what the copies look like."""
        return {}

    def unpacked(self, name: str) -> torch.Tensor:
        """A weight that it holds packed alone, as it was."""
        raise ArgumentError(f"{self.plan.program}: {name!r} is not held packed")

    def _with_bound(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is bound and these besides, checked."""
        return {**self._bound, **fixed(self.title, self.arguments, weights, self._place)}

    # --- calling it ------------------------------------------------------------

    def refuse(self, given: Sequence[torch.Tensor]) -> None:
        """ArgumentError where an argument does not fit."""
        for t, a in zip(self.given, given, strict=True):
            check(t, a, self._place)

    def shapes(self, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Of its results on these arguments."""
        return [t.shape for t in self.outputs]

    def program_of(self, given: Sequence[torch.Tensor]) -> Program:
        """What it computes on these arguments."""
        assert self.program is not None
        return self.program

    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any:
        """Run now, on arguments in order, unseen by torch: what its operator does."""
        held = [check(t, a, self._place) for t, a in zip(self.given, arguments, strict=True)]
        made = out is None
        outputs = (
            [fresh() for fresh in self._fresh]
            if made
            else given_outputs(self.plan.program, self.outputs, out, self._place)
        )
        self._start(held, outputs, made)
        if not outputs:
            return None
        return (outputs[0] if made else out) if len(outputs) == 1 else tuple(outputs)

    def check(self) -> None:
        """Wait for all launches so far; HangError when one of them gave up waiting. On a CPU there is none to
        wait for."""

    def _start(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], made: bool) -> None:
        """Run on what is bound and these. held: what is not bound; made: the outputs are new, in nobody
        else's memory."""
        by_name = dict(zip(self._given_names, held, strict=True))
        by_name.update(self._bound)
        for state in self._states:
            shared = overlapping(
                by_name[state], {name: other for name, other in by_name.items() if name != state}
            )
            if shared:
                raise ArgumentError(f"{state!r} shares memory with {shared!r}: a state is written in place")
        if not made:
            refuse_shared(self.outputs, outputs, by_name)
        self._check_positions(by_name)
        workspace = self._pool.take(self._workspace)
        try:
            by_name.update(zip(self.plan.outputs, outputs, strict=True))
            by_name.update(workspace.intermediates)
            if knob("TILEGEN_POISON") == "1":
                for t in (*outputs, *workspace.intermediates.values()):
                    spoiled(t)
            tensors = {name: _first(by_name[name], t) for name, t in self.plan.graph.tensors.items()}
            if self.size is None:
                self._library.run(workspace.state, tensors, self.workers)
            else:
                self._library.run(workspace.state, tensors, self.workers, self.plan, self.size)
        finally:
            self._pool.give(workspace)

    def _current_device(self) -> torch.device:
        return torch.device("cpu")

    def _making(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """What makes a tensor."""
        return partial(torch.empty, shape, dtype=dtype, device=self._device)

    def _workspace(self) -> _Workspace:
        made = {
            t.name: torch.empty(t.plan_shape, dtype=TORCH_DTYPES[t.dtype], device=self._device)
            for t in self._inner
        }
        return _Workspace(self._library.create(), made)

    def _check_positions(self, held: Mapping[str, torch.Tensor]) -> None:
        """A position must leave room for the new rows in every cache it is used with."""
        for p in self._positions:
            problem = p.problem(int(held[p.tensor][0]))
            if problem:
                raise ArgumentError(problem, p.where)


def _first(a: torch.Tensor, t: Tensor) -> torch.Tensor:
    """The tensor, or of an intermediate that was made for a larger size what this one takes."""
    n = math.prod(t.shape)
    return a if a.numel() == n else a.view(-1)[:n].view(t.plan_shape)


def travelled(plan: Plan, certificate: Certificate, made_by: str) -> Certificate:
    """The certificate that came with a plan. One of another version of tilegen is not trusted: the plan is
    proved anew."""
    return certificate if made_by == fingerprint() else prove(expanded(plan))


def _remade(
    plan: Plan,
    certificate: Certificate,
    made_by: str,
    library: Any,
    workers: int | None,
    bound: dict[str, torch.Tensor],
    program: Program | None,
    size: int | None,
    plan_at: Callable[[int], Plan] | None,
) -> Kernel:
    """A kernel from a pickle."""
    proof = certificate if size else travelled(plan, certificate, made_by)
    return Kernel(plan, proof, library, workers, bound, program, size, plan_at)
