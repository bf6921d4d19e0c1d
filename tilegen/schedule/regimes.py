"""Regimes of a size that moves: ranges of its values, each with a plan and a kernel of its own.

    1 … 64 rows: one row of tiles    65 … 256: a few, whose weights are packed too    257 … : all others
    … 384, … 512, … 768, … 1,024 …   where these are launches of single ops
    1 … 4, … 8, … 16, … 32, … 64     where all sizes are few rows, and not of a few linears
    1 … 1,024, … 4,096, all others   where a sequence alone has more than 256
    1, 2 … 8, all others             images

A few linears compile in a second, and how well their tiles fill waves changes with every row of tiles. They
have more regimes (tilegen.schedule.linear_regimes). Everything else takes there the tiles with the least mean
of log(time / least time of any tiles) by the cost model. A regime's lowering is the one that two of
its first, middle and last size have alone, so some may be launches of single ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilegen.frontend.dims import Dim, dims_of, filled, the_dim
from tilegen.frontend.program import DTYPES, Program, Size
from tilegen.graph.by_threads import why
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options
from tilegen.schedule.linear_regimes import few_linears, narrow, wide
from tilegen.schedule.planner import Progress, plan
from tilegen.schedule.sized import FEW_ROWS, SOME_ROWS, Lower, Regime, Settle, Sized, tiles_of

FEWER = (4, 8, 16, 32)  # where regimes end if all sizes are few rows
MANY = (1024, 4096)  # and if the least is many
IMAGES = (1, 8)
STEPS = (384, 512, 768, 1024, 1536, 2048, 3072)  # rows above SOME_ROWS that are looked at


def regimes(
    program: Program,
    place: Place,
    options: Options,
    progress: Progress = lambda _: None,
    settle: Settle = lambda _: Options(),
    lower: Lower = lambda program, made: "persistent",
) -> list[Regime]:
    """The regimes of a program on a GPU, which share out all sizes, that of the largest last. Where options
    are given they hold for all."""
    dim = the_dim(program)
    assert dim is not None
    tensors = [t for t in program.tensors if t.form != "spatial" and t.role != "state"]
    spatial = any(t.form == "spatial" for t in program.tensors)
    rows = 0 if spatial else max((_rises(t.plan_shape[0], dim) for t in tensors), default=0)
    sized = Sized(program, dim, rows, place, settle, lower)
    free = options == Options()
    loose = free and _loose(sized)
    if free and 0 < rows <= SOME_ROWS and few_linears(program, dim) and not loose:
        progress(f"{program.name}: tiles for each range of {dim.name}")
        return [*narrow(sized), *wide(sized)]
    ends = _ends(sized)
    found = _ending(ends, dim, options)
    if not free:
        return found
    found = [replace(r, lowering=_lowering(sized, r)) for r in found]
    steps = STEPS if 0 < rows <= SOME_ROWS and ends else ()
    looked_at = [n for step in steps if ends[-1] < (n := step // rows) < dim.most]
    if looked_at and (loose or found[-1].lowering == "multi_launch"):  # whose tiles fill waves of their own
        last = found[-1]
        stepped = _ending([*ends, *looked_at], dim, options)[len(ends) :]
        return [*found[:-1], *(replace(last, ranges=r.ranges) for r in stepped)]
    if looked_at:
        progress(f"{program.name}: tiles for {dim.name} above {ends[-1]}")
        sizes = [ends[-1] + 1, *looked_at, *(n + 1 for n in looked_at), dim.most]
        found[-1] = replace(found[-1], options=_least(sized, sizes, [*looked_at, dim.most]))
    return found


def _loose(sized: Sized) -> bool:
    """Whether linears of two-byte numbers have rows that the target's take as copies alone, or as matmuls:
    their tiles are chosen anew in each regime (tiles_of)."""
    if sized.place.target.any_linear:
        return False
    graph = fuse(sized.at(sized.dim.most))
    linears = graph.ops_of(LinearAttributes)
    return any(DTYPES[b.dtype(0)] == DTYPES[b.dtype(1)] == 2 and why(b, sized.place) for b in linears)


def _lowering(sized: Sized, regime: Regime) -> str:
    """That of the first, the middle and the last size which two of them have."""
    first, last = regime.ranges[0][0], regime.most
    at_first, at_last = (sized.lower(sized.at(n), None) for n in (first, last))
    return at_first if at_first == at_last else sized.lower(sized.at((first + last) // 2), None)


def _ends(sized: Sized) -> list[int]:
    """The last sizes of all regimes but that of the largest."""
    dim, rows = sized.dim, sized.rows
    if not rows:
        return [n for n in IMAGES if n < dim.most]
    few, many = dim.most * rows <= FEW_ROWS, rows > SOME_ROWS
    limits = FEWER if few else MANY if many else (FEW_ROWS, SOME_ROWS)
    return [n for limit in limits if 1 <= (n := limit // rows) < dim.most]


def _rises(extent: Size, dim: Dim) -> int:
    """Rows for each of what moves."""
    return int(filled(extent, dim, 1) - filled(extent, dim, 0)) if dims_of(extent) else 0


def _ending(ends: Sequence[int], dim: Dim, options: Options) -> list[Regime]:
    """A regime up to each of these and up to the largest, with the same options."""
    lasts = [*ends, dim.most]
    return [
        Regime(((first, last),), options)
        for first, last in zip([1, *(n + 1 for n in ends)], lasts, strict=True)
    ]


# --- one choice of tiles for many sizes ---------------------------------------------------------------------


def _least(sized: Sized, sizes: Sequence[int], ends: Sequence[int]) -> Options:
    """Of the tiles chosen at each end those that lose least at all sizes; none where they are the last's."""
    chosen = [tiles_of(plan(sized.at(end), sized.place), sized.at(end)) for end in ends]
    times = {tiles: [sized.us(n, tiles) for n in sizes] for tiles in dict.fromkeys(chosen)}
    return Options() if (found := least_lost(times)) == chosen[-1] else found


def least_lost(times: Mapping[Options, Sequence[float]]) -> Options:
    """The tiles with the least mean of log(time / least time)."""
    best = [min(of) for of in zip(*times.values(), strict=True)]
    return min(times, key=lambda t: sum(math.log(a / b) for a, b in zip(times[t], best, strict=True)))
