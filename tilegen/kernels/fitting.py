"""A plan whose kernel compiles: where ptxas spills registers that hold sums, smaller tiles, planned and
proved anew.

    256x192 for all linears: 668 bytes spilled   →   128x256, the fastest by the cost model of those with
                                                     128 sums a thread

How many registers a kernel of many ops takes, only ptxas knows. What was found is kept in the cache.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from tilegen.errors import SpillError
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.ops.gemm import LinearAttributes, groups
from tilegen.options import Options
from tilegen.runtime import cache
from tilegen.runtime.request import quiet, request_key
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.schedule.simulate import simulate

Found = TypeVar("Found")
SUMS = (128, 64)  # of a thread, of tiles that are tried one after the other
logger = logging.getLogger("tilegen")


def fitted(
    program: Program,
    place: Place,
    options: Options,
    made: Callable[[Options], Found],
    progress: Callable[[str], None] = quiet,
    free: bool = True,
) -> Found:
    """What `made` gives for the options, or for the first with smaller tiles whose kernel spills nothing.

    free: whether tiles may be others than those of the options.

    Raises:
        SpillError: they may not, or none of the smaller ones fits.
    """
    key = cache.key_of("fitting", request_key(program, place, options))
    kept = cache.load("plans", key)
    if kept is not None:
        return made(Options.from_json(json.loads(kept["options.json"].read_text())))
    try:
        return made(options)
    except SpillError as error:
        if not free:
            raise
        first = error
    for smaller in _smaller(program, place, options):
        told = ", ".join(f"{name} {'x'.join(map(str, tile))}" for name, tile in smaller.tiles)
        logger.info("%s: %s; tried instead: %s", program.name, str(first).partition(";")[0], told)
        progress(f"{program.name}: smaller tiles, {told}")
        try:
            found = made(smaller)
        except SpillError:
            continue
        _keep(key, program, smaller)
        return found
    raise first


def _smaller(program: Program, place: Place, options: Options) -> Iterator[Options]:
    """Tiles of its linears with fewer sums a thread, for each limit those of the fastest plan."""
    dim = the_dim(program) if program.symbolic else None
    largest = program if dim is None else filled(program, dim, dim.most)
    chosen = plan(largest, place, options)
    for limit in SUMS:
        linears = [b for b in chosen.bounds if isinstance(b.attributes, LinearAttributes)]
        wide = [b for b in linears if b.tile[0] * b.tile[1] * groups(b) > 256 * limit]
        if not wide:
            continue
        kept = {b.op.name: b.tile for b in linears}
        plans: list[tuple[float, Options]] = []
        for rows, columns in ((128, 2 * limit), (128, 3 * limit // 2), (256, limit)):
            tiles = {b.op.name: (rows, columns // groups(b) // 8 * 8, b.tile[2]) for b in wide}
            asked = replace(options, tiles=tuple({**dict(options.tiles), **kept, **tiles}.items()))
            plans.append((_us(plan(largest, place, asked)), asked))
        yield min(plans, key=lambda p: p[0])[1]


def _us(made: Plan) -> float:
    return simulate(made).makespan


def _keep(key: str, program: Program, options: Options) -> None:
    def build(folder: Path) -> dict[str, str]:
        (folder / "options.json").write_text(json.dumps(asdict(options)))
        return {"note": f"{program.name} {dict(program.sizes)}: tiles that fit"}

    cache.get_or_build("plans", key, build)
