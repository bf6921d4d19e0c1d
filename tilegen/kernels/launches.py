"""The multi_launch lowering, cuSync's way: every op is a launch of its own, and kernel boundaries order them.

    y = launch_n(… launch_1(launch_0(x)))

Why a launch reads what all launches before it wrote, the last one and earlier ones (fan-outs, fan-ins),
programmatic or not:

- On one stream an ordinary launch starts when the one before has completed, its writes visible; so, by
  induction, all before.
- A programmatic launch starts earlier, when every CTA of the one before has started. `griddepcontrol.wait`
  then returns when that grid has completed and its writes are visible (PTX ISA). It speaks of that one grid;
  but in every CTA of every launch the activations' loader executes it before it loads anything, and no CTA
  ends before its loader does. So launch n completes only after its waits have returned, hence after launch
  n - 1 has completed, and by induction after all before. And causality order is transitive: what launch n - 1
  saw when its waits returned is seen by whoever sees launch n - 1 completed.
- Nor does a launch write over what earlier ones still use (intermediates of the call before, counters): tiles
  are stored after they were
  loaded, ranks drawn and counters zeroed after the wait. Only packed weights are loaded before it, which
  nothing writes.
- No launch keeps another from running: the next one starts when all CTAs of this one are resident, so none of
  them is left to place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilegen.errors import PlanError, ProofError, TargetError
from tilegen.frontend.program import Program
from tilegen.frontend.spec import check_acyclic
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import GIVEN, Graph
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.kernels.generated import GeneratedLaunches
from tilegen.kernels.gpu_kernel import GpuKernel, Memory, PerStream, without_memory
from tilegen.options import Options
from tilegen.proof.checker import Certificate, CheckResult, check_sums, check_values
from tilegen.schedule.order import Order, by_name, op_major
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import emitted_by, scheduling_of, tiled

if TYPE_CHECKING:
    import torch

OF_AN_OP = ("tiles", "split_k", "split_kv", "cluster")  # options by op


# --- plans --------------------------------------------------------------------------------------------------


def whole_plan(program: Program, place: Place, options: Options) -> Plan:
    """The plan of all ops, each cut as is best for it alone. It has no semaphores: it says what is launched,
    in which order."""
    if not isinstance(program, Program):
        raise PlanError(f"a plan is made of a Program, given {type(program).__name__}")
    check_acyclic(program)
    if program.symbolic:
        raise PlanError(f"{program.name}: sizes are left open; a plan needs all of them")
    if options.policies:
        raise PlanError(
            f"policies {dict(options.policies)}: a launch of one op has no semaphores; kernel boundaries"
            " order them"
        )
    fused = fuse(program)
    strangers = [
        name
        for what in OF_AN_OP
        for name, _ in getattr(options, what)
        if name not in {op.name for op in fused.ops}
    ]
    if strangers:
        raise PlanError(
            f"{strangers[0]!r}: no such op; the ops are {', '.join(sorted(op.name for op in fused.ops))}"
        )
    names = {op.name for op in fused.ops} | set(fused.tensors)
    cut = [
        tiled(fused.alone(op), place, _of_op(options, op.name), names - {op.name, op.result})
        for op in fused.ops
    ]
    for op, of_op in zip(fused.ops, cut, strict=True):
        made = {o.name for o in of_op.ops if o.name != op.name} | {
            o.result for o in of_op.ops if o.result != op.result
        }
        if made & names:
            raise PlanError(
                f"splitting {op.name!r} makes {', '.join(sorted(made))}; {', '.join(sorted(made & names))} is"
                " taken",
                op.where,
            )
    partials = {name: t for graph in cut for name, t in graph.tensors.items() if name not in fused.tensors}
    graph = replace(fused, ops=tuple(op for g in cut for op in g.ops), tensors={**fused.tensors, **partials})
    sizes = tuple((name, n) for name, n in program.sizes if isinstance(n, int) and not isinstance(n, bool))
    arguments = tuple(t.name for t in program.arguments)
    whole = Plan(
        program.name, sizes, place.machine, graph, arguments, (), (), op_major(graph), lowering="multi_launch"
    )
    return replace(whole, target=place.target.name, calls=program.calls, returns=program.outputs)


def launch_plans(whole: Plan, place: Place, options: Options) -> tuple[Plan, ...]:
    """The plan of each op alone, in the order in which they are launched."""
    return tuple(_launch_plan(whole, whole.graph.alone(op), place, options) for op in whole.graph.ops)


def _of_op(options: Options, op: str) -> Options:
    """The options that concern one op."""
    of_op: dict[str, Any] = {
        what: tuple(item for item in getattr(options, what) if item[0] == op) for what in OF_AN_OP
    }
    return replace(options, **of_op)


def _launch_plan(whole: Plan, graph: Graph, place: Place, options: Options) -> Plan:
    arguments = tuple(name for name, t in graph.tensors.items() if t.role in GIVEN)
    order = _order(graph, options.order)
    made = Plan(
        graph.name, whole.sizes, whole.machine, graph, arguments, (), (), order, lowering=whole.lowering
    )
    return emitted_by(place.target, replace(made, scheduling=scheduling_of(made, options.scheduling)))


def _order(graph: Graph, name: str) -> Order:
    """Bands say how ops follow each other: alone, an op is walked in super-tiles of four rows, whose tiles
    share weights in L2."""
    asked = op_major(graph, 4) if name == "auto" else by_name(graph, name)
    return op_major(graph, 4) if asked.name.startswith("banded") else asked


# --- proof --------------------------------------------------------------------------------------------------


def certify_launches(
    whole: Plan, proofs: Sequence[Certificate], plans: Sequence[Plan], programmatic: bool
) -> Certificate:
    """The checker proves each launch alone; kernel boundaries order them. ProofError where a launch reads
    what a later one writes, or where sums over K that launches share are not whole."""
    passed = tuple(
        CheckResult(c.program, f"alone, passes {', '.join(x.name for x in c.checks)}", c.ok) for c in proofs
    )
    sizes = tuple((name, int(n)) for name, n in whole.sizes)
    boundaries = _boundaries(whole.graph, plans, programmatic)
    told = whole.to_json()
    sums, values = check_sums(told), check_values(told)
    for result in (sums, values):
        if not result.ok:
            raise ProofError(f"{whole.program}: {result.statement}")
    return Certificate(whole.program, sizes, whole.machine.name, (*passed, sums, values, boundaries), ())


def _boundaries(graph: Graph, plans: Sequence[Plan], programmatic: bool) -> CheckResult:
    made = {op.result: n for n, p in enumerate(plans) for op in p.graph.ops}
    at = {op.name: made[op.result] for op in graph.ops}
    reads = [(op, o.tensor) for op in graph.ops for o in op.operands]
    edges = [
        (writer.name, op.name, tensor)
        for op, tensor in reads
        for writer in graph.writers(tensor)
        if writer is not op
    ]
    for writer, reader, tensor in edges:
        if at[writer] > at[reader]:
            raise ProofError(
                f"{graph.name}: launch {at[reader]} ({reader}) reads {tensor!r}, which launch {at[writer]}"
                f" ({writer}) writes"
            )
    ordinary, early = (
        "each starts when the one before has completed",
        "each loads when the one before has completed (griddepcontrol.wait)",
    )
    crossing = [edge for edge in edges if at[edge[0]] != at[edge[1]]]
    passed = dict.fromkeys(f"{tensor}: {writer} -> {reader}" for writer, reader, tensor in crossing)
    statement = f"{len(plans)} launches on one stream, {early if programmatic else ordinary}"
    return CheckResult("kernel boundaries", "; ".join([statement, *passed]), True)


# --- the kernel ---------------------------------------------------------------------------------------------


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
    ):
        super().__init__(whole, certificate, None, bound or {}, program)
        self._launches = tuple(launches)
        passed = {n for launch in launches for n in (*launch.plan.arguments, *launch.plan.outputs)}
        self._inner = tuple(t for t in self._inner if t.name in passed)
        self.memory = Memory(self.inner_bytes)
        self._workspaces = PerStream[dict[str, Any]]()

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
    def packed_bytes(self) -> int:
        return sum(launch.packed_bytes for launch in self._launches)

    @property
    def workspace_bytes(self) -> int:
        return super().workspace_bytes + sum(launch.workspace_bytes for launch in self._launches)

    def explain(self) -> str:
        return "\n\n".join([*(launch.explain() for launch in self._launches), self.proof.text()])

    @property
    def generated(self) -> GeneratedLaunches:  # type: ignore[override]
        return GeneratedLaunches(self.plan, self.proof, tuple(launch.generated for launch in self._launches))

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.plan, self._launches, self.bound, self.program)

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
        return MultiLaunchKernel(self.plan, self.proof, launches, bound, self.program)

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
    launches: Sequence[CudaKernel],
    bound: dict[str, torch.Tensor],
    program: Program | None,
) -> MultiLaunchKernel:
    """A kernel from a pickle."""
    proofs = [launch.proof for launch in launches]
    plans = [launch.plan for launch in launches]
    return MultiLaunchKernel(
        whole,
        certify_launches(whole, proofs, plans, any(launch.programmatic for launch in launches)),
        launches,
        bound,
        program,
    )


def proved_launches(
    program: Program, place: Place, options: Options, programmatic: bool, progress: Callable[[str], None]
) -> tuple[Plan, Certificate, list[tuple[Plan, Certificate]]]:
    """The plan of all launches with what proves their order, and each launch's own."""
    from tilegen.runtime.verify import verify

    whole, found = whole_plan(program, place, options), []
    for made in launch_plans(whole, place, options):
        progress(f"{made.program}: proof")
        found.append((made, verify(made)))
    plans, proofs = [made for made, _ in found], [proof for _, proof in found]
    return whole, certify_launches(whole, proofs, plans, programmatic), found


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
    whole, certificate, launches = proved_launches(program, place, options, programmatic, progress)
    kernels = []
    for made, proof in launches:
        progress(f"{made.program}: compiler")
        kernels.append(CudaKernel(made, proof, library(made), programmatic=programmatic))
    return MultiLaunchKernel(whole, certificate, kernels, program=program)
