"""From what the user wrote to the ops of a plan: pointwise maths folded into epilogues, gated pairs, split
sums."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilegen.analysis.dependence import Edge, edge, write_map
from tilegen.errors import PlanError
from tilegen.frontend.spec import Call, Operand, Program, Tensor
from tilegen.ops.attention import STATE
from tilegen.ops.base import Access, Bound, Epilogue, TileOp, ceil_div, kind
from tilegen.ops.gemm import normed

TURNED = 16  # rows that an append turns on their way


@dataclass(frozen=True)
class Graph:
    """The ops of a plan in topological order, and their tensors."""

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[TileOp, ...]
    outputs: tuple[str, ...]

    @cached_property
    def _bounds(self) -> dict[str, Bound]:
        return {op.name: Bound(op, self.tensors) for op in self.ops}

    def bound(self, op: TileOp) -> Bound:
        """The op on its tensors; the same object each time, since it keeps its maps."""
        kept = self._bounds.get(op.name)
        return kept if kept is not None and kept.op is op else Bound(op, self.tensors)

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
        """Ops that read a tensor's elements (an append only writes its cache)."""
        return tuple(
            op
            for op in self.ops
            if any(
                o.tensor == tensor for n, o in enumerate(op.operands) if not (op.kind == "append" and n == 0)
            )
        )

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
                if writer.name != op.name and not (access.before and writer.kind == "append"):
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


@dataclass
class _Node:
    """A call on its way to a TileOp; `how` tells for each epilogue operand whether it is read by elements or
    by columns."""

    call: Call
    operands: list[Operand]
    result: str
    expression: str = ""
    extra: list[tuple[Operand, str]] | None = None  # epilogue operands e0, e1, …
    groups: int = 1

    @property
    def pointwise(self) -> bool:
        return self.call.kind == "pointwise"

    @property
    def all_operands(self) -> list[Operand]:
        return [*self.operands, *(o for o, _ in self.extra or [])]


def renumber(expression: str, names: Mapping[str, str]) -> str:
    """The expression with e_n and acc_n replaced, all at once."""
    return re.sub(r"\b(e\d+|acc\d+)\b", lambda m: names.get(m[1], m[1]), expression)


def fold(extra: list[tuple[Operand, str]], new: tuple[Operand, str]) -> str:
    """The name of an epilogue operand, added unless it is there already."""
    if new not in extra:
        extra.append(new)
    return f"e{extra.index(new)}"


def fuse(program: Program) -> Graph:
    """Program -> Graph: each pointwise op joins the pointwise op or the producer that nothing else reads,
    else stands alone; a rope joins its append."""
    nodes = [_node(c) for c in program.calls]
    kept = set(program.outputs)
    for node in [n for n in nodes if n.call.kind == "append"]:
        _turn_append(nodes, node, kept)
    for node in [n for n in nodes if n.pointwise]:
        _inline_pointwise(nodes, node, kept)
    names: dict[str, str] = {}
    for node in [n for n in nodes if n.pointwise]:
        anchor = _find_anchor(program, nodes, node, kept)
        if anchor is not None:
            _attach(program, nodes, node, anchor, names)
    tensors = {t.name: t for t in program.tensors}
    ops = []
    for node in nodes:
        op = _tile_op(node)
        ops.append(
            replace(
                op,
                result=names.get(op.result, op.result),
                operands=tuple(_renamed(o, names) for o in op.operands),
            )
        )
    used = {t for op in ops for t in (op.result, *(o.tensor for o in op.operands))}
    final = {
        names.get(name, name): replace(t, name=names.get(name, name))
        for name, t in tensors.items()
        if names.get(name, name) in used
    }
    for old, new in names.items():  # the result keeps the epilogue's shape and role under the producer's name
        final[new] = replace(tensors[old], name=new)
    return Graph(program.name, final, tuple(ops), tuple(names.get(o, o) for o in program.outputs))


def _renamed(operand: Operand, names: Mapping[str, str]) -> Operand:
    return replace(operand, tensor=names.get(operand.tensor, operand.tensor))


def _node(c: Call) -> _Node:
    if c.kind != "pointwise":
        return _Node(c, list(c.operands), c.result, "acc0", [])
    attributes = dict(c.attributes)
    extra: list[tuple[Operand, str]] = []
    names = {
        f"e{n}": fold(extra, (o, how))
        for n, (o, how) in enumerate(zip(c.operands, attributes["how"], strict=True))
    }
    return _Node(c, [], c.result, renumber(attributes["expression"], names), extra)


def _only_reader(nodes: list[_Node], tensor: str, reader: _Node, kept: set[str]) -> bool:
    return tensor not in kept and all(
        n is reader or all(o.tensor != tensor for o in n.all_operands) for n in nodes
    )


def _inline_pointwise(nodes: list[_Node], node: _Node, kept: set[str]) -> None:
    """Replace operands made by pointwise ops that only this op reads by their expressions."""
    assert node.extra is not None
    extra: list[tuple[Operand, str]] = []
    names = {}
    before = list(nodes)  # an operand also read by a maker that is inlined here stays a tensor
    for n, (operand, how) in enumerate(node.extra):
        maker = next((m for m in nodes if m.result == operand.tensor and m.pointwise), None)
        whole = operand.columns is None and not operand.flatten and how == "elements"
        if maker is None or not whole or not _only_reader(before, operand.tensor, node, kept):
            names[f"e{n}"] = fold(extra, (operand, how))
            continue
        inner = {f"e{i}": fold(extra, item) for i, item in enumerate(maker.extra or [])}
        names[f"e{n}"] = f"({renumber(maker.expression, inner)})"
        nodes.remove(maker)
    node.expression, node.extra = _tidy(renumber(node.expression, names)), extra


def _tidy(expression: str) -> str:
    """Without needless parentheses: silu((acc0 + e0)) -> silu(acc0 + e0)."""
    return ast.unparse(ast.parse(expression, mode="eval"))


def _turn_append(nodes: list[_Node], node: _Node, kept: set[str]) -> None:
    """A rope that only an append at the same position reads is done by the append, unless it has so many rows
    that more tiles than the append's should share
    them: where those lie is known at run time only, so that the append cannot be cut by rows."""
    x, *position = node.operands[1:]
    maker = next((m for m in nodes if m.result == x.tensor and m.call.kind == "rope"), None)
    few = isinstance(dict(node.call.attributes)["seq"], int) and dict(node.call.attributes)["seq"] <= TURNED
    if (
        maker is None
        or not few
        or not position
        or maker.operands[1:] != position
        or x.columns
        or not _only_reader(nodes, x.tensor, node, kept)
    ):
        return
    node.operands[1] = maker.operands[0]
    turn = {key: value for key, value in maker.call.attributes if key in ("head_dim", "theta")}
    node.call = replace(node.call, attributes=with_attributes(node.call.attributes, **turn))
    nodes.remove(maker)


@dataclass(frozen=True)
class _Anchor:
    node: _Node
    accumulators: Mapping[str, str]  # operand of the pointwise op -> acc0, acc1


def _find_anchor(program: Program, nodes: list[_Node], node: _Node, kept: set[str]) -> _Anchor | None:
    """The last producer whose result only this op reads: whole, or as the two halves of a linear's
    columns."""
    assert node.extra is not None
    for maker in reversed(nodes[: nodes.index(node)]):
        if (
            maker.pointwise
            or not kind(maker.call.kind).fusable
            or not _only_reader(nodes, maker.result, node, kept)
        ):
            continue
        reads = {
            f"e{n}": o
            for n, (o, how) in enumerate(node.extra)
            if o.tensor == maker.result and how == "elements" and not o.flatten
        }
        if len(reads) != sum(o.tensor == maker.result for o, _ in node.extra):
            continue
        columns = [o.columns for o in reads.values()]
        if columns == [None]:
            return _Anchor(maker, dict.fromkeys(reads, "acc0"))
        width = program.tensor(maker.call.result).plan_shape[-1]
        halves: list[Any] = [(0, width // 2), (width // 2, width)]
        vectors_only = all(how == "columns" for _, how in maker.extra or [])
        if (
            maker.call.kind == "linear"
            and maker.groups == 1
            and sorted(columns, key=str) == sorted(halves, key=str)
            and vectors_only
        ):
            return _Anchor(maker, {name: f"acc{halves.index(o.columns)}" for name, o in reads.items()})
    return None


def _attach(
    program: Program, nodes: list[_Node], node: _Node, anchor: _Anchor, names: dict[str, str]
) -> None:
    """Make the pointwise op the epilogue of its anchor, which moves to where the pointwise op stood."""
    maker = anchor.node
    assert node.extra is not None and maker.extra is not None
    gated = set(anchor.accumulators.values()) != {"acc0"}
    extra: list[tuple[Operand, str]] = []
    inner = {}
    for acc in set(anchor.accumulators.values()):
        group = int(acc[3:])
        own = {
            f"e{i}": fold(extra, (_half(program, o, group) if gated else o, how))
            for i, (o, how) in enumerate(maker.extra)
        }
        made = renumber(maker.expression, {**own, "acc0": acc})
        inner[acc] = made if made == acc else f"({made})"
    replaced = {name: inner[acc] for name, acc in anchor.accumulators.items()}
    for n, (operand, how) in enumerate(node.extra):
        if f"e{n}" not in replaced:
            replaced[f"e{n}"] = fold(extra, (operand, how))
    maker.expression, maker.extra = _tidy(renumber(node.expression, replaced)), extra
    maker.groups = 2 if gated else maker.groups
    maker.result = node.result
    if not node.call.named:
        names[node.result] = maker.call.name
    nodes.remove(maker)
    nodes[nodes.index(node)] = maker


def _half(program: Program, vector: Operand, group: int) -> Operand:
    """Half `group` of a vector that spans both halves of a gated pair."""
    lo, hi = vector.columns or (0, program.tensor(vector.tensor).shape[-1])
    middle = (lo + hi) // 2
    return replace(vector, columns=(lo, middle) if group == 0 else (middle, hi))


def _tile_op(node: _Node) -> TileOp:
    c = node.call
    extra = node.extra or []
    attributes = dict(c.attributes)
    if node.pointwise:
        attributes = {}
    if c.kind == "linear":
        attributes["groups"] = node.groups
    epilogue = None
    if kind(c.kind).fusable or node.pointwise:
        first = len(node.operands)
        epilogue = Epilogue(node.expression, tuple((first + n, how) for n, (_, how) in enumerate(extra)))
    return TileOp(
        c.name,
        c.kind,
        tuple(node.all_operands),
        node.result,
        tuple(sorted(attributes.items())),
        epilogue,
        where=c.where,
    )


def split(graph: Graph, name: str, shares: int) -> Graph:
    """An op's sum split into shares: a linear's over K, an attention's over the keys of its caches."""
    return (
        split_keys(graph, name, shares)
        if graph.op(name).kind == "attention"
        else split_sum(graph, name, shares)
    )


def split_keys(graph: Graph, name: str, shares: int) -> Graph:
    """An attention over caches as NAME_shares, which writes NAME_partial in float32, a share of the keys
    below the other, and NAME, which combines them."""
    op = graph.op(name)
    b = graph.bound(op)
    if len(op.operands) < 4 or any(key == "shares" for key, _ in op.attributes):
        raise PlanError(
            f"only a whole attention over caches (at=…) can be split over its keys, {name!r} is none",
            op.where,
        )
    steps = ceil_div(b.k_len, op.tile[1])
    if not isinstance(shares, int) or not 2 <= shares <= steps:
        raise PlanError(
            f"{name!r} has {steps} blocks of {op.tile[1]} keys, which do not split into {shares} shares",
            op.where,
        )
    partial = f"{name}_partial"
    _refuse_taken(graph, name, names_of_shares(name))
    rows = b.batch * b.q_len
    tensor = Tensor(
        partial, (shares * rows, b.heads * (b.head_dim + STATE)), "float32", "partial", op.where, "rows"
    )
    parts = replace(
        op, name=f"{name}_shares", result=partial, attributes=with_attributes(op.attributes, shares=shares)
    )
    attributes = {"shares": shares, "heads": b.heads, "head_dim": b.head_dim}
    whole = replace(
        op,
        kind="combine",
        operands=(Operand(partial),),
        attributes=tuple(sorted(attributes.items())),
        tile=(),
    )
    return graph.with_op(name, parts, whole, tensors={partial: tensor})


def names_of_shares(name: str) -> set[str]:
    """The op and the tensor that a split of attention `name` makes."""
    return {f"{name}_shares", f"{name}_partial"}


def _refuse_taken(graph: Graph, name: str, made: set[str]) -> None:
    taken = made & ({o.name for o in graph.ops} | set(graph.tensors))
    if taken:
        raise PlanError(
            f"splitting {name!r} makes {', '.join(sorted(made))}; {', '.join(sorted(taken))} is taken",
            graph.op(name).where,
        )


def split_sum(graph: Graph, name: str, shares: int) -> Graph:
    """Split a linear's sum over K into `shares`: all but the last become ops of their own that write
    `partial` tensors in float32.

    y = epilogue(((Σ_last + p0) + p1) + …): a fixed order, so results are bit-stable. The finishing op has the
    highest rank.
    """
    op = graph.op(name)
    b = graph.bound(op)
    if op.kind != "linear" or any(key == "k_range" for key, _ in op.attributes):
        raise PlanError(f"only a whole linear can be split over K, {name!r} is {op.kind}", op.where)
    if normed(b):
        raise PlanError(
            f"{name!r} norms its rows, so its sum cannot be split over K; fold no norm into it"
            " (norms='rows')",
            op.where,
        )
    k, tk = b.shape(0)[1], op.tile[2]
    chunks = ceil_div(k, tk)
    if not isinstance(shares, int) or not 2 <= shares <= chunks:
        raise PlanError(
            f"{name!r} has {chunks} chunks of {tk}, which do not split into {shares} shares", op.where
        )
    made = {f"{name}_{what}{s}" for s in range(shares - 1) for what in ("k", "partial")}
    _refuse_taken(graph, name, made)
    cuts = [min(k, chunks * s // shares * tk) for s in range(shares + 1)]
    rows, n = b.out
    groups, epilogue = b.groups, op.epilogue or Epilogue()
    partials, tensors, extra = [], {}, []
    expression = epilogue.expression
    for s in range(shares - 1):
        partial = Tensor(f"{name}_partial{s}", (rows, groups * n), "float32", "partial", op.where, "rows")
        tensors[partial.name] = partial
        partials.append(
            replace(
                op,
                name=f"{name}_k{s}",
                operands=op.operands[:2],
                result=partial.name,
                epilogue=Epilogue(),
                attributes=with_attributes(op.attributes, groups=1, k_range=(cuts[s], cuts[s + 1])),
                tile=(op.tile[0], op.tile[1] * groups, tk),
            )
        )
    for g in range(groups):
        total = f"acc{g}"
        for partial_op in partials:
            operand = Operand(partial_op.result, (g * n, g * n + n) if groups > 1 else None)
            extra.append(operand)
            total = f"({total} + e{len(epilogue.operands) + len(extra) - 1})"
        expression = _tidy(renumber(expression, {f"acc{g}": total}))
    first = len(op.operands)
    joined = Epilogue(expression, (*epilogue.operands, *((first + i, "elements") for i in range(len(extra)))))
    last = replace(
        op,
        operands=(*op.operands, *extra),
        epilogue=joined,
        attributes=with_attributes(op.attributes, k_range=(cuts[-2], k)),
    )
    return graph.with_op(name, *partials, last, tensors=tensors)


def with_attributes(attributes: tuple[tuple[str, Any], ...], **more: Any) -> tuple[tuple[str, Any], ...]:
    """Attributes of an op, some added or replaced."""
    return tuple(sorted({**dict(attributes), **more}.items()))
