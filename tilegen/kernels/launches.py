"""The kernel of the multi_launch lowering, cuSync's way: every op is a launch of its own, and kernel
boundaries order them (tilegen.runtime.verify_launches).

    y = launch_n(… launch_1(launch_0(x)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilegen.errors import TargetError
from tilegen.frontend.dims import filled
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.kernels.fitting import fitted_launches, of_each
from tilegen.kernels.generated import GeneratedLaunches
from tilegen.kernels.gpu_kernel import GpuKernel, Memory, PerStream, without_memory
from tilegen.kernels.kernel import Kernel
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime.request import planned_launches
from tilegen.runtime.verify_launches import ProvedLaunches, certify_launches
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan

if TYPE_CHECKING:
    import torch


class MultiLaunchKernel(GpuKernel):
    """The launches of a program, a CudaKernel for each op or for each of its parts; what passes between
    them, one set for each stream or captured graph."""

    def __init__(
        self,
        whole: Plan,
        certificate: Certificate,
        launches: Sequence[CudaKernel],
        bound: dict[str, torch.Tensor] | None = None,
        program: Program | None = None,
        size: int | None = None,
        plan_at: Callable[[int], Plan] | None = None,
    ):
        super().__init__(whole, certificate, None, bound or {}, program, size, plan_at)
        self._launches: tuple[CudaKernel, ...] = tuple(launches)
        passed = {n for launch in launches for n in (*launch.plan.arguments, *launch.plan.outputs)}
        self._inner = tuple(t for t in self._inner if t.name in passed)
        self.memory = Memory(self.inner_bytes)
        self._workspaces = PerStream[dict[str, Any]]()

    def at(self, plan: Plan, program: Program | None, size: int) -> Kernel:
        """As Kernel.at; the same memory holds what passes between launches, in the shapes of this size."""
        made = super().at(plan, program, size)
        assert isinstance(made, MultiLaunchKernel)
        made._launches = tuple(launch.at_size(size) for launch in self._launches)
        made._inner = tuple(plan.graph.tensors[t.name] for t in self._inner)
        made._workspaces = PerStream()
        return made

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each launch."""
        return tuple(launch.plan for launch in self._launches)

    @property
    def target(self) -> str:
        return self._launches[0].target

    @property
    def source(self) -> str:
        """The sources of all launches, one after the other."""
        return "\n".join(launch.source for launch in self._launches)

    @property
    def packed(self) -> Mapping[str, torch.Tensor]:
        held = [(launch.plan.program, launch.packed) for launch in self._launches]
        return {f"{program}.{name}": a for program, packed in held for name, a in packed.items()}

    @property
    def workspace_bytes(self) -> int:
        return super().workspace_bytes + sum(launch.workspace_bytes for launch in self._launches)

    def explain(self) -> str:
        return "\n\n".join([*(launch.explain() for launch in self._launches), self.proof.text()])

    @property
    def generated(self) -> GeneratedLaunches:  # type: ignore[override]
        return GeneratedLaunches(self.plan, self.proof, tuple(launch.generated for launch in self._launches))

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.plan, self.proof, self._launches, self.bound
        return _remade, (*whole, self.program, self.size, self.plan_at)

    def prepared(
        self,
        weights: Mapping[str, torch.Tensor],
        copies: dict[str, torch.Tensor],
        once: frozenset[str] | None = None,
    ) -> MultiLaunchKernel:
        """As CudaKernel.prepared, for the launches that read these arguments."""
        bound = self._with_bound(weights)
        bound |= {name: without_memory(bound[name]) for name in once or ()}
        launches = []
        for launch in self._launches:
            read = {n: a for n, a in weights.items() if n in launch.plan.arguments}
            launches.append(launch.prepared(read, copies, None if once is None else once.intersection(read)))
        whole = self.plan, self.proof, launches, bound
        return MultiLaunchKernel(*whole, self.program, self.size, self.plan_at)

    @property
    def bound(self) -> Mapping[str, torch.Tensor]:
        """The arguments that prepare() has fixed."""
        return {**self._bound, **{n: a for launch in self._launches for n, a in launch.bound.items()}}

    def held_packed(self, names: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
        """Those that one launch reads: each launch holds a copy of its own."""
        readers = {n: [x for x in self._launches if n in x.plan.arguments] for n in names}
        alone = {n: found[0] for n, found in readers.items() if len(found) == 1}
        return {n: like for n, x in alone.items() for like in x.held_packed(frozenset({n})).values()}

    def unpacked(self, name: str) -> torch.Tensor:
        return next(x for x in self._launches if name in x.plan.arguments).unpacked(name)

    def check(self) -> None:
        for launch in self._launches:
            launch.check()

    def trace(self, *arguments: torch.Tensor) -> Any:
        """TargetError: there is no one kernel to trace."""
        raise TargetError(
            f"{self.plan.program} is {len(self._launches)} launches; compile with lowering='persistent' to"
            " trace one launch of all"
        )

    def _run(
        self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], made: bool, stream: int
    ) -> None:
        if not made:
            self._refuse_shared(held, outputs)
        values = {
            **self._workspaces(stream, lambda: self._intermediates(stream)),
            **{t.name: a for t, a in zip(self.given, held, strict=True)},
        }
        values |= {t.name: a for t, a in zip(self.outputs, outputs, strict=True)}
        for launch in self._launches:
            launch.launched(
                [values[t.name] for t in launch.given], [values[name] for name in launch.plan.outputs]
            )
        if made:
            self._remember(stream, lambda: tuple(launch.launch_on(stream) for launch in self._launches))

    @property
    def _alarms(self) -> Sequence[int]:
        return tuple(address for launch in self._launches for address in launch._alarms)


def _remade(
    whole: Plan,
    certificate: Certificate,
    launches: Sequence[CudaKernel],
    bound: dict[str, torch.Tensor],
    program: Program | None,
    size: int | None,
    plan_at: Callable[[int], Plan] | None,
) -> MultiLaunchKernel:
    """A kernel from a pickle."""
    if size is None:
        proofs, plans = [x.proof for x in launches], [x.plan for x in launches]
        early = any(launch.programmatic for launch in launches)
        certificate = certify_launches(whole, proofs, plans, early)
    return MultiLaunchKernel(whole, certificate, launches, bound, program, size, plan_at)


def compile_multi_launch(
    program: Program,
    place: Place,
    options: Options,
    library: Callable[[Plan], Any],
    programmatic: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> MultiLaunchKernel:
    """Plan, prove and compile each op as a launch of its own. library: gives the compiled kernel of a
    plan."""

    def made(asked: Options) -> MultiLaunchKernel:
        proved = planned_launches(program, place, asked, programmatic, progress)
        progress(f"{program.name}: compiler")
        libraries = of_each(proved.each, lambda launch: library(launch.plan))
        kernels = [
            CudaKernel(launch.plan, launch.certificate, loaded, programmatic=programmatic)
            for launch, loaded in zip(proved.each, libraries, strict=True)
        ]
        return MultiLaunchKernel(proved.whole.plan, proved.whole.certificate, kernels, program=program)

    return fitted_launches(program, place, options, made, progress)


def moving_kernel(
    proved: ProvedLaunches[MovingPlan], libraries: Sequence[Any], programmatic: bool
) -> MultiLaunchKernel:
    """The kernel of the largest size; `at` gives those of others."""
    whole = proved.whole.plan
    kernels = [
        CudaKernel(
            launch.plan.most,
            launch.certificate,
            library,
            programmatic=programmatic,
            size=whole.dim.most,
            plan_at=launch.plan.at,
        )
        for launch, library in zip(proved.each, libraries, strict=True)
    ]
    program: Program = filled(whole.program, whole.dim, whole.dim.most)
    return MultiLaunchKernel(
        whole.most, proved.whole.certificate, kernels, None, program, whole.dim.most, whole.at
    )
