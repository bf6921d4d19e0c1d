"""From a spec to a kernel as files, for any machine, on any machine.

    spec, machine ─ plan, proof, source ─▶ Generated ─ export ─▶ a folder that needs no tilegen

No GPU and no driver is asked for, unless the machine to plan for is left open. NVRTC, where it is installed,
adds the cubin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.errors import CompilerMissing
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Program
from tilegen.frontend.spec import as_program
from tilegen.graph.forms import Place
from tilegen.kernels.fitting import fitted, fitted_launches, lowered, of_each
from tilegen.kernels.generated import (
    Generated,
    GeneratedLaunches,
    GeneratedRegimes,
    Moves,
    of_library,
)
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime.request import (
    Part,
    launch_options,
    parts,
    planned,
    planned_launches,
    planned_moving,
    planned_moving_launches,
    settled_lowering,
)
from tilegen.runtime.settled import refuse_lowering, refuse_off_a_gpu, settled
from tilegen.runtime.verify_launches import ProvedLaunches
from tilegen.schedule.launches import P
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan
from tilegen.targets import select

Made = Generated | GeneratedLaunches


def generate(
    program: Program,
    target: str = "auto",
    on: str | int | Machine | None = None,
    options: Options | None = None,
    *,
    lowering: str = "auto",
    programmatic: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    **given: Any,
) -> Generated | GeneratedLaunches | GeneratedRegimes:
    """Plan, prove and generate, as `compile` does, but load and run nothing: for a GPU that is elsewhere.

    target: "sm_90a", "sm_80" or "cpu", "cuda" for the best of a GPU, or "auto": the best of the machine `on`,
    and without one what `compile` would take here.
    on: the machine to plan for, such as "h200" or "rtx-4090" (tilegen.arch.gpus); by default the GPU that is
    here where it takes the target, else an H200 for sm_90a and an A100 for sm_80.
    lowering, programmatic, options: as for `compile`.

    Raises:
        TargetError: target and machine do not go together.
        PlanError: the target has no form for an op.
        CompileError: NVRTC is there and refuses the text.
    """
    as_program(program)
    refuse_lowering(lowering, programmatic)
    place, architecture = select.to_write(target, on)
    asked = Options.asked(options, given)
    refuse_off_a_gpu(lowering, place.target)
    if dims_of(program):
        return _regimes(program, place, architecture, asked, lowering, programmatic, progress)
    chosen, early = settled_lowering(program, place, asked, lowering, programmatic)

    def launches_with(options: Options) -> Made:
        return _sequence(planned_launches(program, place, options, early, progress), architecture, early)

    def in_launches() -> Made:
        options = launch_options(program, place, asked)
        return fitted_launches(program, place, options, launches_with, progress)

    def made_with(options: Options) -> Generated:
        plan, certificate = planned(program, place, options, progress)
        progress("source")
        return _generated(plan, certificate, architecture, None)

    def in_one_launch() -> Made:
        options = settled(program, place, asked)
        return fitted(program, place, options, made_with, progress, free=not asked.tiles)

    return lowered(program, chosen, lowering, in_launches, in_one_launch)


def _regimes(
    program: Program,
    place: Place,
    architecture: str,
    asked: Options,
    lowering: str,
    programmatic: bool,
    progress: Callable[[str], None],
) -> GeneratedRegimes:
    """A kernel, or launches, for each range of a size that moves."""

    def in_one_launch(part: Part) -> Made:
        def made_with(options: Options) -> Generated:
            plan, certificate = planned_moving(part, place, options, progress)
            progress("source")
            return _generated(plan, certificate, architecture, None)

        return fitted(part.program, place, part.in_one, made_with, progress, free=not asked.tiles)

    def in_launches(part: Part) -> Made:
        early = programmatic or lowering == "auto"
        proved = planned_moving_launches(part, place, part.options, early, progress)
        return _sequence(proved, architecture, early)

    made = [
        lowered(p.program, p.lowering, lowering, partial(in_launches, p), partial(in_one_launch, p))
        for p in parts(program, place, asked, progress, lowering)
    ]
    return GeneratedRegimes(tuple(made))


def _sequence(proved: ProvedLaunches[P], architecture: str, programmatic: bool) -> GeneratedLaunches:
    made = of_each(proved.each, lambda x: _generated(x.plan, x.certificate, architecture, programmatic))
    whole = proved.whole.plan
    if isinstance(whole, MovingPlan):
        return GeneratedLaunches(whole.most, proved.whole.certificate, tuple(made), _moves(whole))
    return GeneratedLaunches(whole, proved.whole.certificate, tuple(made))


def _moves(plan: MovingPlan) -> Moves:
    return Moves(plan.dim.name, plan.ranges)


def _generated(
    plan: Plan | MovingPlan, certificate: Certificate, architecture: str, programmatic: bool | None
) -> Generated:
    """Of a plan in which a size moves: the text over it, beside the plan at the largest."""
    if isinstance(plan, MovingPlan):
        found = _generated(plan.open, certificate, architecture, programmatic)
        return replace(found, plan=plan.most, moves=_moves(plan))
    target, remark = select.named(plan.target), ""
    if target.on_gpu:
        try:
            library = target.load(plan, architecture)
            return of_library(plan, certificate, library, library.launch(programmatic=programmatic))
        except CompilerMissing as error:
            remark = f"no cubin: {error}, then generate again"
    made = target.emit(plan, architecture, programmatic)
    return Generated(
        plan,
        certificate,
        target.name,
        made.architecture,
        made.text,
        made.source_name,
        made.launch,
        None,
        remark,
    )
