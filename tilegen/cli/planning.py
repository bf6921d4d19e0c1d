"""Verbs that need no machine to run on: explain, plan, verify, generate."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilegen.cli.given import Progress, options_of, plan_of, print_json, program_of
from tilegen.config import write_whole
from tilegen.errors import TilegenError


def explain(o: argparse.Namespace) -> int:
    from tilegen import api
    from tilegen.frontend.loader import load_model

    model = load_model(o.spec)
    if model is not None:
        text = _explained(model, o)
    else:
        text = api.explain(program_of(o), o.machine or "cpu", options_of(o), target=o.target)
    if o.json:
        print_json({"text": text.splitlines()})
    else:
        print(text)
    return 0


def _explained(model: Callable[[], Any], o: argparse.Namespace) -> str:
    """A model under torch.compile, whose sizes and options are its own."""
    from tilegen.backend.explain import explain_model
    from tilegen.errors import SpecError
    from tilegen.frontend.loader import failed
    from tilegen.options import Options

    machine = o.machine or ""
    if o.size or options_of(o) != Options() or o.target != "auto" or machine.startswith("cpu"):
        raise SpecError(
            f"{o.spec} is a model: --machine alone stands beside it, the GPU by which regions are judged"
        )
    try:
        return explain_model(model, machine)
    except TilegenError:
        raise
    except Exception as error:
        raise failed(o.spec.partition(":")[0], error) from error


def plan(o: argparse.Namespace) -> int:
    from tilegen.schedule.expand import expanded
    from tilegen.schedule.moving import MovingPlan
    from tilegen.schedule.simulate import simulate

    made = plan_of(o, o.target)
    if isinstance(made, MovingPlan):
        return _plan_moving(o, made)
    if o.svg:
        from tilegen.tools.svg import svg
        from tilegen.tools.trace import Trace

        write_whole(Path(o.svg), svg([(made.program, Trace.simulated(made))]))
    if o.json or o.expand:
        print_json(expanded(made) if o.expand else made.to_json())
        return 0
    print(
        f"{made.program} on {made.machine.name}: {made.order.count} tiles, {len(made.targets)} semaphores,"
        f" order {made.order.name}, plan {made.digest}"
    )
    for m in made.semaphores:
        print(f"  {m.tensor}: policy {dict(made.policies)[m.tensor]}, {m.count} semaphores")
    print(simulate(made).text())
    return 0


def _plan_moving(o: argparse.Namespace, made: Any) -> int:
    """A plan in which a size moves: counts as formulas; --json has the plan at the largest size."""
    from tilegen.analysis.regions import pretty

    if o.expand or o.svg:
        name = made.dim.name
        raise TilegenError(f"{name} moves: --expand and --svg show one size; give -s {name}=N")
    if o.json:
        print_json({"moves": {made.dim.name: [1, made.dim.most]}, "largest": made.most.to_json()})
        return 0
    print(made)
    for m in made.open.semaphores:
        print(f"  {m.tensor}: policy {dict(made.open.policies)[m.tensor]}, {pretty(m.count)} semaphores")
    return 0


def verify(o: argparse.Namespace) -> int:
    from tilegen.runtime.verify import certify, load_json

    is_plan = o.spec.endswith(".json")
    certificate = certify(load_json(o.spec) if is_plan else plan_of(o, o.target))
    if o.json:
        print_json(certificate.to_dict())
    else:
        print(certificate.text())
    return 0 if certificate.ok else 1


def generate(o: argparse.Namespace) -> int:
    from tilegen.kernels.generate import generate as generated

    program, progress = program_of(o), Progress()
    how = {"lowering": o.lowering, "programmatic": o.programmatic, "progress": progress}
    made = generated(program, o.target, o.machine, options_of(o), **how)
    out = made.export(o.out)
    progress.done()
    files = sorted(made.files())
    if o.json:
        facts = {"target": made.target, "architecture": made.architecture, "machine": made.machine.name}
        print_json(
            {"folder": str(out), "files": files, **facts, "cubin": made.has_cubin, "remark": made.remark}
        )
        return 0
    compiled = f", compiled for {made.architecture}" if made.has_cubin else ""
    print(
        f"{program.name} for target {made.target}, planned for"
        f" {made.machine.name}{compiled}{_why(o, made.target)}"
    )
    print(f"{out}: {', '.join(files)}")
    if made.remark:
        print(made.remark)
    return 0


def _why(o: argparse.Namespace, found: str) -> str:
    """What chose the target, where --target did not name it."""
    if o.target not in ("auto", "cuda"):
        return ""
    if o.machine:
        return " (the best of that machine)"
    if found == "cpu":
        return " (what `run` takes on this machine; --target sm_90a or sm_80 writes CUDA)"
    return " (what `run` takes on this GPU)"
