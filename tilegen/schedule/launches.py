"""Plans of launches of single ops: the multi_launch lowering (tilegen.runtime.verify_launches)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

from tilegen.errors import PlanError, TilegenError
from tilegen.frontend.dims import the_dim
from tilegen.frontend.program import Program, Tensor, check_acyclic
from tilegen.graph.by_threads import as_matmuls
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import GIVEN, Graph
from tilegen.graph.pad_rows import padded
from tilegen.graph.pixels import convolutions_in_rows, in_rows
from tilegen.graph.rows_by_rows import as_linears
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpDef, TileOp, kind
from tilegen.options import Options
from tilegen.schedule.alike import unnamed_graph
from tilegen.schedule.moving import MovingPlan, Ranges, opened, over
from tilegen.schedule.order import Order, by_name, op_major
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import emitted_by, scheduling_of, tiled

P = TypeVar("P", Plan, MovingPlan)
OF_AN_OP = ("tiles", "split_k", "split_kv", "cluster", "pingpong")  # options by op


@dataclass(frozen=True)
class Launches(Generic[P]):
    """The plan of all ops, which has no semaphores and says what is launched in which order; that of each."""

    whole: P
    each: tuple[P, ...]


def launches_of(program: Program, place: Place, options: Options) -> Launches[Plan]:
    """A launch of each op, cut as is best for it alone.

    Raises:
        PlanError: an option does not fit, or the target has no kernel for an op.
    """
    whole = whole_plan(program, place, options)
    return Launches(whole, launch_plans(whole, place, options))


def moving_launches(
    program: Program, place: Place, options: Options, ranges: Ranges, largest: Launches[Plan]
) -> Launches[MovingPlan]:
    """Launches over a size that moves, from those at its largest value. ranges: the sizes they are for."""
    dim = the_dim(program)
    assert dim is not None
    whole = opened(program, dim, largest.whole, place, options, ranges)
    graphs = (whole.open.graph.alone(op) for op in whole.open.graph.ops)
    each = (over(program, dim, made, graph, ranges) for made, graph in zip(largest.each, graphs, strict=True))
    return Launches(whole, tuple(each))


def _launched(program: Program, place: Place, options: Options) -> Graph:
    """The ops that have a launch each, uncut: each is cut for itself."""
    graph = fuse(program)
    for rewrite in (as_linears, padded, as_matmuls):
        graph = rewrite(graph, place, options)
    return replace(graph, ops=tuple(replace(op, tile=()) for op in graph.ops))


def whole_plan(program: Program, place: Place, options: Options) -> Plan:
    """The plan of all ops, each cut as is best for it alone. It has no semaphores: it says what is launched,
    in which order."""
    if not isinstance(program, Program):
        raise PlanError(f"a plan is made of a Program, given {type(program).__name__}")
    check_acyclic(program)
    if program.symbolic:
        raise PlanError(f"{program.name}: sizes are left open; a plan needs all of them")
    if options.policies:
        raise PlanError(
            f"policies {dict(options.policies)}: a launch of one op has no semaphores; kernel boundaries"
            " order them"
        )
    fused = _launched(program, place, options)
    strangers = [
        name
        for what in OF_AN_OP
        for name, _ in getattr(options, what)
        if name not in {op.name for op in fused.ops}
    ]
    if strangers:
        raise PlanError(
            f"{strangers[0]!r}: no such op; the ops are {', '.join(sorted(op.name for op in fused.ops))}"
        )
    names = {op.name for op in fused.ops} | set(fused.tensors)
    cut = []
    for op in fused.ops:
        asked, alone, others = _of_op(options, op.name), fused.alone(op), names - {op.name, op.result}
        free = not any(getattr(asked, what) for what in OF_AN_OP)
        known = _as_one_alike(alone, place) if free else None
        cut.append(known or tiled(convolutions_in_rows(alone, place, asked), place, asked, others))
    for op, of_op in zip(fused.ops, cut, strict=True):
        made = {o.name for o in of_op.ops if o.name != op.name} | {
            o.result for o in of_op.ops if o.result != op.result
        }
        if made & names:
            raise PlanError(
                f"splitting {op.name!r} makes {', '.join(sorted(made))}; {', '.join(sorted(made & names))} is"
                " taken",
                op.where,
            )
    partials = {name: t for graph in cut for name, t in graph.tensors.items() if name not in fused.tensors}
    graph = replace(fused, ops=tuple(op for g in cut for op in g.ops), tensors={**fused.tensors, **partials})
    sizes = tuple((name, n) for name, n in program.sizes if isinstance(n, int) and not isinstance(n, bool))
    arguments = tuple(t.name for t in program.arguments)
    whole = Plan(
        program.name, sizes, place.machine, graph, arguments, (), (), op_major(graph), lowering="multi_launch"
    )
    return replace(whole, target=place.target.name, calls=program.calls, returns=program.outputs)


def _as_one_alike(graph: Graph, place: Place) -> Graph | None:
    """The graph of one op of which nothing is asked, cut as one that is alike but for its names; None where
    that is no one op, as an attention whose keys are split, or cannot be cut."""
    (op,), alike = graph.ops, unnamed_graph(graph)
    whole = not isinstance(op.attributes, AttentionAttributes)
    cut = _cut(kind(op.kind), *alike.ops, tuple(alike.tensors.values()), place) if whole else None
    if cut is None:
        return None
    shown = in_rows(graph) if cut.pixels and not op.pixels else graph
    (seen,) = shown.ops
    return shown.with_op(seen.name, seen.cut_as(cut))


@lru_cache(maxsize=4096)
def _cut(known_as: OpDef, op: TileOp, tensors: tuple[Tensor, ...], place: Place) -> TileOp | None:
    """An op as it is cut best alone; None where it is not, or in several. known_as: what its kind stands for
    now, since a user may define one of his own anew."""
    outputs = tuple(t.name for t in tensors if t.role == "output")
    graph = Graph("alike", {t.name: t for t in tensors}, (op,), outputs)
    try:
        made = tiled(convolutions_in_rows(graph, place, Options()), place, Options())
    except TilegenError:  # raised again for the op that has a name
        return None
    return made.ops[0] if len(made.ops) == 1 else None


def launch_plans(whole: Plan, place: Place, options: Options) -> tuple[Plan, ...]:
    """The plan of each op alone, in the order in which they are launched."""
    return tuple(_launch_plan(whole, whole.graph.alone(op), place, options) for op in whole.graph.ops)


def _of_op(options: Options, op: str) -> Options:
    """The options that concern one op."""
    of_op: dict[str, Any] = {
        what: tuple(item for item in getattr(options, what) if item[0] == op) for what in OF_AN_OP
    }
    return replace(options, **of_op)


def _launch_plan(whole: Plan, graph: Graph, place: Place, options: Options) -> Plan:
    arguments = tuple(name for name, t in graph.tensors.items() if t.role in GIVEN)
    order = _order(graph, place, options.order)
    made = Plan(
        graph.name, whole.sizes, whole.machine, graph, arguments, (), (), order, lowering=whole.lowering
    )
    return emitted_by(place.target, replace(made, scheduling=scheduling_of(made, options.scheduling)))


def _order(graph: Graph, place: Place, name: str) -> Order:
    """Bands say how ops follow each other: alone, an op is walked in super-tiles."""
    usual = op_major(graph, place.forms.super_tile(graph, place.machine))
    asked = usual if name == "auto" else by_name(graph, name)
    return usual if asked.name.startswith("banded") else asked
