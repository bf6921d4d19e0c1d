"""From what the user wrote to the ops of a plan.

    h = linear(x, w); y = gelu(h + b)   →   y = linear(x, w) with the epilogue gelu(acc0 + e0), e0 = b
    a, b = halves of linear(x, w); y = silu(a) * b   →   y = linear with two accumulators, silu(acc0) * acc1
    append(cache, rope(k))   →   an append that ropes its rows

wherever nothing else reads what goes between: the same maths on the same numbers, with no tensor between.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilegen.frontend.program import Call, Operand, Program
from tilegen.graph.graph import Graph
from tilegen.ops.append import AppendAttributes
from tilegen.ops.base import Epilogue, TileOp, kind
from tilegen.ops.gemm import LinearAttributes
from tilegen.ops.pointwise import PointwiseAttributes
from tilegen.ops.rope import RopeAttributes

ROPED = 16  # rows that an append turns on their way


@dataclass
class _Node:
    """A call on its way to a TileOp; `how` tells for each epilogue operand whether it is read by elements, by
    columns or by rows."""

    call: Call
    operands: list[Operand]
    result: str
    expression: str = ""
    extra: list[tuple[Operand, str]] | None = None  # epilogue operands e0, e1, …
    groups: int = 1

    @property
    def pointwise(self) -> bool:
        return isinstance(self.call.attributes, PointwiseAttributes)

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
    for node in [n for n in nodes if isinstance(n.call.attributes, AppendAttributes)]:
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
    if not isinstance(c.attributes, PointwiseAttributes):
        return _Node(c, list(c.operands), c.result, "acc0", [])
    extra: list[tuple[Operand, str]] = []
    names = {
        f"e{n}": fold(extra, (o, how))
        for n, (o, how) in enumerate(zip(c.operands, c.attributes.how, strict=True))
    }
    return _Node(c, [], c.result, renumber(c.attributes.expression, names), extra)


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
    node.expression, node.extra = tidy_expression(renumber(node.expression, names)), extra


def tidy_expression(expression: str) -> str:
    """Without needless parentheses: silu((acc0 + e0)) -> silu(acc0 + e0)."""
    return ast.unparse(ast.parse(expression, mode="eval"))


def _turn_append(nodes: list[_Node], node: _Node, kept: set[str]) -> None:
    """A rope that only an append at the same position reads is done by the append, unless it has so many rows
    that more tiles than the append's should share them: where those lie is known at run time only, so that
    the append cannot be cut by rows."""
    append = AppendAttributes.of(node.call)
    _, x, *position = node.operands
    few = isinstance(append.seq, int) and append.seq <= ROPED
    maker = next((m for m in nodes if m.result == x.tensor), None)
    if maker is None or not isinstance(maker.call.attributes, RopeAttributes) or not few or not position:
        return
    turned, *at = maker.operands
    if at != position or x.columns or not _only_reader(nodes, x.tensor, node, kept):
        return
    rope = maker.call.attributes
    node.operands[1] = turned
    attributes = replace(append, head_dim=rope.head_dim, theta=rope.theta)
    node.call = replace(node.call, attributes=attributes)
    nodes.remove(maker)


@dataclass(frozen=True)
class _Anchor:
    node: _Node
    accumulators: Mapping[str, str]  # operand of the pointwise op -> acc0, acc1


def _find_anchor(program: Program, nodes: list[_Node], node: _Node, kept: set[str]) -> _Anchor | None:
    """The last producer whose result only this op reads: whole, or as the two halves of a linear's
    columns."""
    assert node.extra is not None
    # what no product's epilogue reads
    otherwise = any(how == "images" for _, how in node.extra)
    for maker in reversed(nodes[: nodes.index(node)]):
        if (
            maker.pointwise
            or not kind(maker.call.kind).fusable
            or (otherwise and kind(maker.call.kind).mma)
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
            isinstance(maker.call.attributes, LinearAttributes)
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
    for acc in sorted(set(anchor.accumulators.values())):
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
    maker.expression, maker.extra = tidy_expression(renumber(node.expression, replaced)), extra
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
    attributes = c.attributes
    if node.pointwise:
        attributes = PointwiseAttributes()  # its maths is its epilogue's
    elif isinstance(attributes, LinearAttributes):
        attributes = replace(attributes, groups=node.groups)
    epilogue = None
    if kind(c.kind).fusable or node.pointwise:
        first = len(node.operands)
        epilogue = Epilogue(node.expression, tuple((first + n, how) for n, (_, how) in enumerate(extra)))
    operands = tuple(node.all_operands)
    return TileOp(c.name, c.kind, operands, node.result, attributes, epilogue, where=c.where)
