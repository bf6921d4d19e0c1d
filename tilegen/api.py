"""What a user calls: plan, verify, explain, compile, reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilegen import ops  # noqa: F401  (makes the kinds known)
from tilegen.arch.machine import Machine, machine
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Program
from tilegen.frontend.spec import as_program
from tilegen.options import Options
from tilegen.runtime.settled import quiet, refuse_lowering, refuse_off_a_gpu, settled
from tilegen.schedule.moving import MovingPlan, moving_plan
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan as make_plan
from tilegen.targets import select
from tilegen.targets.base import Target

if TYPE_CHECKING:
    from tilegen.kernels.empty import EmptyKernel
    from tilegen.kernels.kernel import Kernel
    from tilegen.kernels.moving import MovingKernel


def _html(made: Plan) -> str:
    from tilegen.tools.notebook import plan_html

    return plan_html(made)


Plan._repr_html_ = _html  # a plan is drawn by what is above it
MovingPlan._repr_html_ = lambda moving: _html(moving.most)


def plan(
    program: Program,
    on: str | int | Machine = "cpu",
    options: Options | None = None,
    progress: Callable[[str], None] = quiet,
    *,
    target: str = select.AUTO,
    **given: Any,
) -> Plan | MovingPlan:
    """The plan of a program on a machine ("cpu", "cpu:N", "h200", a number of SMs of an H200). Where a size
    moves (tg.dim), one for all its values, chosen for the largest.

    target: who is to run it, by default the machine's own target; the CPU and the interpreter run plans made
    for any machine. Options as an Options, or by name: tiles=, policies=, …

    Raises:
        TargetError: target and machine do not go together.
        PlanError: an option does not fit the program, or the target has no kernel for it.
    """
    place = select.place(machine(on), target)
    of = moving_plan if dims_of(program) else make_plan
    return of(program, place, settled(program, place, Options.asked(options, given)), progress)


def explain(
    program: Program,
    on: str | int | Machine = "cpu",
    options: Options | None = None,
    *,
    target: str = select.AUTO,
    **given: Any,
) -> str:
    """Every dependence and policy of a program as a formula; sizes may be open (tg.symbol) or move (tg.dim).

    on, target, options: as for `plan`.

    Raises:
        SpecError: program is no Program.
        TargetError: target and machine do not go together.
        PlanError: an option does not fit the program.
    """
    from tilegen.tools.explain import explain_program

    place = select.place(machine(on), target)
    return explain_program(as_program(program), place, settled(program, place, Options.asked(options, given)))


def compile(
    program: Program,
    target: str = "auto",
    *,
    on: str | int | Machine | None = None,
    options: Options | None = None,
    threads: int | None = None,
    exclusive: bool = False,
    lowering: str = "auto",
    programmatic: bool = False,
    tune: float | None = None,
    progress: Callable[[str], None] = quiet,
    **given: Any,
) -> Kernel | MovingKernel | EmptyKernel:
    """Plan, prove, generate, compile: a kernel to call on torch tensors.

    target: "sm_90a" (a Hopper GPU), "sm_80" (any GPU from Ampere on), "cuda" (the best of these for the GPU
    that is here), "cpu", "interpret" (the plan, tile by tile, under adversarial interleavings),
    "cuda-emulated" (the text of a GPU's kernel on the CPU, at small sizes, every access checked), or "auto":
    cuda where there is such a GPU, else cpu. Where there is no GPU, `tilegen.generate` writes a GPU's kernel.
    on: the machine to plan for, by default the target's own; the CPU target runs plans made for any machine.
    threads: workers of the CPU target.
    exclusive: on a GPU, nothing else that waits inside runs at the same time (CudaKernel).
    lowering: "persistent", one launch for all ops; on a GPU also "multi_launch", one for each
    (tilegen.kernels.launches), with programmatic=True each started while the one before ends; "auto":
    persistent, or programmatic launches where no options are given and they were measured to be faster or
    are by the cost model (tilegen.schedule.lowering); of more ops than one launch takes, a launch for each
    part of them (tilegen.kernels.parts).
    tune: on a GPU, where no option is given: measure the model's best few plans for about so many seconds,
    take the fastest and remember it for all programs of this structure (tilegen.kernels.tuning); what was
    measured here before is taken at once.
    A program without rows gives an EmptyKernel, which runs nothing.

    Raises:
        SpecError: program is no Program.
        TargetError: the target is not here, target and machine do not go together, threads is no positive
            int, or there is nothing to tune on.
        PlanError: an option does not fit the program, or the target has no kernel for it; options are given
            to a program that is to be tuned, or a size of it moves.
        CompileError: the compiler refuses the text, or its kernel spills registers.
        CompilerMissing: no compiler is found.
    """
    from tilegen.kernels.compiled import on_a_cpu, on_a_gpu
    from tilegen.kernels.empty import EmptyKernel

    as_program(program)
    refuse_lowering(lowering, programmatic)
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise TargetError(f"threads is a positive int, given {threads!r}")
    chosen = select.to_run(target, program, on)
    usual = None if chosen.on_gpu else select.USUAL.get(chosen.name, "cpu")
    place = select.place(usual if on is None else on, chosen.name)
    asked = Options.asked(options, given)
    if program.empty:
        return EmptyKernel(program, chosen.name, "cuda" if chosen.on_gpu else "cpu")
    if tune is not None:
        _refuse_tuning(tune, chosen, asked, lowering)
        from tilegen.kernels.tuning import ensure_tuned

        ensure_tuned(program, place, chosen, tune, progress)
    if chosen.on_gpu:
        return on_a_gpu(program, place, chosen, asked, lowering, programmatic, exclusive, progress)
    refuse_off_a_gpu(lowering, chosen)
    return on_a_cpu(program, place, chosen, asked, threads, progress)


def _refuse_tuning(seconds: float, target: Target, asked: Options, lowering: str) -> None:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds > 0:
        raise TargetError(f"tune is a number of seconds above 0, given {seconds!r}")
    if not target.on_gpu:
        raise TargetError(f"tune measures on a GPU, the target is {target.name}")
    if asked != Options() or lowering != "auto":
        raise PlanError("tune chooses all options and the lowering; give none of them")


def reference(program: Program, *arguments: Any, **named: Any) -> Any:
    """The program op by op in float32 torch: what a kernel's result is compared with.

    Raises:
        SpecError: program is no Program.
        ArgumentError: a tensor is missing, unknown or given twice, or is no tensor.
    """
    from tilegen.ops.reference import run
    from tilegen.runtime.arguments import in_order

    declared = as_program(program).arguments
    given = in_order(f"the reference of {program.name}", declared, {}, arguments, named)
    return run(program, given)
