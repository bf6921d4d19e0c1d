"""What a user calls: plan, verify, explain, compile, reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tilegen import ops  # noqa: F401  (makes the kinds known)
from tilegen.arch.machine import Machine, machine
from tilegen.errors import TargetError
from tilegen.frontend.spec import Program, as_program
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime.request import launch_options, planned, quiet, refuse_lowering, settled, settled_lowering
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan as make_plan
from tilegen.targets import select
from tilegen.tools.explain import explain_program

if TYPE_CHECKING:
    from tilegen.kernels.kernel import Kernel


def _html(made: Plan) -> str:
    from tilegen.tools.notebook import plan_html

    return plan_html(made)


Plan._repr_html_ = _html  # type: ignore[attr-defined]  # a plan is drawn by what is above it


def plan(
    program: Program,
    on: str | int | Machine = "cpu",
    options: Options | None = None,
    progress: Callable[[str], None] = quiet,
    **given: Any,
) -> Plan:
    """The plan of a program on a machine ("cpu", "cpu:N", "h200", a number of SMs). Options as an Options, or by name: tiles=, policies=, …"""
    return make_plan(
        program, machine(on), settled(program, machine(on), Options.asked(options, given)), progress
    )


def explain(program: Program, on: str | int | Machine = "cpu", options: Options | None = None, **given: Any) -> str:
    """Every dependence and policy of a program as a formula; sizes may be open (tg.symbol)."""
    return explain_program(
        as_program(program), machine(on), settled(program, machine(on), Options.asked(options, given))
    )


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
    progress: Callable[[str], None] = quiet,
    **given: Any,
) -> Kernel:
    """Plan, prove, generate, compile: a kernel to call on torch tensors.

    target: "sm_90a" (a Hopper GPU), "sm_80" (any GPU from Ampere on), "cuda" (the best of these for the GPU that is
    here), "cpu", "interpret" (the plan, tile by tile, under adversarial interleavings), or "auto": cuda where there
    is such a GPU, else cpu. on: the machine to plan for, by default the target's own; the CPU target runs plans made
    for any machine. Where there is no GPU, `tilegen.generate` writes a GPU's kernel.
    threads: workers of the CPU target. exclusive: on a GPU, nothing else that waits inside runs at the same time (CudaKernel).
    lowering: "persistent", one launch for all ops; on a GPU also "streams", one for each (tilegen.kernels.launches), with programmatic=True each started
    while the one before ends; "auto": persistent, or programmatic launches where no options are given and they were measured to be faster.
    """
    as_program(program)
    refuse_lowering(lowering, programmatic)
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise TargetError(f"threads is a positive int, given {threads!r}")
    target = select.to_run(target, program, on)
    asked = Options.asked(options, given)
    if target not in select.CUDA:
        place = machine("cpu" if on is None else on)
        if lowering == "streams":
            raise TargetError(f"lowering 'streams' launches on a GPU, the target is {target}")
        made, certificate = planned(program, place, settled(program, place, asked), progress)
        return _called(made, certificate, target, threads, progress)
    place = select.gpu_machine(target) if on is None else select.for_target(machine(on), target)
    lowering, programmatic = settled_lowering(program, target, place, asked, lowering, programmatic)
    library = partial(select.library_of, target=target, architecture="sm_90a" if target == "sm_90a" else "")
    if lowering == "streams":
        from tilegen.kernels.launches import compile_streams

        chosen = launch_options(program, place, asked)
        return compile_streams(program, place, chosen, library, programmatic, progress)
    from tilegen.kernels.cuda_kernel import CudaKernel

    made, certificate = planned(program, place, settled(program, place, asked), progress)
    progress("NVRTC")
    return CudaKernel(made, certificate, library(made), exclusive)


def _called(
    made: Plan, certificate: Certificate, target: str, threads: int | None, progress: Callable[[str], None]
) -> Kernel:
    """A kernel that runs in this process: the CPU's, or the interpreter."""
    from tilegen.kernels.kernel import Kernel

    if target == "interpret":
        from tilegen.targets.interpret.interpreter import Interpreter

        return Kernel(made, certificate, Interpreter(made), threads)
    from tilegen.targets.cpu.library import Library

    progress("C++ compiler")
    return Kernel(made, certificate, Library(made), threads)


def reference(program: Program, *arguments: Any, **named: Any) -> Any:
    """The program op by op in float32 torch: what a kernel's result is compared with.

    Raises ArgumentError where a tensor is missing, unknown or given twice, or is no tensor.
    """
    from tilegen.ops.reference import run
    from tilegen.runtime.arguments import in_order

    declared = as_program(program).arguments
    given = in_order(f"the reference of {program.name}", declared, {}, arguments, named)
    return run(program, given)
