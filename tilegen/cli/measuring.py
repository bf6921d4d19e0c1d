"""Verbs that measure: compare, trace, tune."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilegen.cli.given import Progress, options_of, plan_of, print_json, program_of
from tilegen.config import write_whole


def compare(o: argparse.Namespace) -> int:
    from tilegen.bench.compare import own_variants
    from tilegen.bench.contest import contest
    from tilegen.bench.results import result_file, save
    from tilegen.bench.rows import INDUCTOR
    from tilegen.bench.table import failed, table
    from tilegen.errors import SpecError
    from tilegen.frontend.dims import dims_of
    from tilegen.frontend.loader import load_moving, load_program

    progress, options = Progress(), options_of(o)
    without = INDUCTOR if o.no_inductor else ()
    ladder = contest(o.target, o.only, without, rounds=o.rounds, threads=o.threads, progress=progress)
    cells, data = [], {}
    for program, moving in [(load_program(o.spec, s), load_moving(o.spec, s)) for s in _grid(o.size)]:
        if dims_of(program):
            raise SpecError(f"{program.name}: compare measures sizes; give some, as in -s M=1,64,300")
        cells.append(ladder.measure(program, own_variants(program, options, moving), moving))
        data = result_file(cells, "compare " + " ".join([Path(o.spec).name, *o.size]), ladder.environment)
        if o.out:
            save(data, Path(o.out))
    progress.done()
    if o.svg:
        from tilegen.bench.chart import chart

        write_whole(Path(o.svg), chart([r for c in cells for r in c.rows]))
    if o.json:
        print_json(data)
    else:
        print(table(cells))
    return 1 if failed(cells) else 0


def trace(o: argparse.Namespace) -> int:
    from tilegen.tools.trace import Trace
    from tilegen.tools.trace_export import chrome, lost, lost_text

    found = {} if o.simulate else {"measured": _measured(o)}
    plan = plan_of(o) if o.simulate else found["measured"].plan
    if o.simulate or o.svg:
        found["simulated"] = Trace.simulated(plan)
    first = next(iter(found.values()))
    if o.out:
        write_whole(Path(o.out), json.dumps(chrome(first)))
    if o.svg:
        from tilegen.tools.svg import svg

        write_whole(Path(o.svg), svg([(f"{plan.program}, {how}", t) for how, t in found.items()]))
    if o.json:
        edges = {
            r.edge: {"tiles": r.tiles, "sum_us": r.sum_us, "max_us": r.max_us, "worst": r.worst}
            for r in lost(first)
        }
        print_json(
            {
                "program": plan.program,
                "how": next(iter(found)),
                "us": first.makespan,
                "busy": first.busy,
                "edges": edges,
            }
        )
    else:
        print(f"{first.text()}\n\n{lost_text(first)}")
    return 0


def _measured(o: argparse.Namespace) -> Any:
    """The trace of a launch on random data."""
    from tilegen import api
    from tilegen.runtime.data import random_arguments
    from tilegen.targets.select import on_a_gpu

    program, progress = program_of(o), Progress()
    target = on_a_gpu("trace", o.target, "; --simulate shows the plan's simulation instead")
    kernel: Any = api.compile(
        program, target, on=o.machine, options=options_of(o), lowering="persistent", progress=progress
    )
    made = kernel.trace(*(a.cuda() for a in random_arguments(program)))
    progress.done()
    return made


def tune(o: argparse.Namespace) -> int:
    from tilegen.errors import PlanError
    from tilegen.frontend.loader import load_program
    from tilegen.kernels.tuning import tune as measure
    from tilegen.runtime.tuned import remember
    from tilegen.targets.base import known
    from tilegen.targets.select import on_a_gpu, place

    if not o.seconds > 0:
        raise PlanError(f"--seconds {o.seconds:g}: expected more than 0")
    target = on_a_gpu("tune", o.target)
    on, progress, found = place(target=target), Progress(), []
    for sizes in _grid(o.size):
        program = load_program(o.spec, sizes)
        best, times = measure(program, on, known()[target], o.seconds, progress)
        path = remember(program, on.label, best, Path(o.out) if o.out else None)
        progress.done()
        found.append({**best.to_json(), "times": times})
        if not o.json:
            print(
                f"{program.name} {' '.join(sizes)}: {best.us:.1f} µs, the fastest of {best.tried}; kept in"
                f" {path}"
            )
            for name, us in times.items():
                print(f"  {us:9.1f} µs  {name}")
    if o.json:
        print_json(found)
    return 0


def _grid(sizes: Sequence[str]) -> list[list[str]]:
    """M=1,16 H=64 -> [[M=1, H=64], [M=16, H=64]]"""
    rows: list[list[str]] = [[]]
    for item in sizes:
        name, _, values = item.partition("=")
        rows = [[*r, f"{name}={v}"] for r in rows for v in values.split(",")]
    return rows
