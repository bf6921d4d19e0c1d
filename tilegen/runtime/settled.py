"""What is asked for, before anything is planned: options settled by what was measured, lowerings that there
are. Apart from what proves and caches plans (request.py), which planning alone does not import."""

from __future__ import annotations

from dataclasses import replace

from tilegen.errors import PlanError, TargetError
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.program import Program
from tilegen.graph.forms import Forms, Place
from tilegen.options import Options
from tilegen.runtime.tuned import tuned_options

LOWERINGS = ("auto", "persistent", "multi_launch")


def quiet(_: str) -> None:
    """Progress that nobody asked for."""


def settled(program: Program, place: Place, options: Options) -> Options:
    """The options, or, where none but policies, norms and appends are given, what was measured best for the
    program here, if it was (tilegen.runtime.tuned).

    Raises PlanError where the program has no rows.
    """
    if isinstance(program, Program) and program.empty:
        raise PlanError(f"{program.name} has no rows: there is nothing to plan")
    free = replace(options, policies=(), norms="auto", appends="auto") == Options()
    if not free or not isinstance(program, Program):
        return options
    if program.symbolic:
        dim = the_dim(program)
        if dim is None:
            return options
        program = filled(program, dim, dim.most)
    chosen = tuned_options(program, place.label)
    ways = {name: given for name in ("norms", "appends") if (given := getattr(options, name)) != "auto"}
    return replace(chosen, policies=options.policies or chosen.policies, **ways)


def refuse_lowering(lowering: str, programmatic: bool) -> None:
    if lowering not in LOWERINGS:
        raise TargetError(f"unknown lowering {lowering!r}; expected one of {', '.join(LOWERINGS)}")
    if programmatic and lowering != "multi_launch":
        raise TargetError(
            "programmatic=True is for lowering='multi_launch': launches of a persistent kernel are"
            " programmatic where that pays"
        )


def refuse_off_a_gpu(lowering: str, target: Forms) -> None:
    if lowering == "multi_launch" and not target.on_gpu:
        raise TargetError(f"lowering 'multi_launch' launches on a GPU, the target is {target.name}")
