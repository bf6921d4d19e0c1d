"""A graph with its regions as calls, and what was kept for regions and is in none as Inductor has it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.inductor_prims import force_stride_order
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tilegen.backend import sizes, words
from tilegen.backend.gain import Gain
from tilegen.backend.region import Region
from tilegen.frontend.program import Program

aten = torch.ops.aten
Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class Candidate:
    """nodes, in the graph's order. given: what they take, and whether it is static. results: those of them
    that others read. text, program: of the region. paid: by the model."""

    nodes: tuple[Node, ...]
    given: dict[Node, bool]
    results: tuple[Node, ...]
    text: str
    program: Program
    paid: Gain


def replaced(
    graph: Graph,
    candidate: Candidate,
    table: Decompositions,
    became: Mapping[Node, Node],
    inside: Container[Node],
) -> dict[Node, Node]:
    """Nodes → one call of the operator, and views that give its results the shapes of theirs: these.
    became: results of candidates before, some of which this one takes; inside: nodes of any candidate."""
    region = Region.of(candidate.text)
    names, found = [g.name for g in region.subgraph.given], dict[Node, Node]()
    with graph.inserting_after(candidate.nodes[-1]):
        end = graph.call_function(operator.getitem, ((), 0))  # a place; gone below
    with graph.inserting_before(end):
        arguments = []
        for name, node in zip(names, candidate.given, strict=True):
            node = became.get(node, node)
            how = region.spec.taken.get(name)  # none of a weight
            arguments.append(node if how is None else _inlined(graph, how.of, [node], table))
        call = called(graph, torch.ops.tilegen.region.default, (candidate.text, arguments))
        made = [called(graph, operator.getitem, (call, n)) for n in range(len(region.program.outputs))]
        for node, returned in zip(candidate.results, region.spec.returned, strict=True):
            new = _inlined(graph, lambda *given, r=returned: r.of(given), made, table)
            new = _laid_out(graph, new, node, table, inside)
            new.meta = {**node.meta, "val": new.meta["val"]}
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in candidate.nodes)
            found[node] = new
    graph.erase_node(end)
    for node in reversed(candidate.nodes):
        if not node.users:
            graph.erase_node(node)
    return found


def _laid_out(graph: Graph, new: Node, node: Node, table: Decompositions, inside: Container[Node]) -> Node:
    """A result in the order of dimensions that it has in the graph, where that is seen: the model returns it,
    or what lies as it does, of which views would else be copies, or reads it by places in memory."""
    wanted = node.meta["val"].stride()
    if sizes.alike(new.meta["val"].stride(), wanted):
        return new
    if not words.lays_out_results(node, inside) and not words.read_by_places(node):
        return new
    if all(isinstance(n, int) for n in wanted):
        return called(graph, force_stride_order, (new, wanted))
    order = sorted(range(len(wanted)), key=lambda d: -sizes.hint(wanted[d]))
    back = [order.index(d) for d in range(len(order))]
    return _inlined(graph, lambda a: a.permute(order).contiguous().permute(back), [new], table)


def called(graph: Graph, target: Any, args: tuple[Any, ...], **kwargs: Any) -> Node:
    """A call, and its value."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    mode = next(v.fake_mode for v in pytree.tree_leaves(values) if hasattr(v, "fake_mode"))
    with mode:
        node.meta["val"] = target(*values, **kwargs)
    return node


def unstrided(graph: Graph) -> None:
    """as_strided that has each element of its input at its place, such as after a pool → its input."""
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        x, sizes, strides, *offset = node.args
        value = x.meta["val"]
        moves = any(not isinstance(n, int) for n in (*value.shape, *value.stride(), *sizes, *strides))
        if moves or list(value.shape) != list(sizes) or offset not in ([], [None], [value.storage_offset()]):
            continue
        if all(a == b for n, a, b in zip(sizes, value.stride(), strides, strict=True) if n > 1):
            node.replace_all_uses_with(x)
            graph.erase_node(node)


def unpadded(graph: Graph) -> None:
    """Pads of no places, as models of windows have where these fit → their input."""
    for node in graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default):
        if not any(node.args[1]):
            with graph.inserting_before(node):
                new = graph.call_function(aten.clone.default, (node.args[0],))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def decomposed(graph: Graph, table: Decompositions) -> None:
    """What was kept for regions and is in none → what Inductor makes of it."""
    for node in list(graph.nodes):
        if node.target not in words.KEPT or node.target not in table:
            continue
        tensors, apart = _on_tensors(node, table[node.target])
        values = [n.meta["val"] for n in tensors]
        with values[0].fake_mode:
            if apart(*values) is NotImplemented:  # Inductor has a kernel for it
                continue
        with graph.inserting_before(node):
            new = _inlined(graph, apart, tensors, table, node.meta)
        if isinstance(new, (list, tuple)):
            for user in list(node.users):
                user.replace_all_uses_with(new[user.args[1]])
                graph.erase_node(user)
        else:
            node.replace_all_uses_with(new)
        graph.erase_node(node)


def _on_tensors(node: Node, function: Callable[..., Any]) -> tuple[list[Node], Callable[..., Any]]:
    """The nodes of a call's arguments, and a function on those alone."""
    tensors = list(node.all_input_nodes)
    number = {n: k for k, n in enumerate(tensors)}

    def run(*values: Any) -> Any:
        args, kwargs = pytree.tree_map_only(
            Node, lambda n: values[number[n]], (tuple(node.args), dict(node.kwargs))
        )
        made = function(*args, **kwargs)
        return list(made) if isinstance(made, (list, tuple)) else made

    return tensors, run


def _inlined(
    graph: Graph,
    function: Callable[..., Any],
    nodes: Sequence[Node],
    table: Decompositions,
    meta: Mapping[str, Any] | None = None,
) -> Any:
    """A function of nodes as nodes of the graph. meta: what Inductor knows the node by that it stands for."""
    values = [n.meta["val"] for n in nodes]
    with values[0].fake_mode:
        traced = make_fx(lambda *given: function(*given), table)(*values)  # whose arguments make_fx counts
    copies = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), nodes, strict=True))
    new = graph.graph_copy(traced.graph, copies)
    for inner, copy in copies.items():
        if inner.op == "call_function":
            copy.meta = {**(meta or {}), **inner.meta}
    return new
