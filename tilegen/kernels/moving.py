"""kernel(x, w1, w2) where a size moves: told the size at each call, nothing compiled when it changes.

    k = tg.compile(gpt3_mlp(M=tg.dim("M", max=4096)));   k(x of 17 rows, w1, w2);   k(x of 4000 rows, w1, w2)

The size is read off the shape of the first argument that has it. What depends on it alone (shapes, the plan
for an error's words) is kept for the sizes that were seen last; the binary, its counters and its
intermediates are those of the largest.

A GPU has several regimes, each with a plan and a binary of its own: few rows stream weights, many multiply.
They use the same memory for intermediates, and the same packed weights where their tiles allow it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tilegen.errors import ArgumentError
from tilegen.frontend.dims import Dim, dims_of, filled
from tilegen.frontend.program import Program, Size, Tensor
from tilegen.graph.forms import Place
from tilegen.kernels.fitting import fitted, lowered, of_each
from tilegen.kernels.gpu_kernel import share_memory
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.launches import moving_kernel
from tilegen.kernels.operator import Called, key_of
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime import fast_call
from tilegen.runtime.arguments import TORCH_DTYPES
from tilegen.runtime.request import Part, parts, planned_moving, planned_moving_launches
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan

KEPT = 512  # sizes whose shapes are kept
WORKERS = 4  # regimes that are compiled at a time


@dataclass(frozen=True)
class Regime:
    """The sizes that a plan is for, its proof, and a kernel of the largest of them."""

    plan: MovingPlan
    proof: Certificate
    largest: Kernel


class MovingKernel(Called):
    """A kernel for every value of a size that moves: 1 … largest; of 0 it gives empty tensors.

    Called as a Kernel is, recorded and differentiated too: torch sees one operator whose shapes move with
    its arguments'. `at(size)` is the kernel of one size. Within a regime a row of a linear, a norm or
    pointwise maths has the same bits whatever the size is: its tiles, their order of summation and their
    instructions are the same.
    """

    moves = True

    def __init__(self, regimes: tuple[Regime, ...]):
        self.regimes = regimes  # that of the largest size last
        share_memory(r.largest for r in regimes)
        ends = sorted((last, n) for n, r in enumerate(regimes) for _, last in r.plan.ranges)
        self._lasts, self._of = [last for last, _ in ends], [n for _, n in ends]
        self._largest, self.plan, self.proof = regimes[-1].largest, regimes[-1].plan, regimes[-1].proof
        self._kernels: OrderedDict[int, Kernel] = OrderedDict()
        self._fast_calls = dict[int, Callable[..., Any]]()  # by the extent that they are called with
        self._guard = threading.Lock()
        declared = {t.name: t for t in self.program.arguments}
        self.given = tuple(declared[t.name] for t in self._largest.given)
        self.outputs = tuple(self.plan.open.graph.tensors[name] for name in self.plan.open.outputs)
        self.differentiable = self._largest.differentiable
        self._found_at = FoundAt.of(self.given, self.dim)
        self.key = key_of(self)

    # --- what it is ------------------------------------------------------------

    @property
    def dim(self) -> Dim:
        """What moves."""
        return self.plan.dim

    @property
    def program(self) -> Program:
        return self.plan.program

    @property
    def title(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def identity(self) -> str:
        """What it runs, in words that are the same wherever it does."""
        plans = " ".join(r.plan.most.digest for r in self.regimes)
        return f"{plans} {self.dim.name} {self.dim.most} {self.target} {type(self).__name__}"

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The spec's inputs, weights and states in declaration order, their shapes over what moves."""
        return self.plan.program.arguments

    @property
    def target(self) -> str:
        """What runs: cuda, cpu or interpret."""
        return self._largest.target

    @property
    def source(self) -> str:
        """The generated source, of the regime of the largest sizes."""
        return self._largest.source

    @property
    def bound(self) -> Mapping[str, torch.Tensor]:
        """The arguments that prepare() has fixed."""
        return self._largest.bound

    @property
    def device(self) -> torch.device:
        """Where its results are."""
        return self._largest.device

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that prepare() has copied."""
        packed = (a for r in self.regimes for a in r.largest.packed.values())
        return sum({a.data_ptr(): a.nbytes for a in packed}.values())

    @property
    def workspace_bytes(self) -> int:
        """Bytes of counters of all regimes, and of the intermediates and partial sums, which they share."""
        kernels = [r.largest for r in self.regimes]
        inner = [k.inner_bytes for k in kernels]
        return sum(k.workspace_bytes for k in kernels) - sum(inner) + max(inner)

    def explain(self) -> str:
        """Each regime at its largest size, and what its proof covers."""
        name = self.dim.name
        told = [(r, f"{name} = {r.plan.sizes}, checked at {r.proof.proved_at}") for r in self.regimes]
        return "\n\n".join(f"{line}\n{r.largest.explain()}" for r, line in told)

    def __repr__(self) -> str:
        proved = "proved" if all(r.proof.ok for r in self.regimes) else "NOT proved"
        takes = ", ".join(t.name for t in self.given)
        return f"<MovingKernel on {self.target}, {proved}, takes ({takes}): {self.plan!r}>"

    def _repr_html_(self) -> str:
        from tilegen.tools.notebook import kernel_html

        return kernel_html(self, self.plan.most, self.proof)

    def __reduce__(self) -> tuple[Any, ...]:
        return MovingKernel, (self.regimes,)

    # --- calling it ------------------------------------------------------------

    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any:
        """Run now, on arguments in order, unseen by torch: what its operator does."""
        if self.fast is not None and out is None:
            results = self.fast(*arguments)
            if results is not NotImplemented:
                return results
        size = self.size_of(arguments)
        if not size:
            return self._empty(out)
        found = self.at(size)
        results = found.launched(arguments, out)
        if found.fast is not None:
            self._remember(arguments, found.fast)
        return results

    def _remember(self, arguments: Sequence[torch.Tensor], fast: Callable[..., Any]) -> None:
        """From now on `fast` makes calls of this size."""
        n, axis = self._found_at.argument, self._found_at.axis
        self._fast_calls[arguments[n].shape[axis]] = fast
        if self.fast is None:
            self.fast = fast_call.by_size(fast_call.host(), n, axis, self._fast_calls)

    def refuse(self, given: Sequence[torch.Tensor]) -> None:
        """ArgumentError where an argument does not fit."""
        size = self.size_of(given)
        if size:
            self.at(size).refuse(given)

    def shapes(self, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Of its results on these arguments, whose sizes may be torch's symbols."""
        size = self._found_at.size(given)
        return [tuple(extent(e, self.dim, size) for e in t.shape) for t in self.outputs]

    def program_of(self, given: Sequence[torch.Tensor]) -> Program:
        """What it computes on these arguments."""
        program: Program = filled(self.program, self.dim, self.size_of(given))
        return program

    def at(self, size: int) -> Kernel:
        """The kernel of one size: it shares binary, workspace and bound arguments with all others.

        Raises:
            PlanError: the size is not one of 1 … largest.
        """
        found = self._kernels.get(size)
        if found is not None:
            return found
        regime = self.regimes[self._of[min(bisect_left(self._lasts, size), len(self._of) - 1)]]
        program = filled(regime.plan.program, regime.plan.dim, size)
        made = regime.largest.at(regime.plan.at(size), program, size)
        with self._guard:
            self._kernels[size] = made
            if len(self._kernels) > KEPT:
                self._kernels.popitem(last=False)
                self._fast_calls.clear()
        return made

    def prepare(self, /, **weights: torch.Tensor) -> MovingKernel:
        """A kernel with these arguments fixed, which takes the others. What has the size that moves cannot
        be."""
        for t in self.arguments:
            if t.name in weights and dims_of(t.shape):
                raise ArgumentError(f"prepare: {t.name!r} {t.shape} has a size that moves ({self.dim.name})")
        return self.prepared(weights, {})

    def prepared(
        self,
        weights: Mapping[str, torch.Tensor],
        copies: dict[str, torch.Tensor],
        once: frozenset[str] | None = None,
    ) -> MovingKernel:
        """As Kernel.prepared, for all regimes."""
        made = (replace(r, largest=r.largest.prepared(weights, copies, once)) for r in self.regimes)
        return MovingKernel(tuple(made))

    def held_packed(self, names: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
        """As Kernel.held_packed: those that all regimes hold in one copy."""
        first, *others = (r.largest.held_packed(names) for r in self.regimes)
        return {name: like for name, like in first.items() if all(o.get(name) == like for o in others)}

    def unpacked(self, name: str) -> torch.Tensor:
        """A weight that it holds packed alone, as it was."""
        return self._largest.unpacked(name)

    def check(self) -> None:
        """Wait for all launches so far; HangError when one of them gave up waiting."""
        for regime in self.regimes:
            regime.largest.check()

    # --- the size ------------------------------------------------------------

    def size_of(self, arguments: Sequence[Any]) -> int:
        """What moves, in these arguments.

        Raises:
            ArgumentError: it is not one of 0 … largest.
        """
        at = self._found_at
        a, t = arguments[at.argument], self.given[at.argument]
        if not isinstance(a, torch.Tensor) or a.dim() != len(t.shape):
            given = tuple(a.shape) if isinstance(a, torch.Tensor) else type(a).__name__
            raise ArgumentError(f"{t.name!r}: expected a tensor {t.shape}, given {given}")
        size, left = divmod(int(a.shape[at.axis]) - at.rest, at.slope)
        if left or not 0 <= size <= self.dim.most:
            raise ArgumentError(
                f"{t.name!r}: expected shape {t.shape} with 0 ≤ {self.dim.name} ≤ {self.dim.most}, given"
                f" {tuple(a.shape)}"
            )
        return size

    def _empty(self, out: Any) -> Any:
        """Results that have no rows."""
        if out is not None:
            return out
        made = tuple(
            torch.empty(filled(t.shape, self.dim, 0), dtype=TORCH_DTYPES[t.dtype], device=self.device)
            for t in self.outputs
        )
        return made[0] if len(made) == 1 else made or None


def extent(of: Size, dim: Dim, size: Any) -> Any:
    """slope·size + rest: an extent where what moves is `size`, which may be a symbol of torch's."""
    if not dims_of(of):
        return of
    rest = filled(of, dim, 0)
    return (filled(of, dim, 1) - rest) * size + rest


@dataclass(frozen=True)
class FoundAt:
    """Where the size is read off: an axis of an argument, whose extent is slope·size + rest."""

    argument: int
    axis: int
    slope: int
    rest: int

    @staticmethod
    def of(given: Sequence[Tensor], dim: Dim) -> FoundAt:
        for n, t in enumerate(given):
            for axis, of in enumerate(t.shape):
                if dims_of(of):
                    rest = filled(of, dim, 0)
                    return FoundAt(n, axis, filled(of, dim, 1) - rest, rest)
        names = ", ".join(t.name for t in given)
        raise ArgumentError(f"no argument has {dim.name} in its shape; they are {names}")

    def size(self, given: Sequence[Any]) -> Any:
        """Of what moves, in these arguments; it may be a symbol of torch's."""
        return (given[self.argument].shape[self.axis] - self.rest) // self.slope


# --- compiled ---------------------------------------------------------------------------------------------


Load = Callable[[Plan], Any]


def compile_moving(
    program: Program,
    place: Place,
    options: Options,
    load: Load,
    kernel: Callable[..., Kernel],
    progress: Callable[[str], None],
    lowering: str = "persistent",
    programmatic: bool = False,
) -> MovingKernel:
    """A kernel of a program's regimes, each planned, proved and compiled by itself, several at a time.

    load: what a plan's text is compiled to; kernel: what makes one of the plan at the largest size, its
    certificate, that, and program=, size= and plan_at=. lowering, programmatic: as for tg.compile.
    """
    early = programmatic or lowering == "auto"

    def in_one_launch(part: Part) -> Callable[[], Regime]:
        def made(options: Options) -> Callable[[], Regime]:
            plan, proof = planned_moving(part, place, options, progress)
            progress("compiler")
            library, most = load(plan.open), plan.dim.most
            of = {"program": filled(plan.program, plan.dim, most), "size": most, "plan_at": plan.at}
            return lambda: Regime(plan, proof, kernel(plan.most, proof, library, **of))

        return fitted(part.program, place, part.in_one, made, progress, free=not options.tiles)

    def in_launches(part: Part) -> Callable[[], Regime]:
        proved = planned_moving_launches(part, place, part.options, early, progress)
        progress("compiler")
        libraries = of_each(proved.each, lambda launch: load(launch.plan.open))
        whole = proved.whole
        return lambda: Regime(whole.plan, whole.certificate, moving_kernel(proved, libraries, early))

    def loaded(part: Part) -> Callable[[], Regime]:
        ways = partial(in_launches, part), partial(in_one_launch, part)
        return lowered(part.program, part.lowering, lowering, *ways)

    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        found = list(pool.map(loaded, parts(program, place, options, progress, lowering)))
    return MovingKernel(tuple(made() for made in found))
