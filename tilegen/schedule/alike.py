"""Launches of one op that are alike: the same plan but for names, as a net has them layer after layer.

y = relu(conv2(h, w2))  →  y = relu(conv2d(x, w))

Of two that are alike one is cut, proved and compiled for both: planning asks no name, the checker asks none
of a launch of one op, and in a kernel's text a name is a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count

from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan


@dataclass(frozen=True)
class Unnamed:
    """A plan of one op with other names. names: tensor → what the op calls it."""

    plan: Plan
    names: Mapping[str, str]


def unnamed(plan: Plan) -> Unnamed:
    """A launch of one op, whose tensors are called as the op's operands are, and its result y."""
    (op,) = plan.graph.ops
    names = names_of(plan.graph)
    order = replace(plan.order, segments=tuple(replace(s, op=op.kind) for s in plan.order.segments))
    made = replace(
        plan,
        program=op.kind,
        sizes=(),
        graph=_called(plan.graph, names),
        arguments=tuple(names[name] for name in plan.arguments),
        order=order,
        proxies=tuple((op.kind, proxies) for _, proxies in plan.proxies),
        calls=(),
        returns=(),
    )
    return Unnamed(made, names)


def written_as(plan: Plan) -> Unnamed:
    """What the text of a plan's kernel is written of: for a launch of one op, a plan without its names. Any
    other is taken as it is; so is an op of a user's own, whose template may say anything, and a size that
    moves."""
    launch = plan.lowering == "multi_launch" and len(plan.graph.ops) == 1 and plan.dim is None
    if launch and all(b.kind.built_in for b in plan.bounds):
        return unnamed(plan)
    return Unnamed(plan, {name: name for name in plan.graph.tensors})


def unnamed_graph(graph: Graph) -> Graph:
    """The graph of one op, without its names."""
    return _called(graph, names_of(graph))


def _called(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph of one op by other names of its tensors."""
    (op,) = graph.ops
    operands = tuple(replace(o, tensor=names[o.tensor]) for o in op.operands)
    seen = replace(op, name=op.kind, operands=operands, result=names[op.result], where="")
    tensors = {names[n]: replace(t, name=names[n], where="") for n, t in graph.tensors.items()}
    return Graph(op.kind, tensors, (seen,), tuple(names[name] for name in graph.outputs))


def names_of(graph: Graph) -> dict[str, str]:
    """What the one op of a graph calls its tensors: x, w, …, what its maths reads besides e0, e1, …, and y.
    No two have one name, whatever a user's own op calls its operands."""
    (op,) = graph.ops
    own = _own_operands(graph.bound(op))
    called = [(o.tensor, own.get(n, f"e{n - len(own)}")) for n, o in enumerate(op.operands)]
    found: dict[str, str] = {}
    for tensor, name in (*called, (op.result, "y")):
        if tensor not in found:
            names = (name + "_" * k for k in count())
            found[tensor] = next(n for n in names if n not in found.values())
    return found


def _own_operands(b: OpInstance) -> dict[int, str]:
    return {b.index(name): name for name in b.kind.operands_of(b) if b.has(name)}


def nameless(plan: Plan | MovingPlan) -> str:
    """A text that launches of one op have in common where they are alike.

    Where a size moves, the formulas of shapes and attributes belong to it, and the sizes that it is for.
    """
    if isinstance(plan, Plan):
        return unnamed(plan).plan.digest
    return " ".join([unnamed(plan.most).plan.digest, *_moving(plan)])


def _moving(plan: MovingPlan) -> list[str]:
    (op,) = plan.open.graph.ops
    shapes = [str((t.shape, t.plan_shape)) for t in plan.open.graph.tensors.values()]
    return [*shapes, str(asdict(op.attributes)), str(plan.ranges), plan.dim.name]
