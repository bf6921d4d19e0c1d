"""`tilegen tune`: the model's best few plans of a program, measured on this GPU."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.bench import timing
from tilegen.bench.contenders import Way, own
from tilegen.bench.ladder import argument_bytes
from tilegen.errors import PlanError, TilegenError
from tilegen.frontend.program import Program
from tilegen.graph.forms import Config
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options
from tilegen.runtime.data import random_arguments
from tilegen.runtime.tuned import Tuned
from tilegen.targets.select import place
from tilegen.targets.sm90.heuristics import linear_configs

GAIN = 0.01  # several launches must be faster than one by this share
KEPT = 2  # configs of each op that are tried with each cluster size


def candidates(program: Program, on: Machine) -> dict[str, Options]:
    """Plans worth timing, by name: for each cluster size the best configs of every op together, scheduled
    statically and dynamically, with steps once or twice as deep."""
    graph = fuse(program)
    if not graph.consists_of(LinearAttributes):
        raise PlanError(
            f"{program.name}: only chains of linears are tuned,"
            f" {next(op.kind for op in graph.ops if not isinstance(op.attributes, LinearAttributes))} is not"
        )
    found: dict[str, Options] = {}
    for cluster in (1, 2):
        for chosen in itertools.product(*(_best(graph, op.name, on, cluster) for op in graph.ops)):
            for scheduling, depth in itertools.product(("static", "dynamic"), (64, 128)):
                tiles = {
                    op.name: (*config.tile[:2], depth) for op, config in zip(graph.ops, chosen, strict=True)
                }
                clusters = {op.name: config.option for op, config in zip(graph.ops, chosen, strict=True)}
                name = " | ".join(
                    f"{'x'.join(map(str, tiles[n]))}{' ' + clusters[n] if cluster > 1 else ''}" for n in tiles
                )
                found[f"{name}, {scheduling}"] = Options.of(
                    tiles=tiles, cluster=clusters, scheduling=scheduling
                )
    return found


def _best(graph: Graph, op: str, on: Machine, cluster: int) -> Sequence[Config]:
    """The op's best configs by the model, no two alike but for a little width."""
    kept: list[Config] = []
    for config in sorted(linear_configs(graph.bound(graph.op(op)), on, cluster), key=lambda c: c.us):
        if all((config.cluster_split, config.tile[0]) != (k.cluster_split, k.tile[0]) for k in kept):
            kept.append(config)
    return kept[:KEPT]


def tune(
    program: Program,
    rounds: int = 5,
    more: Mapping[str, Options] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    target: str = "cuda",
) -> tuple[Tuned, dict[str, float]]:
    """Time the candidates (and `more`) on this GPU, interleaved, weights from memory: (the fastest, µs of
    each).

    Those that cannot be built are left out; PlanError where none can. Then the fastest in one launch beside
    the same tiles in programmatic launches of single ops, which are kept where they are 1 % faster (GAIN).
    """

    on = place(target=target)
    options = {**candidates(program, on.machine), **(more or {})}
    sets = [
        random_arguments(program, seed, "cuda") for seed in range(timing.set_count(argument_bytes(program)))
    ]

    def timed(builds: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        runners = {}
        for name, build in builds.items():
            progress(f"{program.name} {name}")
            try:
                runners[name] = timing.ready(build())
            except TilegenError:
                continue
        runs = {name: r.run for name, r in runners.items()}
        times = timing.interleave(
            runs, timing.counted(runs, timing.event_seconds), timing.event_seconds, rounds
        )
        return {name: 1e6 * statistics.median(t) / len(sets) for name, t in times.items()}

    one, launched = Way(target, "persistent"), Way(target, "multi_launch", programmatic=True)
    us = timed({name: partial(own, program, o, sets, one) for name, o in options.items()})
    if not us:
        raise PlanError(f"{program.name}: none of {len(options)} candidates can be built")
    best = min(us, key=lambda name: us[name])
    sizes = {k: v for k, v in program.sizes if isinstance(v, int)}
    tuned, launches = (
        Tuned(program.name, sizes, options[best], us[best], len(us)),
        f"{best}, launches of single ops",
    )
    if len(options[best].tiles) > 1:
        alone = replace(options[best], policies=())
        early = partial(own, program, alone, sets, launched)
        both = timed({best: partial(own, program, options[best], sets, one), launches: early})
        if len(both) == 2:  # its time in the first run's terms
            us[launches] = both[launches] * us[best] / both[best]
            if us[launches] < (1 - GAIN) * us[best]:
                tuned = replace(tuned, us=us[launches], lowering="multi_launch")
    return replace(tuned, us=round(tuned.us, 2), tried=len(us)), dict(
        sorted(us.items(), key=lambda item: item[1])
    )
