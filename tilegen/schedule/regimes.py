"""Regimes of a size that moves: up to three ranges of its values, each with a plan of its own.

    1 … 64 rows: one row of tiles    65 … 256: a few, whose weights are packed too    257 … : all others
    1 … 4, 5 … 16, 17 … 64           where all sizes are few rows
    1 … 1,024, … 4,096, all others   where a sequence alone has more than 256
    1, 2 … 8, all others             images

Each is planned at its last size. Only above 256 rows, where tiles fill waves at some sizes and not at others,
those are taken with the least mean of log(time / least time of any tiles) by the cost model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilegen.errors import PlanError
from tilegen.frontend.dims import Dim, dims_of, filled, the_dim
from tilegen.frontend.program import Program, Size
from tilegen.graph.forms import Place
from tilegen.options import Options
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import Progress, plan
from tilegen.schedule.simulate import simulate

FEW_ROWS, SOME_ROWS = 64, 256  # norms are fused up to there, weights packed up to there
FEWER = (4, 16)  # where regimes end if all sizes are few rows
MANY = (1024, 4096)  # and if the least is many
IMAGES = (1, 8)
STEPS = (384, 512, 768, 1024, 1536, 2048, 3072)  # rows above SOME_ROWS that are looked at


@dataclass(frozen=True)
class Regime:
    """The sizes up to `most`, above those of the regime before, and what they are planned with."""

    most: int
    options: Options


def regimes(
    program: Program, place: Place, options: Options, progress: Progress = lambda _: None
) -> list[Regime]:
    """The regimes of a program on a GPU. Where options are given they hold for all."""
    dim = the_dim(program)
    assert dim is not None
    tensors = [t for t in program.tensors if t.form != "spatial" and t.role != "state"]
    rows = max((_rises(t.plan_shape[0], dim) for t in tensors), default=0)
    if not rows or any(t.form == "spatial" for t in program.tensors):
        return [Regime(n, options) for n in (*(n for n in IMAGES if n < dim.most), dim.most)]
    few, many = dim.most * rows <= FEW_ROWS, rows > SOME_ROWS
    limits = FEWER if few else MANY if many else (FEW_ROWS, SOME_ROWS)
    ends = [n for limit in limits if 1 <= (n := limit // rows) < dim.most]
    found = [Regime(n, options) for n in (*ends, dim.most)]
    looked_at = (
        [n for end in STEPS if (end // rows) < dim.most and (n := end // rows) > ends[-1]] if ends else []
    )
    if few or many or options != Options() or not looked_at:
        return found
    progress(f"{program.name}: tiles for {dim.name} above {ends[-1]}")
    sizes = [ends[-1] + 1, *looked_at, *(n + 1 for n in looked_at), dim.most]
    return [*found[:-1], Regime(dim.most, _least(program, dim, sizes, [*looked_at, dim.most], place))]


def _rises(extent: Size, dim: Dim) -> int:
    """Rows for each of what moves."""
    return int(filled(extent, dim, 1) - filled(extent, dim, 0)) if dims_of(extent) else 0


def _least(program: Program, dim: Dim, sizes: Sequence[int], ends: Sequence[int], place: Place) -> Options:
    """Of the tiles chosen at each end those that lose least at all sizes; none where they are the last's."""
    chosen = [_tiles(plan(filled(program, dim, end), place)) for end in ends]
    times = {tiles: [_us(program, dim, n, tiles, place) for n in sizes] for tiles in dict.fromkeys(chosen)}
    return Options() if (found := least_lost(times)) == chosen[-1] else found


def least_lost(times: Mapping[Options, Sequence[float]]) -> Options:
    """The tiles with the least mean of log(time / least time)."""
    best = [min(of) for of in zip(*times.values(), strict=True)]
    return min(times, key=lambda t: sum(math.log(a / b) for a, b in zip(times[t], best, strict=True)))


def _tiles(made: Plan) -> Options:
    """The options that give a plan's tiles again."""
    clusters = {op.name: f"{op.cluster}:{op.cluster_split}" for op in made.graph.ops if op.cluster > 1}
    return replace(
        Options(), tiles=tuple((op.name, op.tile) for op in made.graph.ops), cluster=tuple(clusters.items())
    )


def _us(program: Program, dim: Dim, size: int, tiles: Options, place: Place) -> float:
    try:
        return simulate(plan(filled(program, dim, size), place, tiles)).makespan
    except PlanError:  # they do not fit there
        return math.inf
