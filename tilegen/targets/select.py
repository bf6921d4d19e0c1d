"""Which target: the words, what the GPU that is here takes, and where a plan is made for."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

from tilegen.arch import gpus
from tilegen.arch.machine import H200, Machine, machine
from tilegen.errors import TargetError
from tilegen.frontend.dims import Dim
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.runtime.driver import missing
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Target, known

AUTO = "auto"  # the best of what runs here
BEST = "cuda"  # the best of CUDA for this GPU
CUDA = tuple(t.name for t in known().values() if t.on_gpu)
EMITTED = tuple(t.name for t in known().values() if t.emits)  # those that source is generated for
TARGETS = (AUTO, *known())
# the machine that a target is planned for where none is named
USUAL: dict[str, str | int] = {"sm_90a": "h200", "sm_80": "a100", "cpu": "cpu", "cuda-emulated": 4}


def named(name: str) -> Target:
    """A target. TargetError where there is no such word."""
    if name in known():
        return known()[name]
    words = (*TARGETS, BEST)
    renamed = "sm_80" if str(name) == "cuda-portable" else ""
    near = [renamed] if renamed else difflib.get_close_matches(str(name), words, 1)
    raise TargetError(
        f"unknown target {name!r}{f', did you mean {near[0]}?' if near else ';'} "
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
    found = best_here() if target in (AUTO, BEST) else named(target).name
    gpu = target == BEST or found in CUDA
    return found, (missing() or _unfit(found)) if gpu else ""


def to_run(target: str, program: Program, on: Any = None) -> Target:
    """The target that a word means where a kernel is to run here; TargetError where it cannot, which says how
    to generate it instead."""
    found, problem = of_here(target)
    if problem:
        raise TargetError(
            f"target {target}: {problem}; to write the kernel for another machine: "
            f"{_instead(target, program, on)}"
        )
    return named(found)


def on_a_gpu(verb: str, target: str, instead: str = "") -> str:
    """The target of a verb that measures on a GPU; TargetError where there is none, or another target is
    asked for. instead: what to say of a way without a GPU."""
    found, problem = of_here(target)
    if problem or (target == AUTO and found == "cpu"):
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
    asked = None if on is None or machine(on).target == "cpu" else machine(on)
    word = target if target in CUDA else asked.target if asked else "sm_90a"
    place = on if isinstance(on, (str, int)) and asked else asked.name if asked else ""
    file = next((t.where.rpartition(":")[0] for t in program.tensors if t.where), "SPEC.py")
    sizes = "".join(f" -s {name}={_given(size)}" for name, size in program.sizes)
    elsewhere = f" --machine {place}" if place else ""
    command = f"tilegen generate {file}:{program.name}{sizes} --target {word}{elsewhere} -o DIR"
    return (
        f"`{command}`, or tg.generate({program.name}(…), target={word!r}{f', on={place!r}' if place else ''})"
    )


def _given(size: object) -> str:
    """A size as it is given on the command line."""
    return f"1..{size.most}" if isinstance(size, Dim) else str(size)


def gpu_machine() -> Machine:
    """The machine of the current GPU; TargetError where there is none that kernels can be made for."""
    problem = missing() or _unfit("sm_80")
    if problem:
        raise TargetError(f"target {BEST}: {problem}")
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    sms = properties.multi_processor_count
    name = gpus.named(properties.name, sms)
    if (properties.major, properties.minor) == (9, 0):
        return machine(name or ("h200" if sms == H200.sms else sms))
    arch = gpus.architecture(f"sm_{properties.major}{properties.minor}").name
    return machine(name) if name else replace(machine(sms), name=f"gpu:{sms}", arch=arch)


def _capability() -> tuple[int, int]:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return int(major), int(minor)


# --- places -------------------------------------------------------------------------------------------------


def place(on: str | int | Machine | None = None, target: str = AUTO) -> Place:
    """Where a plan is made for. Without a machine: the GPU that is here where it takes the target, else the
    target's usual machine. auto: the machine's own target.

    Raises TargetError where target and machine do not go together.
    """
    if on is None:
        if target == BEST and best_here() == "cpu":
            raise TargetError(f"target {BEST}: {missing() or _unfit('sm_80')}")
        emitter = named(best_here() if target in (AUTO, BEST) else target)
        fits = emitter.on_gpu and not missing() and emitter.fits(gpu_machine())
        on = gpu_machine() if fits else USUAL.get(emitter.name, "cpu")
    given = machine(on)
    if target == BEST and given.target == "cpu":
        raise TargetError(
            f"target {BEST}, the best for a GPU: {given.name} is no GPU; "
            f"name the target, {' or '.join(CUDA)}, or the GPU, such as h200"
        )
    own = named(given.target)
    emitter = own if target in (AUTO, BEST) or named(target).runs_others else named(target)
    if emitter is own and not own.on_gpu and target not in (AUTO, BEST, own.name):
        raise TargetError(
            f"target {target} runs a GPU's kernel, {given.name} is no GPU; expected a machine such as h200 or"
            " a100, or a number of an H200's SMs"
        )
    if emitter.on_gpu and not emitter.fits(given):
        if not own.on_gpu:
            raise TargetError(
                f"target {emitter.name} cannot be planned for {given.name}, which is no GPU; "
                "expected a machine such as h200 or a100"
            )
        raise TargetError(
            f"target {emitter.name} needs a Hopper GPU, {given.name} is none: its target is {own.name}"
        )
    return Place(given, emitter if emitter.fits(given) else own, emitter)


def place_of(plan: Plan) -> Place:
    """Where a plan was made for."""
    own = named(plan.machine.target)
    emitter = known().get(plan.target, own)
    return Place(plan.machine, emitter if emitter.fits(plan.machine) else own, emitter)


def to_write(target: str, on: str | int | Machine | None = None) -> tuple[Place, str]:
    """(where to plan for, the architecture to compile for) of a kernel that is written here and may run
    elsewhere."""
    if target not in (AUTO, BEST) and not named(target).emits:
        raise TargetError(
            f"target {target} runs a plan and writes no source; expected one of {', '.join(EMITTED)}"
        )
    if target == BEST and on is None and best_here() == "cpu":
        raise TargetError(
            f"target {BEST}, the best for a GPU: {missing() or _unfit('sm_80')}; "
            f"name the target, {' or '.join(CUDA)}, or the GPU, such as h200"
        )
    found = place(on, target)
    if found.target.name != "sm_80":
        return found, "sm_90a" if found.target.on_gpu else ""
    from tilegen.targets.sm80.library import here

    fits = on is None and best_here() in CUDA
    return found, here() if fits else found.machine.architecture.portable
