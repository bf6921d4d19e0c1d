"""Regimes of a few linears: rings as deep as their rows leave room for, and several choices of tiles.

    1 … 8, … 16, … 64, … 72, … 256 rows    of one of HEIGHTS the same tiles, whose weights are packed once
    257 … 272, … 288, …                    each choice of tiles for all sizes where it is the best, up to MOST
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tilegen.frontend.dims import Dim, filled
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.linear_time import PACKED, time_of_tile
from tilegen.graph.product_time import stages_of
from tilegen.ops.base import ceil_div
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options
from tilegen.schedule.plan import Plan
from tilegen.schedule.sized import FEW_ROWS, SOME_ROWS, Regime, Sized, tiles_of

FEW_OPS = 4  # compile in a second
ROOM = (8, 16, 24, 32, 40, 48, 56)  # rows that a ring of few linears is made for, besides FEW_ROWS
HEIGHTS = (FEW_ROWS, 128, 192, SOME_ROWS)  # whose tiles fewer rows have too
BETWEEN = range(FEW_ROWS + 8, SOME_ROWS, 8)  # rows at which regimes end besides: heights of swapped tiles
MOST = 64  # tiles of few linears above SOME_ROWS
MEASURED = 0.03  # what tiles lose, at least, where others were measured to be the best
PACKED_AGAIN = 0.02  # what tiles may lose before weights are packed once more for others
LEVEL = 0.002  # losses that are the same
OTHER = 1.0  # what tiles lose where the other lowering is the faster

C = TypeVar("C", bound=Hashable)


def few_linears(program: Program, dim: Dim) -> bool:
    """Whether it is linears and what goes row by row."""
    graph = fuse(filled(program, dim, dim.most))
    bounds = [graph.bound(op) for op in graph.ops]
    products = [isinstance(b.attributes, LinearAttributes) for b in bounds if b.kind.mma]
    return len(bounds) <= FEW_OPS and bool(products) and all(products)


def narrow(sized: Sized) -> Iterator[Regime]:
    """Up to SOME_ROWS. All of one of HEIGHTS have the same tiles, which need the less room in a ring the
    fewer rows there are: so weights packed for the one are packed for the others. More than FEW_ROWS have
    tiles of their own where these cut columns alike, or are so much faster that weights are packed again."""
    ends = sized.upto(sorted({*ROOM, *BETWEEN, *HEIGHTS}))
    plans = {n: sized.plan(n) for n in ends}
    heights = {n: next(h for h in HEIGHTS if n * sized.rows <= h) for n in ends}
    chosen = {n: _choice(sized, n, made) for n, made in plans.items()}
    firsts = [1, *(n + 1 for n in ends)]
    groups: dict[tuple[int, str], dict[int, _Choice]] = {}
    for first, last in zip(firsts, ends, strict=False):
        key = heights[last], chosen[last].lowering
        if key not in groups:
            at_first = _choice(sized, first, sized.plan(first))
            groups[key] = {first: at_first} if at_first.lowering == chosen[last].lowering else {}
        groups[key][last] = chosen[last]
    shared = {key: _shared(sized, key[0], group) for key, group in groups.items()}
    for first, last in zip(firsts, ends, strict=False):
        own, like = chosen[last], shared[heights[last], chosen[last].lowering]
        taken = _taken(sized, heights[last], last, own, like)
        if taken != own and last * sized.rows > FEW_ROWS:
            lost = _losses(sized, _Cell(last, last, own), [own, taken])[taken]
            taken = own if lost > PACKED_AGAIN else taken
        yield Regime(((first, last),), Options() if taken == own else taken.options, own.lowering)


def _shared(sized: Sized, height: int, chosen: Mapping[int, _Choice]) -> _Choice:
    """Of the tiles of these sizes, made as high as all rows that have them, those that lose least at all."""
    losses = {c.raised(n * sized.rows, height): 0.0 for n, c in chosen.items()}
    for n, own in chosen.items():
        taken = {c: _taken(sized, height, n, own, c) for c in losses}
        found = _losses(sized, _Cell(n, n, own), list(dict.fromkeys([own, *taken.values()])))
        losses = {c: lost + found[taken[c]] for c, lost in losses.items()}
    last = max(chosen)
    by_loss = sorted(reversed(losses), key=losses.__getitem__)
    return next((c for c in by_loss if sized.takes(last, c.lowering, c.options)), chosen[last])


def _taken(sized: Sized, height: int, size: int, own: _Choice, shared: _Choice) -> _Choice:
    """What a size has where tiles are shared: its own tiles, if they cut columns like those."""
    alike = height > FEW_ROWS and _packings(own, sized, size) == _packings(shared, sized, size)
    return own if alike else shared


@dataclass(frozen=True)
class _Packing:
    """What a packed copy of a linear's weights depends on. halved: whether what the two math warpgroups have
    of a tile's groups lies apart; few: whether there are so few rows of tiles that weights are packed at
    all."""

    op: str
    columns: int
    depth: int
    cluster: int
    halved: bool
    few: bool


def _packings(choice: _Choice, sized: Sized, size: int) -> list[_Packing]:
    found, clusters, turns = [], choice.clusters, dict(choice.options.pingpong)
    for name, (height, columns, depth) in choice.options.tiles:
        shape, tiles = clusters.get(name, ClusterShape()), ceil_div(size * sized.rows, height)
        rows = height // shape.m
        # of 64 rows, or of a swapped tile of more columns than both share by rows
        apart = rows == 64 or (rows % 64 != 0 and columns // shape.n > 64)
        halved = apart and not turns.get(name, False) and sized.groups[name] > 1
        found.append(_Packing(name, columns, depth, shape.n, halved, tiles <= PACKED))
    return found


@dataclass(frozen=True)
class _Choice:
    """Tiles in one launch, or in launches of single ops."""

    lowering: str
    options: Options

    @property
    def linears(self) -> set[str]:
        """That it has tiles for: one that was measured best split over K has none."""
        return {name for name, _ in self.options.tiles}

    @property
    def clusters(self) -> Mapping[str, ClusterShape]:
        return {name: ClusterShape.of_option(given) for name, given in self.options.cluster}

    def raised(self, rows: int, height: int) -> _Choice:
        """With tiles of this height, one of HEIGHTS, where they hold all rows already. Of such a tile CTAs
        that share K finish columns."""
        of = {n: max(t[0], height) if t[0] >= rows else t[0] for n, t in self.options.tiles}
        tiles = tuple((n, (of[n], *t[1:])) for n, t in self.options.tiles)
        clusters = tuple(
            (n, replace(c, finishes_rows=c.finishes_rows and of[n] != height).option)
            for n, c in self.clusters.items()
        )
        return replace(self, options=replace(self.options, tiles=tiles, cluster=clusters))


@dataclass(frozen=True)
class _Cell:
    """Sizes from `first` to `last`, and the choice that is planned for the last."""

    first: int
    last: int
    own: _Choice


def _choice(sized: Sized, size: int, made: Plan) -> _Choice:
    return _Choice(made.lowering, _tiles_and_order(made, sized.at(size)))


def wide(sized: Sized) -> list[Regime]:
    """Above SOME_ROWS: each choice of tiles for all sizes where it is the best."""
    lasts = list(_cells(sized))
    if not lasts:
        return []
    before = [SOME_ROWS // sized.rows, *lasts]
    firsts = [n + 1 for n in before[:-1]]
    cells = [
        _Cell(first, last, _choice(sized, last, sized.plan(last)))
        for first, last in zip(firsts, lasts, strict=True)
    ]
    choices = list(dict.fromkeys(cell.own for cell in cells))
    found = [_losses(sized, cell, choices) for cell in cells]
    losses = {c: [of[c] for of in found] for c in choices}
    weights = [math.log(last / first) for first, last in zip(before, lasts, strict=False)]
    taken = covering(losses, weights, MOST)
    ranges: dict[_Choice, list[tuple[int, int]]] = {}
    for choice, first, last in _shared_out(sized, taken, lasts, firsts[0]):
        ranges.setdefault(choice, []).append((first, last))
    made = (Regime(tuple(of), c.options, c.lowering) for c, of in ranges.items())
    return sorted(made, key=lambda r: r.most)


def _shared_out(
    sized: Sized, taken: Sequence[_Choice], lasts: Sequence[int], first: int
) -> Iterator[tuple[_Choice, int, int]]:
    """Each choice with the first and last size of neighbouring cells that have it."""
    for n, (choice, last) in enumerate(zip(taken, lasts, strict=True)):
        after = taken[n + 1] if n + 1 < len(taken) else None
        if after == choice:
            continue
        end = _whole_up_to(sized, choice, after, last, lasts[n + 1]) if after else last
        yield choice, first, end
        first = end + 1


def _whole_up_to(sized: Sized, choice: _Choice, after: _Choice, last: int, most: int) -> int:
    """The last size of the cell up to `most` at which the tiles of the cell before take no longer than its
    own: they may be whole there, within the cell."""
    if choice.lowering != after.lowering or choice.linears != after.linears:
        return last
    step = ceil_div(8, sized.rows)
    for n in range(last + step, most, step):
        graph = fuse(sized.at(n))
        if _products_us(graph, choice, sized.place) > _products_us(graph, after, sized.place):
            break
        last = n
    return last


def _losses(sized: Sized, cell: _Cell, choices: Sequence[_Choice]) -> dict[_Choice, float]:
    """What each loses in a cell. Where the cell's own was measured the others lose MEASURED at least."""
    modelled = _modelled_losses(sized, cell, choices)
    if sized.settle(sized.at(cell.last)) == Options():
        return modelled
    return {c: 0.0 if c == cell.own else max(loss, MEASURED) for c, loss in modelled.items()}


def _modelled_losses(sized: Sized, cell: _Cell, choices: Sequence[_Choice]) -> dict[_Choice, float]:
    """What each loses against the best of those with the cell's lowering and all tiles, which a linear that
    was measured best split over K has none of: the mean of both ends of the cell."""
    graphs = [fuse(sized.at(n)) for n in (cell.first, cell.last)]
    linears = {op.name for op in graphs[0].ops if isinstance(op.attributes, LinearAttributes)}
    times = {
        c: [_products_us(graph, c, sized.place) for graph in graphs]
        for c in choices
        if c.lowering == cell.own.lowering and linears == c.linears
    }
    best = [min(of) for of in zip(*times.values(), strict=True)]
    found = {c: sum(math.log(a / b) for a, b in zip(of, best, strict=True)) / 2 for c, of in times.items()}
    return {c: min(found.get(c, OTHER), OTHER) for c in choices}


def covering(losses: Mapping[C, Sequence[float]], weights: Sequence[float], most: int) -> list[C]:
    """For each cell one of at most `most` choices, which are taken one by one: that with which the sum of
    weight · loss² over all cells is the least, since one cell that loses much is worse than many that lose
    little. Where a cell is level, that of the cell before."""
    cells = range(len(weights))
    taken: list[C] = []
    least = [math.inf] * len(weights)
    for _ in range(most):
        found = min(losses, key=lambda c: sum(weights[i] * min(least[i], losses[c][i]) ** 2 for i in cells))
        if found in taken:
            break
        taken.append(found)
        least = [min(least[i], losses[found][i]) for i in cells]
    chosen: list[C] = []
    for i in cells:
        kept = bool(chosen) and losses[chosen[-1]][i] <= least[i] + LEVEL
        chosen.append(chosen[-1] if kept else min(taken, key=lambda c: losses[c][i]))
    return chosen


def _cells(sized: Sized) -> Iterator[int]:
    """Last sizes of cells within which products have about as many tiles: eights up to 1,024 rows, sixteens
    up to 2,048, 32 to an octave up to 4,096, above that of a quarter."""
    last, rows = SOME_ROWS // sized.rows, SOME_ROWS
    while last < sized.dim.most:
        rows = _next_cell(rows)
        if rows // sized.rows > last:
            last = min(rows // sized.rows, sized.dim.most)
            yield last


def _next_cell(rows: int) -> int:
    if rows < 1024:
        return rows + 8
    if rows < 2048:
        return rows + 16
    if rows < 4096:
        return rows + (1 << (rows.bit_length() - 6))
    return rows + rows // 256 * 64


def _tiles_and_order(made: Plan, program: Program) -> Options:
    """Of its products; the order that no size forbids, else none. A launch of one op has an order of its
    own."""
    found = tiles_of(made, program)
    linears = {b.op.name for b in made.bounds if isinstance(b.attributes, LinearAttributes)}
    kept = made.lowering == "persistent" and made.order.name.startswith("op_major")
    tiles = tuple(t for t in found.tiles if t[0] in linears)
    return replace(found, tiles=tiles, order=made.order.name if kept else "auto")


def _products_us(graph: Graph, choice: _Choice, place: Place) -> float:
    """All products by the cost model, with these tiles, in a ring that they share or in one each."""
    clusters, turns, times = choice.clusters, dict(choice.options.pingpong), []
    for name, tile in choice.options.tiles:
        b, cluster = graph.bound(graph.op(name)), clusters.get(name, ClusterShape())
        times.append(time_of_tile(b, place.machine, tile, cluster, turns.get(name, False)))
    if choice.lowering == "multi_launch":
        return sum(t.alone(t.stages) for t in times)
    stages = stages_of(max((t.stage for t in times), default=1))
    return sum(t.formula(stages) for t in times)
