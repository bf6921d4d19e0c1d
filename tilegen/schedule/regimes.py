"""Regimes of a size that moves: up to three ranges of its values, each with tiles of its own.

    1 … 64 rows: weights stream, small tiles    65 … 768: one wave of tiles    769 … 4096: the largest tiles

Whose tiles serve a range best is a matter of the cost model: the ends of the ranges and their tiles are those
with the least mean of log(time / least time of any tiles) over sizes on both sides of every possible end.
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

MOST = 3
FEW_ROWS = 64  # one row of tiles: norms are fused there, and weights packed
FEWER = (4, 16)  # where regimes end if all sizes are few rows
ENDS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072)  # rows


@dataclass(frozen=True)
class Regime:
    """The sizes up to `most`, above those of the regime before, and what they are planned with."""

    most: int
    options: Options


def regimes(
    program: Program, place: Place, options: Options, progress: Progress = lambda _: None
) -> list[Regime]:
    """The regimes of a program on a GPU. Where options are given they hold for all, and ranges end at few
    rows."""
    dim = the_dim(program)
    assert dim is not None
    tensors = [t for t in program.tensors if t.form != "spatial" and t.role != "state"]
    rows = max((_rises(t.plan_shape[0], dim) for t in tensors), default=0)
    if not rows:
        return [Regime(dim.most, options)]
    few = [n for end in FEWER if 1 <= (n := end // rows) < dim.most]
    if dim.most * rows <= FEW_ROWS:
        return [Regime(n, options) for n in (*few, dim.most)]
    ends = sorted({n for end in ENDS if 1 <= (n := end // rows) < dim.most} | {dim.most})
    if options != Options():
        return [Regime(n, options) for n in (*ends[: MOST - 1], dim.most)]
    progress(f"{program.name}: regimes of {dim.name} up to {dim.most}")
    return _least(ends, _times(program, dim, ends, place))


def _rises(extent: Size, dim: Dim) -> int:
    """Rows for each of what moves."""
    return int(filled(extent, dim, 1) - filled(extent, dim, 0)) if dims_of(extent) else 0


Times = Mapping[
    Options, Sequence[tuple[float, float]]
]  # tiles -> at the first and the last size below each end


def _times(program: Program, dim: Dim, ends: Sequence[int], place: Place) -> Times:
    """By the cost model: what tiles chosen at each end take elsewhere."""
    chosen = {_tiles(plan(filled(program, dim, end), place)) for end in ends}
    firsts = [1, *(end + 1 for end in ends[:-1])]
    return {
        tiles: [
            (_us(program, dim, first, tiles, place), _us(program, dim, last, tiles, place))
            for first, last in zip(firsts, ends, strict=True)
        ]
        for tiles in sorted(chosen, key=repr)
    }


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


def _least(ends: Sequence[int], times: Times) -> list[Regime]:
    """The best of up to MOST ranges, by dynamic programming over their ends."""
    best = [tuple(min(times[t][n][side] for t in times) for side in (0, 1)) for n in range(len(ends))]

    def lost(tiles: Options, lo: int, hi: int) -> float:
        pairs = ((a, b) for n in range(lo, hi) for a, b in zip(times[tiles][n], best[n], strict=True))
        return sum(math.log(a / b) for a, b in pairs)

    # of the first n ends in so many ranges: what is lost, and the ranges
    found: dict[int, tuple[float, list[Regime]]] = {0: (0.0, [])}
    for _ in range(MOST):
        longer = dict(found)
        for lo, (before, ranges) in found.items():
            for hi in range(lo + 1, len(ends) + 1):
                tiles = min(times, key=lambda t: lost(t, lo, hi))
                total = before + lost(tiles, lo, hi)
                if hi not in longer or total < longer[hi][0] - 1e-9:
                    longer[hi] = total, [*ranges, Regime(ends[hi - 1], tiles)]
        found = longer
    return found[len(ends)][1]
