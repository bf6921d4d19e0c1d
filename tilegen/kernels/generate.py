"""From a spec to a kernel as files, for any machine, on any machine.

    spec, machine ─ plan, proof, source ─▶ Generated ─ export ─▶ a folder that needs no tilegen

No GPU and no driver is asked for, unless the machine to plan for is left open. NVRTC, where it is installed,
adds the cubin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.errors import CompilerMissing, TargetError
from tilegen.frontend.spec import Program, as_program
from tilegen.kernels.generated import Generated, GeneratedLaunches, of_library
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime.launch import Launch
from tilegen.runtime.request import launch_options, planned, refuse_lowering, settled, settled_lowering
from tilegen.schedule.plan import Plan
from tilegen.targets import select


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
) -> Generated | GeneratedLaunches:
    """Plan, prove and generate, as `compile` does, but load and run nothing: for a GPU that is elsewhere.

    target: "sm_90a", "sm_80" or "cpu", "cuda" for the best of a GPU, or "auto": the best of the machine `on`,
    and without one what `compile` would take here.
    on: the machine to plan for, such as "h200" or "rtx-4090" (tilegen.arch.gpus); by default the GPU that is here
    where it takes the target, else an H200 for sm_90a and an A100 for sm_80.
    lowering, programmatic, options: as for `compile`.

    Raises:
        TargetError: target and machine do not go together.
        PlanError: the target has no form for an op.
        CompileError: NVRTC is there and refuses the text.
    """
    as_program(program)
    refuse_lowering(lowering, programmatic)
    target, place, architecture = select.to_write(target, on)
    asked = Options.asked(options, given)
    lowering, programmatic = settled_lowering(program, target, place, asked, lowering, programmatic)
    if lowering == "streams":
        return _launches(
            program,
            target,
            place,
            architecture,
            launch_options(program, place, asked),
            programmatic,
            progress,
        )
    plan, certificate = planned(program, place, settled(program, place, asked), progress)
    progress("source")
    return _generated(plan, certificate, target, architecture, None)


def _launches(
    program: Program,
    target: str,
    on: Machine,
    architecture: str,
    options: Options,
    programmatic: bool,
    progress: Callable[[str], None],
) -> GeneratedLaunches:
    from tilegen.kernels.launches import proved_launches

    if target == "cpu":
        raise TargetError("lowering 'streams' launches on a GPU, the target is cpu")
    whole, certificate, proved = proved_launches(program, on, options, programmatic, progress)
    made: Sequence[Generated] = [
        _generated(plan, proof, target, architecture, programmatic) for plan, proof in proved
    ]
    return GeneratedLaunches(whole, certificate, tuple(made))


def _generated(
    plan: Plan, certificate: Certificate, target: str, architecture: str, programmatic: bool | None
) -> Generated:
    if target == "cpu":
        from tilegen.targets.cpu import emit as cpu

        return Generated(plan, certificate, target, "", cpu.generate(plan), "kernel.cpp")
    try:
        library = select.library_of(plan, target, architecture)
    except CompilerMissing as error:
        text, launch = _text(plan, target, architecture, programmatic)
        remark = f"no cubin: {error}, then generate again"
        return Generated(plan, certificate, target, architecture, text, "kernel.cu", launch, None, remark)
    return of_library(plan, certificate, library, library.launch(programmatic=programmatic))


def _text(plan: Plan, target: str, architecture: str, programmatic: bool | None) -> tuple[str, Launch]:
    """What is generated first; with a compiler at hand it might turn out to need more registers for
    loading."""
    from tilegen.targets.sm80 import emit as sm80
    from tilegen.targets.sm80.launch import portable_launch
    from tilegen.targets.sm90 import emit as sm90
    from tilegen.targets.sm90.launch import hopper_launch
    from tilegen.targets.sm90.library import texts

    if target == "sm_90a":
        source = sm90.generate(plan)
        return texts(plan, source)[0](), hopper_launch(plan, source, programmatic=programmatic)
    portable = sm80.generate(plan, architecture)
    return portable.text, portable_launch(plan, portable, architecture, programmatic=programmatic)
