"""Regions of a joint graph as operators.

    nodes that a region may hold (words) ─ partition ─▶ candidates ─ program, cost ─▶ torch.ops.tilegen.region

A candidate that no spec can say loses the node that the error names, and is partitioned anew. What stays is
Inductor's, taken apart as it would have been.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters, get_static_address_type
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tilegen import __version__, config
from tilegen.backend import masks, words
from tilegen.backend.gain import Gain, gain
from tilegen.backend.region import Region
from tilegen.backend.subgraph import text_of
from tilegen.errors import TilegenError
from tilegen.nn import patterns
from tilegen.nn.adapter import Layout, Returned
from tilegen.nn.aten import VIEWS
from tilegen.nn.importer import NodeError

log = logging.getLogger("tilegen")
aten, prims = torch.ops.aten, torch.ops.prims
Pass = Callable[[Graph], None]


class JointPass(CustomGraphPass):
    """before: a pass of the user's, which is run first. decompositions: how Inductor takes operators apart.
    inputs: of the graph that Dynamo has traced."""

    def __init__(
        self,
        before: Pass | None,
        decompositions: Mapping[Any, Callable[..., Any]],
        inputs: Sequence[Input],
    ):
        self.before, self.decompositions, self.inputs = before, decompositions, inputs

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        masks.as_flags(graph)
        for candidate in _regions(graph, self.inputs):
            _replaced(graph, candidate)
        stable_topological_sort(graph)
        _decomposed(graph, self.decompositions)
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> Any:
        """What Inductor's cache knows this pass by; None, which keeps nothing, beside a pass without one."""
        own = ("tilegen", __version__, config.min_gain)
        if self.before is None:
            return own
        theirs = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        return None if theirs is None else (*own, theirs)


# --- which nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """nodes, in the graph's order. given: what they take, and whether it is static. results: those of them
    that others read."""

    nodes: tuple[Node, ...]
    given: dict[Node, bool]
    results: tuple[Node, ...]
    text: str


def _regions(graph: Graph, inputs: Sequence[Input]) -> list[Candidate]:
    """Those of a graph that pay."""
    static, tangible = _static(graph, inputs), _of_tangents(graph)
    reasons = {n: words.reason(n) for n in graph.nodes}
    for node in graph.nodes:  # what a pattern stands for computes in float32 as it did
        if inside := patterns.within(node):
            reasons.update(dict.fromkeys((n for n in inside if "computes in float32" in reasons[n]), ""))
    for node in graph.nodes:
        if words.narrows(node) and (why := reasons[node.all_input_nodes[0]]):
            reasons[node] = f"a cast of what is left: {why}"
    reasons.update(dict.fromkeys(tangible, "of a gradient"))
    reasons.update(dict.fromkeys(static, "of weights alone"))
    found: dict[tuple[Node, ...], Candidate | str] = {}
    while True:
        allowed = {n for n, reason in reasons.items() if not reason}
        parts = [_trimmed(part) for part in _partition(graph, allowed)]
        for part in parts:
            if part and part not in found:
                found[part] = _candidate(part, static, reasons)
        if all(reasons[n] == "" for part in parts for n in part):
            break
    taken = [c for part in parts if part and isinstance(c := found[part], Candidate)]
    _count(taken, reasons, [c for part in parts if part and isinstance(c := found[part], str)])
    return taken


@dataclass(frozen=True)
class Input:
    """What torch.compile gives a graph. rank: of a tensor. static: a parameter or a buffer."""

    rank: int | None
    static: bool

    @staticmethod
    def of(given: Any) -> Input:
        static = isinstance(given, torch.nn.Parameter) or get_static_address_type(given) is not None
        return Input(_rank(given), static)


def _rank(given: Any) -> int | None:
    return given.dim() if isinstance(given, torch.Tensor) else None


def _static(graph: Graph, inputs: Sequence[Input]) -> set[Node]:
    """Tensors that are the same at each call, and views and casts of those. None where the graph does not
    take what was given, one by one."""
    places = [n for n in graph.nodes if n.op == "placeholder" and not n.name.startswith("tangents")]
    known = [_rank(n.meta.get("val")) for n in places] == [given.rank for given in inputs]
    found = {n for n, given in zip(places, inputs, strict=False) if known and given.static}
    for node in graph.nodes:
        given = node.all_input_nodes
        if node.op == "call_function" and node.target in VIEWS and given and found.issuperset(given):
            found.add(node)
    return found


def _of_tangents(graph: Graph) -> set[Node]:
    """What depends on a gradient: a backward pass."""
    found: set[Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder" and node.name.startswith("tangents")
        if given or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


class _Support(OperatorSupportBase):
    def __init__(self, allowed: set[Node]):
        self.allowed = allowed

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node in self.allowed


def _partition(graph: Graph, allowed: set[Node]) -> list[tuple[Node, ...]]:
    """Nodes as parts that can each be one call, in the graph's order."""
    module = graph.owning_module or GraphModule(torch.nn.Module(), graph)
    order = {n: k for k, n in enumerate(graph.nodes)}
    found = CapabilityBasedPartitioner(
        module, _Support(allowed), allows_single_node_partition=True
    ).propose_partitions()
    return [tuple(sorted(p.nodes, key=order.__getitem__)) for p in found]


def _trimmed(part: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without views at the end, and without what nothing is computed of."""
    inside = set(part)
    for node in reversed(part):
        view = not words.computes(node) and node.target is not operator.getitem
        if view and inside.isdisjoint(node.users):
            inside.remove(node)
    return tuple(n for n in part if n in inside) if any(map(words.computes, inside)) else ()


def _candidate(part: tuple[Node, ...], static: set[Node], reasons: dict[Node, str]) -> Candidate | str:
    """As an operator; or why not: a node that no spec can say gets its reason."""
    inside = set(part)
    given: dict[Node, bool] = {}
    weights: list[Node] = []

    def take(node: Node) -> None:
        """From outside: of weights what they are made of."""
        if node in static and node.op == "call_function":
            for n in node.all_input_nodes:
                take(n)
            if node not in weights:
                weights.append(node)
        else:
            given.setdefault(node, node in static)

    for node in part:
        for n in node.all_input_nodes:
            if n not in inside:
                take(n)
    results = tuple(n for n in part if not inside.issuperset(n.users) and _is_tensor(n))
    nodes = (*weights, *part)
    text = text_of(nodes, given, results)
    names = {f"v{k}": n for k, n in enumerate((*given, *nodes))}
    try:
        region = Region.of(text)
        paid = gain(region.program, results[0].meta["val"].device)
        if paid.ratio < config.min_gain:
            return str(paid)
        region.kernel(results[0].meta["val"].device)
    except NodeError as error:
        at = names[error.node.meta["at"]] if "at" in error.node.meta else part[-1]
        reasons[at if at in inside else part[-1]] = str(error)
        return str(error)
    except (TilegenError, DataDependentOutputException) as error:
        return f"{type(error).__name__}: {error}"
    _tell(region, paid)
    return Candidate(nodes, given, results, text)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


# --- what is said -------------------------------------------------------------------------------------------


def _tell(region: Region, paid: Gain) -> None:
    log.info("a region of %d ops: %s", len(region.program.calls), paid)


def _count(taken: Sequence[Candidate], reasons: Mapping[Node, str], dropped: Sequence[str]) -> None:
    """In torch._dynamo.utils.counters["tilegen"], and once each in the log."""
    said = counters["tilegen"]
    said["regions"] += len(taken)
    said["ops"] += sum(words.computes(n) for c in taken for n in c.nodes)
    left = Counter([*(r for n, r in reasons.items() if r and words.computes(n)), *dropped])
    for reason, times in sorted(left.items()):
        said[f"left: {reason}"] += times
        log.info("left to Inductor, %d times: %s", times, reason)


# --- the graph ----------------------------------------------------------------------------------------------


def _replaced(graph: Graph, candidate: Candidate) -> None:
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


def _decomposed(graph: Graph, table: Mapping[Any, Callable[..., Any]]) -> None:
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
            new: Any = graph.graph_copy(traced.graph, places)  # type: ignore[arg-type]
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
    number = {n: _Place(k) for k, n in enumerate(tensors)}
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
