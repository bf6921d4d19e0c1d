"""Which target: the words, what the GPU that is here takes, what each target has a form for, a compiled plan."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilegen.arch import gpus
from tilegen.arch.machine import H200, Machine, machine
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.spec import Program
from tilegen.ops.base import Bound
from tilegen.runtime.driver import missing
from tilegen.schedule.plan import Plan
from tilegen.targets.sm80.library import PortableLibrary, here

if TYPE_CHECKING:
    from tilegen.targets.sm90.library import HopperLibrary

TARGETS = ("auto", "sm_90a", "sm_80", "cpu", "interpret")
CUDA = ("sm_90a", "sm_80")
BEST = "cuda"  # the best of CUDA for this GPU
EMITTED = (*CUDA, "cpu")  # those that source is generated for


def known(target: str) -> str:
    """The target, or TargetError where there is no such word."""
    if target in TARGETS or target == BEST:
        return target
    renamed = "sm_80" if str(target) == "cuda-portable" else ""
    near = [renamed] if renamed else difflib.get_close_matches(str(target), (*TARGETS, BEST), 1)
    raise TargetError(
        f"unknown target {target!r}{f', did you mean {near[0]}?' if near else ';'} "
        f"expected one of {', '.join(TARGETS)}, or {BEST} for the best of this GPU"
    )


# --- the GPU that is here -----------------------------------------------------------------------------------


def best_here() -> str:
    """The target that is best on this machine: sm_90a, sm_80 or, without a GPU that kernels can be made for,
    cpu."""
    if missing():
        return "cpu"
    major, minor = _capability()
    return "cpu" if major < 8 else "sm_90a" if (major, minor) == (9, 0) else "sm_80"


def of_here(target: str) -> tuple[str, str]:
    """(the target that a word means on this machine, why it cannot run here or an empty string)"""
    found = best_here() if known(target) in ("auto", BEST) else target
    gpu = target == BEST or found in CUDA
    return found, (missing() or _unfit(found)) if gpu else ""


def to_run(target: str, program: Program, on: Any = None) -> str:
    """The target that a word means where a kernel is to run here; TargetError where it cannot, which says how
    to generate it instead."""
    found, problem = of_here(target)
    if problem:
        raise TargetError(
            f"target {target}: {problem}; to write the kernel for another machine: "
            f"{_instead(target, program, on)}"
        )
    return found


def on_a_gpu(verb: str, target: str, instead: str = "") -> str:
    """The target of a verb that measures on a GPU; TargetError where there is none, or another target is
    asked for. instead: what to say of a way without a GPU."""
    found, problem = of_here(target)
    if problem or (target == "auto" and found == "cpu"):
        raise TargetError(
            f"{verb} measures on a GPU, target {target}: {problem or missing() or _unfit('sm_80')}{instead}"
        )
    if found not in CUDA:
        raise TargetError(
            f"{verb} measures on a GPU: target {target} is none, expected auto, {', '.join(CUDA)} or {BEST}"
        )
    return found


def _unfit(target: str) -> str:
    """Why the GPU that is here cannot run a target, or an empty string."""
    import torch

    (major, minor), name = _capability(), torch.cuda.get_device_name()
    expected, fits = ("9.0", (major, minor) == (9, 0)) if target == "sm_90a" else ("8.0 or later", major >= 8)
    return "" if fits else f"{name} has compute capability {major}.{minor}, expected {expected}"


def _instead(target: str, program: Program, on: Any) -> str:
    """The command and the call that write a kernel on any machine."""
    asked = None if on is None or machine(on).family == "cpu" else machine(on)
    word = target if target in CUDA else asked.target if asked else "sm_90a"
    place = on if isinstance(on, (str, int)) and asked else asked.name if asked else ""
    file = next((t.where.rpartition(":")[0] for t in program.tensors if t.where), "SPEC.py")
    sizes = "".join(f" -s {name}={size}" for name, size in program.sizes)
    elsewhere = f" --machine {place}" if place else ""
    command = f"tilegen generate {file}:{program.name}{sizes} --target {word}{elsewhere} -o DIR"
    return (
        f"`{command}`, or tg.generate({program.name}(…), target={word!r}{f', on={place!r}' if place else ''})"
    )


def gpu_machine(target: str = BEST) -> Machine:
    """The machine of the current GPU for one of its targets; TargetError where there is none that kernels can
    be made for."""
    problem = missing() or _unfit("sm_80")
    if problem:
        raise TargetError(f"target {target}: {problem}")
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    sms = properties.multi_processor_count
    name = gpus.named(properties.name, sms)
    if (properties.major, properties.minor) == (9, 0):
        return for_target(machine(name or ("h200" if sms == H200.sms else sms)), target)
    return machine(name) if name else replace(machine(sms), name=f"gpu:{sms}")


def _capability() -> tuple[int, int]:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return int(major), int(minor)


# --- any machine --------------------------------------------------------------------------------------------


def for_target(on: Machine, target: str) -> Machine:
    """The machine as plans for a target see it: a Hopper GPU has nothing for sm_80 that only the kernel for
    sm_90a can run."""
    return replace(on, name=f"gpu:{on.sms}") if target == "sm_80" and on.hopper else on


def to_write(target: str, on: str | int | Machine | None = None) -> tuple[str, Machine, str]:
    """(target, machine to plan for, architecture to compile for) of a kernel that is written here and may run
    elsewhere.

    Without a machine the target is what would run here, and the machine that of this GPU where it takes the
    target, else the target's usual one.
    """
    given = None if on is None else machine(on)
    if known(target) == "interpret":
        raise TargetError(
            f"target interpret runs a plan and writes no source; expected one of {', '.join(EMITTED)}"
        )
    if target == BEST and (given.family == "cpu" if given else best_here() == "cpu"):
        why = f"{given.name} is no GPU" if given else missing() or _unfit("sm_80")
        raise TargetError(
            f"target {BEST}, the best for a GPU: {why}; "
            f"name the target, {' or '.join(CUDA)}, or the GPU, such as h200"
        )
    found = target if target in EMITTED else given.target if given else best_here()
    if given is None:
        fits = best_here() == found or (found == "sm_80" and best_here() == "sm_90a")
        usual = {"sm_90a": "h200", "sm_80": "a100", "cpu": "cpu"}[found]
        given = gpu_machine(found) if fits and found in CUDA else machine(usual)
        if found == "sm_80" and fits:
            return found, given, here()
    if found == "cpu":
        return found, given, ""
    if given.family == "cpu":
        raise TargetError(
            f"target {found} cannot be planned for {given.name}, which is no GPU; "
            "expected a machine such as h200 or a100"
        )
    if found == "sm_90a" and not given.hopper:
        raise TargetError(
            f"target sm_90a needs a Hopper GPU, {given.name} is none: its target is {given.target}"
        )
    if found == "sm_90a":
        return found, given, found
    return found, for_target(given, found), given.gpu.portable if given.gpu else "sm_80"


# --- what a target has a form for ---------------------------------------------------------------------------


def problem_of(plan: Plan, b: Bound, target: str, architecture: str) -> str:
    """Why a target has no form for an op of a plan, or an empty string."""
    from tilegen.targets.sm80.emit import PortableOp
    from tilegen.targets.sm90.emit import hopper_op

    try:
        if target == "sm_90a":
            hopper_op(plan, b)
        elif target == "sm_80":
            PortableOp(plan, b, architecture)
    except PlanError as error:
        return str(error)
    return ""


def refuse_unwritable(plan: Plan, target: str, architecture: str) -> None:
    """PlanError that names every op that the target has no form for, and the targets that have one for all of
    them."""
    problems = [
        (b.op, problem) for b in plan.bounds if (problem := problem_of(plan, b, target, architecture))
    ]
    if not problems:
        return
    first, why = problems[0]
    ops = ", ".join(f"{op.name!r} ({op.kind})" for op, _ in problems)
    others = [
        t for t in EMITTED if t != target and not any(problem_of(plan, b, t, "sm_80") for b in plan.bounds)
    ]
    able = f"{' and '.join(others) or 'no target'} can"
    raise PlanError(
        f"{target} has no form for {ops} of {plan.program}, {able}; {why.removeprefix(f'{first.where}: ')}",
        first.where,
    )


def library_of(plan: Plan, target: str, architecture: str) -> HopperLibrary | PortableLibrary:
    """The plan's kernel, compiled, by default for this GPU. CompilerMissing where there is no NVRTC."""
    from tilegen.targets.sm90.library import HopperLibrary

    architecture = architecture or here()
    refuse_unwritable(plan, target, architecture)
    return HopperLibrary(plan) if target == "sm_90a" else PortableLibrary(plan, architecture=architecture)
