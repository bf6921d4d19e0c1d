"""A graph with its regions as calls, and what was kept for regions and is in none as Inductor has it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tilegen.backend import words
from tilegen.backend.region import Region
from tilegen.nn.adapter import Layout, Returned
from tilegen.nn.aten import VIEWS

aten, prims = torch.ops.aten, torch.ops.prims


@dataclass(frozen=True)
class Candidate:
    """nodes, in the graph's order. given: what they take, and whether it is static. results: those of them
    that others read."""

    nodes: tuple[Node, ...]
    given: dict[Node, bool]
    results: tuple[Node, ...]
    text: str


def replaced(graph: Graph, candidate: Candidate) -> None:
    """Nodes → one call of the operator, and views that give its results the shapes of theirs."""
    region = Region.of(candidate.text)
    names = [g.name for g in region.subgraph.given]
    with graph.inserting_after(candidate.nodes[-1]):
        end = graph.call_function(operator.getitem, ((), 0))  # a place; gone below
    with graph.inserting_before(end):
        arguments = []
        for name, node in zip(names, candidate.given, strict=True):
            arguments.append(_taken(graph, node, region.spec.taken.get(name)))
        call = _called(graph, torch.ops.tilegen.region.default, (candidate.text, arguments))
        made = [_called(graph, operator.getitem, (call, n)) for n in range(len(region.program.outputs))]
        for node, returned in zip(candidate.results, region.spec.returned, strict=True):
            new = _laid_out(graph, _returned(graph, made, returned), node)
            new.meta = {**node.meta, "val": new.meta["val"]}
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in candidate.nodes)
    graph.erase_node(end)
    for node in reversed(candidate.nodes):
        if not node.users:
            graph.erase_node(node)


def _taken(graph: Graph, node: Node, how: Layout | None) -> Node:
    """A tensor as the operator takes it."""
    if how is None:  # a weight
        return node
    if node.meta["val"].dtype is torch.int64:
        node = _called(graph, prims.convert_element_type.default, (node, torch.int32))
    if how.order is not None:
        node = _called(graph, aten.permute.default, (node, list(how.order)))
    if how.dropped:
        node = _called(graph, aten.squeeze.dims, (node, list(how.dropped)))
    if not node.meta["val"].is_contiguous():
        node = _called(graph, aten.clone.default, (node,), memory_format=torch.contiguous_format)
    return node


def _returned(graph: Graph, made: Sequence[Node], returned: Returned) -> Node:
    """A result of the model, from those of the operator."""
    assert returned.number is not None
    node = made[returned.number]
    if returned.dtype is not None:
        node = _called(graph, prims.convert_element_type.default, (node, returned.dtype))
    if returned.pieces is None:
        return node
    node = _called(graph, aten.view.default, (node, list(returned.pieces)))
    node = _called(graph, aten.permute.default, (node, list(returned.order)))
    return _called(graph, aten.reshape.default, (node, list(returned.shape)))


def _laid_out(graph: Graph, new: Node, node: Node) -> Node:
    """A result that the model returns, in the order of dimensions that it has there."""
    formats = (torch.contiguous_format, torch.channels_last)
    value, wanted = new.meta["val"], node.meta["val"]
    known = [f for f in formats if value.dim() == 4 and wanted.is_contiguous(memory_format=f)]
    if not known or value.stride() == wanted.stride() or not _leaves(node):
        return new
    return _called(graph, aten.clone.default, (new,), memory_format=known[0])


def _leaves(node: Node) -> bool:
    """Whether the graph returns a node or a view of it."""
    return any(u.op == "output" or (u.target in VIEWS and _leaves(u)) for u in node.users)


def _called(graph: Graph, target: Any, args: tuple[Any, ...], **kwargs: Any) -> Node:
    """A call, and its value."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    mode = next(v.fake_mode for v in torch.utils._pytree.tree_leaves(values) if hasattr(v, "fake_mode"))
    with mode:
        node.meta["val"] = target(*values, **kwargs)
    return node


def decomposed(graph: Graph, table: Mapping[Any, Callable[..., Any]]) -> None:
    """What was kept for regions and is in none → what Inductor makes of it."""
    for node in list(graph.nodes):
        if node.target not in words.KEPT or node.target not in table:
            continue
        tensors, args, kwargs = _apart(node)
        values, apart = [n.meta["val"] for n in tensors], _on_tensors(table[node.target], args, kwargs)
        with values[0].fake_mode:
            if apart(*values) is NotImplemented:  # Inductor has a kernel for it
                continue
            traced = make_fx(apart, table)(*values)
        with graph.inserting_before(node):
            places = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), tensors, strict=True))
            new: Any = graph.graph_copy(traced.graph, places)
        _inherit(node, places)
        if isinstance(new, (list, tuple)):
            for user in list(node.users):
                user.replace_all_uses_with(new[user.args[1]])
                graph.erase_node(user)
        else:
            node.replace_all_uses_with(new)
        graph.erase_node(node)


def _apart(node: Node) -> tuple[list[Node], Any, Any]:
    """The nodes of a call's arguments, and the arguments with numbers in their places."""
    tensors = list(node.all_input_nodes)
    number: dict[Node, Any] = {n: _Place(k) for k, n in enumerate(tensors)}
    args, kwargs = (torch.fx.node.map_arg(a, number.__getitem__) for a in (node.args, node.kwargs))
    return tensors, args, kwargs


@dataclass(frozen=True)
class _Place:
    """An argument that is the tensor of this number."""

    number: int


def _on_tensors(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
    def run(*tensors: Any) -> Any:
        given = torch.utils._pytree.tree_map_only(_Place, lambda p: tensors[p.number], (args, kwargs))
        made = function(*given[0], **given[1])
        return list(made) if isinstance(made, (list, tuple)) else made

    return run


def _inherit(node: Node, copies: Mapping[Node, Any]) -> None:
    """What Inductor knows a node by, for those that it was taken apart into."""
    for inner, copy in copies.items():
        if inner.op == "call_function":
            copy.meta = {**node.meta, **inner.meta}
