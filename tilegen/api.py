"""What a user calls: plan, verify, explain, compile, reference."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegen import ops  # noqa: F401  (makes the kinds known)
from tilegen.analysis.proof import Certificate, check, prove
from tilegen.errors import AnalysisError, PlanError, TargetError
from tilegen.expand import expanded
from tilegen.machine import Machine, machine
from tilegen.plan import Plan
from tilegen.planner import Options
from tilegen.planner import plan as make_plan
from tilegen.spec import Program, Spec, as_program
from tilegen.targets import select
from tilegen.tune import tuned_lowering, tuned_options

if TYPE_CHECKING:
    from tilegen.kernel import Kernel

LOWERINGS = ("auto", "persistent", "streams")


def symbol(name: str) -> Any:
    """An open size, for `explain`: a positive whole number."""
    import sympy as sp

    return sp.Symbol(name, integer=True, positive=True)


def _quiet(_: str) -> None:
    return None


def plan(
    program: Program,
    on: str | int | Machine = "cpu",
    options: Options | None = None,
    progress: Callable[[str], None] = _quiet,
    **given: Any,
) -> Plan:
    """The plan of a program on a machine ("cpu", "cpu:N", "h200", a number of SMs). Options as an Options, or by name: tiles=, policies=, …"""
    return make_plan(
        program, machine(on), settled(program, machine(on), Options.asked(options, given)), progress
    )


def settled(program: Program, on: Machine, options: Options) -> Options:
    """The options, or, where none but policies, norms and appends are given, what was measured best for the program here, if it was (tilegen.tune)."""
    free = dataclasses.replace(options, policies=(), norms="auto", appends="auto") == Options()
    if not free or on.family != "cuda" or not isinstance(program, Program) or program.symbolic:
        return options
    chosen = tuned_options(program, on)
    ways = {name: given for name in ("norms", "appends") if (given := getattr(options, name)) != "auto"}
    return dataclasses.replace(chosen, policies=options.policies or chosen.policies, **ways)


def verify(what: Plan | Mapping[str, Any] | str | Path) -> Certificate:
    """Check a plan, its JSON, or a file of it; ProofError names the tile, the elements and the missing edge."""
    return prove(as_expanded(what))


def certify(what: Plan | Mapping[str, Any] | str | Path) -> Certificate:
    """As verify, but gives the certificate of a wrong plan too, with its violations."""
    return check(as_expanded(what))


def as_expanded(what: Plan | Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(what, Plan):
        return expanded(what)
    if not isinstance(what, (Mapping, str, Path)):
        way = {Program: "tg.verify(tg.plan(program, on=…))", Spec: "tg.verify(tg.plan(spec(…), on=…))"}.get(type(what), "")
        raise PlanError(
            f"expected a Plan, its JSON or a file of it, given a {type(what).__name__}{way and f': {way}'}"
        )
    data = what if isinstance(what, Mapping) else load_json(what)
    if "tiles" in data:
        return dict(data)
    made = Plan.from_json(data)
    try:
        return expanded(made)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, AnalysisError) as error:
        ops = ", ".join(op.name for op in made.graph.ops)
        raise PlanError(f"the plan of {ops} was changed by hand: {type(error).__name__} {error}") from None


def load_json(path: str | Path) -> dict[str, Any]:
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise PlanError(f"cannot read the plan file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise PlanError(f"{path}: a plan is a JSON object, this is a {type(data).__name__}")
    return data


def explain(program: Program, on: str | int | Machine = "cpu", options: Options | None = None, **given: Any) -> str:
    """Every dependence and policy of a program as a formula; sizes may be open (tg.symbol)."""
    from tilegen.explain import explain_program

    return explain_program(
        as_program(program), machine(on), settled(program, machine(on), Options.asked(options, given))
    )


def request_key(program: Program, on: Machine, options: Options) -> str:
    """Names a request: the spec's content, sizes, options, machine and tilegen's version."""
    from tilegen.targets import cache

    return cache.key_of(*(json.dumps(dataclasses.asdict(x), sort_keys=True, default=str) for x in (program, on, options)))


def planned(program: Program, on: Machine, options: Options, progress: Callable[[str], None] = _quiet) -> tuple[Plan, Certificate]:
    """Plan and certificate, from the cache where they are."""
    from tilegen.targets import cache

    fresh: list[tuple[Plan, Certificate]] = []

    def build(folder: Path) -> dict[str, str]:
        made = make_plan(program, on, options, progress)
        progress("proof")
        certificate = verify(made)
        (folder / "plan.json").write_text(json.dumps(made.to_json()))
        (folder / "certificate.json").write_text(json.dumps(certificate.to_dict()))
        fresh.append((made, certificate))
        return {"note": f"{program.name} {dict(program.sizes)} {on.name}"}

    files = cache.get_or_build("plans", request_key(program, on, options), build)
    if fresh:
        return fresh[0]
    return Plan.from_json(json.loads(files["plan.json"].read_text())), Certificate.from_dict(
        json.loads(files["certificate.json"].read_text())
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
    progress: Callable[[str], None] = _quiet,
    **given: Any,
) -> Kernel:
    """Plan, prove, generate, compile: a kernel to call on torch tensors.

    target: "sm_90a" (a Hopper GPU), "sm_80" (any GPU from Ampere on), "cuda" (the best of these for the GPU that is
    here), "cpu", "interpret" (the plan, tile by tile, under adversarial interleavings), or "auto": cuda where there
    is such a GPU, else cpu. on: the machine to plan for, by default the target's own; the CPU target runs plans made
    for any machine. Where there is no GPU, `tilegen.generate` writes a GPU's kernel.
    threads: workers of the CPU target. exclusive: on a GPU, nothing else that waits inside runs at the same time (CudaKernel).
    lowering: "persistent", one launch for all ops; on a GPU also "streams", one for each (tilegen.streams), with programmatic=True each started
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
        from tilegen.streams import compile_streams

        chosen = launch_options(program, place, asked)
        return compile_streams(program, place, chosen, library, programmatic, progress)
    from tilegen.cuda_kernel import CudaKernel

    made, certificate = planned(program, place, settled(program, place, asked), progress)
    progress("NVRTC")
    return CudaKernel(made, certificate, library(made), exclusive)


def _called(
    made: Plan, certificate: Certificate, target: str, threads: int | None, progress: Callable[[str], None]
) -> Kernel:
    """A kernel that runs in this process: the CPU's, or the interpreter."""
    from tilegen.kernel import Kernel

    if target == "interpret":
        from tilegen.interpret import Interpreter

        return Kernel(made, certificate, Interpreter(made), threads)
    from tilegen.targets.cpu import Library

    progress("C++ compiler")
    return Kernel(made, certificate, Library(made), threads)


def refuse_lowering(lowering: str, programmatic: bool) -> None:
    if lowering not in LOWERINGS:
        raise TargetError(f"unknown lowering {lowering!r}; expected one of {', '.join(LOWERINGS)}")
    if programmatic and lowering != "streams":
        raise TargetError(
            "programmatic=True is for lowering='streams': a persistent kernel's launches are programmatic where that pays"
        )


def settled_lowering(
    program: Program, target: str, on: Machine, options: Options, lowering: str, programmatic: bool
) -> tuple[str, bool]:
    """(lowering, programmatic): where the lowering is left open on sm_90a, as was measured best."""
    if lowering != "auto" or target != "sm_90a":
        return lowering, programmatic
    found = tuned_lowering(program, on, options)
    return found, found == "streams"


def launch_options(program: Program, on: Machine, asked: Options) -> Options:
    """The options of launches of single ops: as asked, else the tiles measured best."""
    return asked if asked != Options() else dataclasses.replace(settled(program, on, Options()), policies=())


def reference(program: Program, *arguments: Any, **named: Any) -> Any:
    """The program op by op in float32 torch: what a kernel's result is compared with.

    Raises ArgumentError where a tensor is missing, unknown or given twice, or is no tensor.
    """
    from tilegen.arguments import in_order
    from tilegen.reference import run

    declared = as_program(program).arguments
    given = in_order(f"the reference of {program.name}", declared, {}, arguments, named)
    return run(program, given)
