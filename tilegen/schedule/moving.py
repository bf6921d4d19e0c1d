"""One plan for every value of a size that moves.

Tiles, policies, order and scheduling are chosen at the largest value. Everything else is a formula of the
size: shapes, grids, ranks, semaphores and their targets, waits. So the plan at a value is these formulas
evaluated there, and the generated text is the same formulas in C. Only semaphores have the numbers of the
largest size in the text: where the next tensor's begin is then no formula, which registers would hold.

    M ≤ 4096, tiles of 64 rows:   ⌈M/64⌉ row blocks; row block i of `up` posts to semaphore i
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from tilegen.analysis.dependence import Edge
from tilegen.analysis.regions import evaluate
from tilegen.errors import PlanError
from tilegen.frontend.dims import Dim, filled, the_dim
from tilegen.frontend.program import Program, Size
from tilegen.graph.forms import SUPER_TILE, Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.lift import lifted
from tilegen.graph.pixels import as_linear
from tilegen.graph.rewrites import rewritten
from tilegen.graph.split_k import split_k
from tilegen.graph.split_kv import split_kv
from tilegen.ops.attention import forwarded, splits
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, normed
from tilegen.options import Options
from tilegen.schedule.order import by_name
from tilegen.schedule.plan import Plan, static_persistent
from tilegen.schedule.planner import Progress, plan, progresses, scheduling_of
from tilegen.schedule.policy import Grouping
from tilegen.schedule.waits import SemaphoreMap

Ranges = tuple[tuple[int, int], ...]  # (first, last) of each, rising
ALWAYS = f"op_major:{SUPER_TILE}"  # an order in which no size makes a tile wait for one behind it
MOST_RUNS = 100  # of sizes, whose order is looked at


class _TableError(PlanError):
    """A tensor's semaphores do not follow a size that moves."""

    def __init__(self, text: str, tensor: str):
        super().__init__(text)
        self.tensor = tensor


@dataclass(frozen=True)
class MovingPlan:
    """A plan whose sizes are formulas of `dim`. program: what the user wrote; open: the plan over the size
    that moves; most: the plan at the largest; ranges: the sizes that it is for."""

    program: Program
    dim: Dim
    open: Plan
    most: Plan
    ranges: Ranges
    _repr_html_: ClassVar[Callable[[MovingPlan], str] | None] = None  # as Plan's

    def at(self, size: int) -> Plan:
        """The plan at one size: a plan as any other, to be proved, interpreted or printed.

        Raises:
            PlanError: the size is none that the plan is for.
        """
        if not isinstance(size, int) or not any(first <= size <= last for first, last in self.ranges):
            raise PlanError(f"{self.program.name}: {self.dim.name} = {size!r}, expected {self.sizes}")
        return self._at(size)

    @property
    def sizes(self) -> str:
        """In words: 1 … 64, or 257 … 320, 641 … 768."""
        return ", ".join(f"{first} … {last}" for first, last in self.ranges)

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """(first, last) of each run of values with the same grids."""
        return [run for first, last in self.ranges for run in self._runs(first, last)]

    def _runs(self, least: int, most: int) -> list[tuple[int, int]]:
        values = np.arange(least, most + 1)
        changed = np.zeros(len(values), dtype=bool)
        changed[0] = True
        for b in self.open.bounds:
            for extent in b.grid:
                counts = np.broadcast_to(np.asarray(evaluate(extent, {self.dim.name: values})), values.shape)
                changed[1:] |= np.diff(counts) != 0
        firsts = values[changed].tolist()
        return list(zip(firsts, [*(n - 1 for n in firsts[1:]), most], strict=True))

    @cached_property
    def _at(self) -> Callable[[int], Plan]:
        return lru_cache(maxsize=16)(self._filled)

    def _filled(self, size: int) -> Plan:
        made = _at(self.open, self.dim, size)
        if isinstance(self.open.scheduling, str):
            return made
        workers = made.machine.clusters(made.cluster)
        return replace(made, scheduling=static_persistent(made.order.count, workers))

    def __repr__(self) -> str:
        return f"<MovingPlan {self.dim.name} = {self.sizes}: {self.open!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return MovingPlan, (self.program, self.dim, self.open, self.most, self.ranges)


def moving_plan(
    program: Program,
    place: Place,
    options: Options,
    progress: Progress = lambda _: None,
    ranges: Ranges = (),
) -> MovingPlan:
    """The plan of a program in which a size moves. ranges: the sizes that it is for, up to the largest; by
    default all.

    Raises:
        PlanError: as for `plan`; or something that is chosen does not follow the size.
    """
    dim = the_dim(program)
    assert dim is not None
    largest = plan(filled(program, dim, dim.most), place, options, progress)
    try:
        made = opened(program, dim, largest, place, options, ranges)
    except _TableError as error:  # a semaphore for each row of blocks follows every size
        if error.tensor in dict(options.policies):
            raise
        other = replace(options, policies=(*options.policies, (error.tensor, "row")))
        return moving_plan(program, place, other, progress, ranges)
    if options.order == "auto" and not _progresses_everywhere(made):
        return moving_plan(program, place, replace(options, order=ALWAYS), progress, ranges)
    return made


def _progresses_everywhere(made: MovingPlan) -> bool:
    """Whether no tile waits for one of higher rank at any size. Op after op that is so; bands of rows are
    looked at, once for each run of sizes with the same tiles."""
    if made.open.order.name.startswith("op_major"):
        return True
    return len(made.runs) <= MOST_RUNS and all(progresses(made.at(first)) for first, _ in made.runs)


def opened(
    program: Program, dim: Dim, largest: Plan, place: Place, options: Options, ranges: Ranges = ()
) -> MovingPlan:
    """The plan over what moves, from the plan at its largest value."""
    return over(program, dim, largest, _open_graph(program, dim, largest.graph, place, options), ranges)


def over(program: Program, dim: Dim, largest: Plan, graph: Graph, ranges: Ranges = ()) -> MovingPlan:
    """The plan over what moves that has this graph; lists, where it is scheduled by lists, are those that a
    formula gives, or ranks are drawn where nothing waits and other lists are the better ones. PlanError where
    at the largest value it is another."""
    if not isinstance(largest.scheduling, str):
        strides = scheduling_of(largest, "static")
        strides_do = largest.semaphores or largest.scheduling == strides
        largest = replace(largest, scheduling=strides if strides_do else "dynamic")
    maps, base = [], 0
    for m in largest.semaphores:
        blocking = next(
            e.blocking for e in graph.edges if e.producer.op.name == m.producer and e.tensor == m.tensor
        )
        partition = tuple(
            _open_grouping(g, c.count, m, dim) for g, c in zip(m.partition, blocking, strict=True)
        )
        maps.append(SemaphoreMap(m.producer, m.tensor, partition, base, m.posts))
        base = base + maps[-1].count
    found = replace(
        largest,
        sizes=_numbers(program.sizes),
        graph=graph,
        semaphores=tuple(maps),
        order=by_name(graph, largest.order.name),
        calls=program.calls if largest.calls else (),
        dim=dim,
    )
    back = _at(found, dim, dim.most)
    if (back.graph, back.semaphores, back.order) != (largest.graph, largest.semaphores, largest.order):
        raise PlanError(f"{program.name}: the plan over {dim.name} is not that at {dim.name} = {dim.most}")
    return MovingPlan(program, dim, found, largest, ranges or ((1, dim.most),))


def _numbers(sizes: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """The sizes among the parameters of a spec, as `plan` keeps them."""
    return tuple((k, n) for k, n in sizes if isinstance(n, (int, Dim)) and not isinstance(n, bool))


def _open_graph(program: Program, dim: Dim, chosen: Graph, place: Place, options: Options) -> Graph:
    """The graph over what moves, with the splits and tiles of the one at the largest value."""
    bounds = [chosen.bound(op) for op in chosen.ops]
    convolutions = [op for op in chosen.ops if op.pixels or isinstance(op.attributes, ConvAttributes)]
    same = replace(
        options,
        tiles=tuple({**dict(options.tiles), **{op.name: op.tile for op in convolutions}}.items()),
        norms="fused" if any(normed(b) for b in bounds) else "separate",
        appends="forwarded" if any(forwarded(b) for b in bounds) else "awaited",
    )
    sizes = (dim.most - 1, dim.most) if dim.most > 1 else (1, 2)
    ends = [rewritten(fuse(filled(program, dim, n)), place, same) for n in sizes]
    graph: Graph = lifted(ends[0], ends[1], dim, sizes)
    seen = {name: replace(t, form=chosen.tensors[name].form) for name, t in graph.tensors.items()}
    graph = replace(graph, tensors=seen)
    for op in graph.ops:
        cut = next(o for o in chosen.ops if o.name in (f"{op.name}_split_kv", op.name))
        graph = graph.with_op(op.name, (as_linear(op) if cut.pixels else op).cut_as(cut))
        parts = [o for o in chosen.ops if o.name.removeprefix(f"{op.name}_k").isdecimal()]
        if isinstance(cut.attributes, LinearAttributes) and parts:
            graph = split_k(graph, op.name, len(parts) + 1)
        if cut.name != op.name:
            graph = split_kv(graph, op.name, splits(chosen.bound(cut)))
    for op in graph.ops:
        graph = graph.with_op(op.name, op.cut_as(chosen.op(op.name)))
    return graph


def _open_grouping(g: Grouping, blocks: Size, m: SemaphoreMap, dim: Dim) -> Grouping:
    if g.how == "table" and not isinstance(blocks, int):
        raise _TableError(
            f"the semaphores of {m.producer!r} for {m.tensor!r} are grouped by a table, which does not follow"
            f" {dim.name}; choose policies={{{m.tensor!r}: 'row'}} or 'tile'",
            m.tensor,
        )
    return replace(g, blocks=blocks)


def _at(plan: Plan, dim: Dim, size: int) -> Plan:
    """All formulas at one size. Dependences are not derived anew: what is proved is what the text says. No
    tile of launches of single ops waits by them."""
    graph: Graph = filled(replace(plan.graph), dim, size)
    if plan.lowering == "persistent":
        graph.__dict__["edges"] = tuple(_edge_at(e, graph, dim, size) for e in plan.graph.edges)
    order = filled(plan.order, dim, size)
    kept = tuple(s for s in order.segments if s.count)
    return replace(
        plan,
        sizes=filled(plan.sizes, dim, size),
        graph=graph,
        semaphores=filled(plan.semaphores, dim, size),
        order=replace(order, segments=kept),
        calls=filled(plan.calls, dim, size),
        dim=None,
    )


def _edge_at(e: Edge, graph: Graph, dim: Dim, size: int) -> Edge:
    producer, consumer = (graph.bound(graph.op(b.op.name)) for b in (e.producer, e.consumer))
    rest = (filled(part, dim, size) for part in (e.access, e.tensor, e.box, e.blocking, e.first, e.last))
    return Edge(producer, consumer, *rest)
