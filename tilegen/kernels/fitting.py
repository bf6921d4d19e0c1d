"""A plan whose kernel compiles: where ptxas spills registers that hold sums, smaller tiles, planned and
proved anew; then one tile for all linears. Of launches those alone that spill have other tiles.

    256x192 for all linears: 668 bytes spilled   →   128x256, the fastest by the cost model of those with
                                                     128 sums a thread

How many registers a kernel of many ops takes, only ptxas knows. What was found is kept in the cache.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from tilegen.errors import LaunchSpillError, PlanError, SpillError
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, groups
from tilegen.options import Options
from tilegen.runtime import cache
from tilegen.runtime.request import request_key
from tilegen.runtime.settled import quiet
from tilegen.runtime.verify_launches import Proved
from tilegen.schedule.launches import P
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.schedule.simulate import simulate

Found = TypeVar("Found")
SUMS = (128, 96, 64)  # of a thread, of tiles that are tried one after the other
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
    if (kept := _kept(key)) is not None:
        return made(kept)
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
    if program.symbolic:
        said, _, _ = str(first).partition(";")
        hint = "formulas of the size take registers too: give it a number, or fewer ops"
        raise SpillError(f"{program.name}: {said}; {hint}", first.log, first.source)
    raise first


def fitted_launches(
    program: Program,
    place: Place,
    options: Options,
    made: Callable[[Options], Found],
    progress: Callable[[str], None] = quiet,
) -> Found:
    """What `made` gives for the options, or with smaller tiles of the ops whose launches spill (of_each).

    Raises:
        SpillError: none of the smaller ones fits, or the options say that op's tile.
    """
    key = cache.key_of("fitting launches", request_key(program, place, options))
    asked = kept = _kept(key) or options
    while True:
        try:
            found = made(asked)
        except LaunchSpillError as error:
            tiles = {name: tile for plan in error.plans for name, tile in _smaller_launch(plan)}
            if not tiles or not tiles.keys().isdisjoint(dict(options.tiles)):
                raise
            told = ", ".join(f"{name} {'x'.join(map(str, tile))}" for name, tile in tiles.items())
            progress(f"{program.name}: smaller tiles, {told}")
            logger.info("%s: %s; tried instead: %s", program.name, str(error).partition(";")[0], told)
            asked = replace(asked, tiles=tuple({**dict(asked.tiles), **tiles}.items()))
            continue
        if asked != kept:
            _keep(key, program, asked)
        return found


def of_each(launches: Sequence[Proved[P]], made: Callable[[Proved[P]], Found]) -> list[Found]:
    """What `made` gives for each launch, several at a time: the compiler needs no lock of Python's.

    Raises:
        LaunchSpillError: some of them spill.
    """
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(made, launch) for launch in launches]
    failed = [(launch, future.exception()) for launch, future in zip(launches, asked, strict=True)]
    spilled = [(launch, error) for launch, error in failed if isinstance(error, SpillError)]
    if spilled:
        first = spilled[0][1]
        plans = tuple(launch.plan for launch, _ in spilled if isinstance(launch.plan, Plan))
        raise LaunchSpillError(str(first).partition("\n")[0], plans, first.log, first.source)
    return [future.result() for future in asked]


def lowered(
    program: Program, lowering: str, asked: str, launches: Callable[[], Found], one: Callable[[], Found]
) -> Found:
    """What `launches` or `one` gives, as the lowering says. asked: as the user did; where that is auto and a
    launch of a single op spills, or does not follow a size that moves, one launch is taken, whose tiles may
    be smaller.

    Raises:
        SpillError, PlanError: as `fitted` and the planner; of a launch, if launches were asked for.
    """
    if lowering != "multi_launch":
        return one()
    try:
        return launches()
    except (SpillError, PlanError) as error:
        if asked != "auto":
            raise
        logger.info("%s: %s; one launch instead", program.name, str(error).partition(";")[0])
    return one()


def _smaller(program: Program, place: Place, options: Options) -> Iterator[Options]:
    """Tiles of its products with fewer sums a thread, for each limit those of the fastest plan."""
    dim = the_dim(program) if program.symbolic else None
    largest = program if dim is None else filled(program, dim, dim.most)
    chosen = plan(largest, place, options)
    products = _products(chosen)
    for limit in SUMS:
        if all(_sums(b) <= limit for b in products):
            continue
        plans: list[tuple[float, Options]] = []
        for shape in ((128, 2 * limit), (128, 3 * limit // 2), (256, limit)):
            tiles = {b.op.name: b.tile if _sums(b) <= limit else _within(b, *shape) for b in products}
            asked = replace(options, tiles=tuple({**dict(options.tiles), **tiles}.items()))
            plans.append((_us(plan(largest, place, asked)), asked))
        yield min(plans, key=lambda p: p[0])[1]
    yield from _alike(largest, place, options, chosen)


def _smaller_launch(launch: Plan) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tile of a launch's product with fewer sums a thread, where there is one."""
    for b in _products(launch):
        limit = next((n for n in SUMS if n < _sums(b)), None)
        if limit is not None:
            yield b.op.name, _within(b, 128, 2 * limit)


def _products(made: Plan) -> list[OpInstance]:
    """Those whose tile holds as many sums as it is large."""
    kinds = (LinearAttributes, ConvAttributes)
    return [b for b in made.bounds if isinstance(b.attributes, kinds) and not b.op.pixels]


def _alike(program: Program, place: Place, options: Options, chosen: Plan) -> Iterator[Options]:
    """The tile of one linear for all of them, the fastest first: their code is then the same, and shared."""
    linears = [b.op for b in chosen.bounds if isinstance(b.attributes, LinearAttributes) and not b.op.pixels]
    plans: list[tuple[float, Options]] = []
    for tile, cluster in dict.fromkeys((op.tile, op.cluster_option) for op in linears):
        tiles = {**dict(options.tiles), **{op.name: tile for op in linears}}
        clusters = {**dict(options.cluster), **{op.name: cluster for op in linears}}
        asked = replace(options, tiles=tuple(tiles.items()), cluster=tuple(clusters.items()))
        try:
            plans.append((_us(plan(program, place, asked)), asked))
        except PlanError:  # another linear cannot have it
            continue
    if len({op.tile for op in linears}) > 1:
        yield from (asked for _, asked in sorted(plans, key=lambda p: p[0]))


def _sums(b: OpInstance) -> int:
    """Of a thread of the math warpgroup that has more rows."""
    if len(b.out) != 2:
        return math.prod(b.tile[:3]) * b.tile[3] * groups(b) // 256
    rows, columns = b.tile[0], b.tile[1]
    return (rows if rows <= 128 else 128 * ceil_div(rows, 128)) * columns * groups(b) // 256


def _within(b: OpInstance, rows: int, columns: int) -> tuple[int, ...]:
    """A tile of these rows and columns; of a convolution its own pixels and as many columns as leave so many
    sums."""
    if len(b.out) == 2:
        return (rows, columns // groups(b) // 8 * 8, b.tile[2])
    most = rows * columns // math.prod(b.tile[:3]) // 16 * 16
    return (*b.tile[:3], max(16, min(b.tile[3], most)), *b.tile[4:])


def _us(made: Plan) -> float:
    return simulate(made).makespan


def _kept(key: str) -> Options | None:
    kept = cache.load("plans", key)
    return None if kept is None else Options.from_json(json.loads(kept["options.json"].read_text()))


def _keep(key: str, program: Program, options: Options) -> None:
    def build(folder: Path) -> dict[str, str]:
        (folder / "options.json").write_text(json.dumps(asdict(options)))
        return {"note": f"{program.name} {dict(program.sizes)}: tiles that fit"}

    cache.get_or_build("plans", key, build)
