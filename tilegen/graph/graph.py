"""The ops of a plan on their tensors, and how they depend on each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilegen.analysis.dependence import Edge, edge, write_map
from tilegen.errors import PlanError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import Tensor
from tilegen.ops.base import Access, OpInstance, TileOp, kind

GIVEN = ("input", "weight", "state")  # roles of what a kernel is called with


@dataclass(frozen=True)
class Graph:
    """The ops of a plan in topological order, and their tensors."""

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[TileOp, ...]
    outputs: tuple[str, ...]

    @cached_property
    def _bounds(self) -> dict[str, OpInstance]:
        return {op.name: self._on_tensors(op) for op in self.ops}

    def _on_tensors(self, op: TileOp) -> OpInstance:
        if not op.pixels:
            return OpInstance(op, self.tensors)
        names = (*(o.tensor for o in op.operands), op.result)
        return OpInstance(op, {name: self.tensors[name].as_rows for name in names})

    def bound(self, op: TileOp) -> OpInstance:
        """The op on its tensors; the same object each time, since it keeps its maps."""
        kept = self._bounds.get(op.name)
        return kept if kept is not None and kept.op is op else self._on_tensors(op)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All dependences."""
        return derive(self)

    def op(self, name: str) -> TileOp:
        for op in self.ops:
            if op.name == name:
                return op
        raise PlanError(f"no op {name!r} in {self.name}; its ops are {', '.join(o.name for o in self.ops)}")

    def writers(self, tensor: str) -> tuple[TileOp, ...]:
        return tuple(op for op in self.ops if op.result == tensor)

    def readers(self, tensor: str) -> tuple[TileOp, ...]:
        """Ops that read a tensor's elements: not those that only write it in place."""
        return tuple(
            op
            for op in self.ops
            if any(
                o.tensor == tensor and not (n == 0 and kind(op.kind).in_place)
                for n, o in enumerate(op.operands)
            )
        )

    def ops_of(self, attributes: type[Attributes]) -> list[OpInstance]:
        """The ops that have such attributes."""
        return [self.bound(op) for op in self.ops if isinstance(op.attributes, attributes)]

    def consists_of(self, *attributes: type[Attributes]) -> bool:
        """Whether all ops have attributes of these types."""
        return all(isinstance(op.attributes, attributes) for op in self.ops)

    def alone(self, op: TileOp) -> Graph:
        """The graph of one op: what others write is an input of it, what it writes an output."""
        names = dict.fromkeys([*(o.tensor for o in op.operands), op.result])
        tensors = {name: _seen_from(op, self.tensors[name]) for name in names}
        outputs = tuple(n for n, t in tensors.items() if t.role == "output")
        return Graph(f"{self.name}_{op.name}", tensors, (op,), outputs)

    def with_op(self, old: str, *new: TileOp, tensors: Mapping[str, Tensor] | None = None) -> Graph:
        ops = tuple(n for op in self.ops for n in (new if op.name == old else (op,)))
        return replace(self, ops=ops, tensors={**self.tensors, **(tensors or {})})


def derive(graph: Graph) -> tuple[Edge, ...]:
    """All dependences of a graph, one per access of a tensor that an op writes, in op order."""
    maps = {op.name: write_map(graph.bound(op)) for op in graph.ops}
    edges = []
    for op in graph.ops:
        consumer = graph.bound(op)
        for access in consumer.reads:
            tensor, box, exact = consumer.tensor_box(access)
            for writer in graph.writers(tensor):
                if writer.name != op.name and not (access.before and kind(writer.kind).in_place):
                    edges.append(
                        edge(
                            graph.bound(writer),
                            consumer,
                            Access(access.operand, access.box, access.when, exact),
                            tensor,
                            box,
                            maps[writer.name],
                        )
                    )
    return tuple(edges)


def refuse_taken(graph: Graph, name: str, made: set[str]) -> None:
    """PlanError where a name that splitting an op makes is taken."""
    taken = made & ({o.name for o in graph.ops} | set(graph.tensors))
    if taken:
        raise PlanError(
            f"splitting {name!r} makes {', '.join(sorted(made))}; {', '.join(sorted(taken))} is taken",
            graph.op(name).where,
        )


def _seen_from(op: TileOp, t: Tensor) -> Tensor:
    """A tensor as the graph of one op alone has it."""
    t = t.as_rows if op.pixels else t
    if t.role == "state":
        return t
    return replace(t, role="output" if t.name == op.result else t.role if t.role in GIVEN else "input")
