"""Regions of a joint graph as operators.

    nodes that a region may hold (words) ─ partition ─▶ candidates ─ program, cost ─▶ torch.ops.tilegen.region

A candidate that no spec can say loses the node that the error names, and is partitioned anew. What stays is
Inductor's, taken apart as it would have been.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters, get_static_address_type
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree

from tilegen import __version__, config
from tilegen.backend import masks, sizes, spelled, thin_masks, words
from tilegen.backend.gain import Gain, gain
from tilegen.backend.region import Region
from tilegen.backend.rewrite import Candidate, decomposed, replaced, unpadded, unstrided
from tilegen.backend.subgraph import text_of
from tilegen.errors import FormError, TilegenError
from tilegen.frontend.dims import filled
from tilegen.frontend.program import Program
from tilegen.nn import patterns
from tilegen.nn.importer import NodeError

LOGGER = "tilegen.backend"
log = logging.getLogger(LOGGER)
Pass = Callable[[Graph], None]
STATIC = "of weights or constants alone"  # what a region computes once, if it reads it


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
        unstrided(graph)
        unpadded(graph)
        spelled.as_calls(graph)
        masks.as_flags(graph)
        thinned = thin_masks.thinned(graph)
        became: dict[Node, Node] = {}
        candidates = _regions(graph, self.inputs)
        inside = {n for candidate in candidates for n in candidate.nodes}
        for candidate in candidates:
            became |= replaced(graph, candidate, self.decompositions, became, inside)
        stable_topological_sort(graph)
        thin_masks.restored(graph, thinned)
        decomposed(graph, self.decompositions)
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> Any:
        """What Inductor's cache knows this pass by; None, which keeps nothing, beside a pass without one."""
        own = ("tilegen", __version__, config.min_gain, config.judge)
        if self.before is None:
            return own
        theirs = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        return None if theirs is None else (*own, theirs)


# --- which nodes --------------------------------------------------------------------------------------------


def _regions(graph: Graph, inputs: Sequence[Input]) -> list[Candidate]:
    """Those of a graph that pay."""
    static, tangible, moves = _static(graph, inputs), _of_tangents(graph), sizes.moving(graph)
    reasons = {n: words.reason(n) for n in graph.nodes}
    for node in graph.nodes:  # what a pattern stands for is one word, and computes in float32 as it did
        inside = patterns.within(node)
        if not any(words.reason(n, composed=True) for n in inside):
            reasons.update(dict.fromkeys(inside, ""))
    if tangible:  # a region would be saved, where the model asked that its nodes are computed again
        reasons.update({n: "of a checkpoint" for n in graph.nodes if "recompute" in n.meta})
    reasons.update({n: why for n in graph.nodes if (why := sizes.reason(n, moves))})
    reasons.update(dict.fromkeys(tangible, "of a gradient"))
    reasons.update(dict.fromkeys(static, STATIC))
    found: dict[tuple[Node, ...], Candidate | str] = {}
    while True:
        _leave_casts(graph, reasons)
        allowed = {n for n, reason in reasons.items() if not reason}
        parts = [_trimmed(part) for part in _partition(graph, allowed)]
        for part in parts:
            if part and part not in found:
                found[part] = _candidate(part, static, moves, reasons)
        if all(reasons[n] == "" for part in parts for n in part):
            break
    taken = [c for part in parts if part and isinstance(c := found[part], Candidate)]
    _count(taken, reasons, [c for part in parts if part and isinstance(c := found[part], str)])
    return taken


def _leave_casts(graph: Graph, reasons: dict[Node, str]) -> None:
    """A cast to fewer bytes is left where what it is made of is, or a view of that: a region would take it
    as it was before."""
    for node in graph.nodes:
        if not reasons[node] and words.narrows(node) and (why := reasons[words.seen(node)]):
            reasons[node] = f"a cast of what is left: {why}"


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
    """Tensors that are the same at each call: those given that the graph does not write, constants, and what
    is computed of such. Of those given none where the graph does not take what was given, one by one."""
    written = {n.args[0] for n in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    places = [n for n in graph.nodes if n.op == "placeholder" and not n.name.startswith("tangents")]
    known = [_rank(n.meta.get("val")) for n in places] == [given.rank for given in inputs]
    found = {n for n, given in zip(places, inputs, strict=False) if known and given.static} - written
    for node in graph.nodes:
        if found.issuperset(node.all_input_nodes) and words.repeats(node):
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
        view = words.is_view(node) or not words.computes(node) and node.target is not operator.getitem
        if view and inside.isdisjoint(node.users):
            inside.remove(node)
    return tuple(n for n in part if n in inside) if any(map(words.computes, inside)) else ()


def _candidate(
    part: tuple[Node, ...],
    static: set[Node],
    moves: sizes.Moving | None,
    reasons: dict[Node, str],
) -> Candidate | str:
    """As an operator; or why not: a node that no spec can say gets its reason."""
    device, inside = _device(part[0]), set(part)
    if elsewhere := [n for n in part if _device(n) != device]:
        reasons.update({n: f"on {_device(n)}, beside {device}" for n in elsewhere})
        return "of several devices"
    given: dict[Node, bool] = {}
    weights: list[Node] = []

    def take(node: Node) -> None:
        """From outside: of weights what they are made of."""
        if node in static and node.op == "call_function":
            for n in node.all_input_nodes:
                take(n)
            if node not in weights:
                weights.append(node)
        elif not sizes.is_size(node):
            given.setdefault(node, node in static)

    for node in part:
        for n in node.all_input_nodes:
            if n not in inside:
                take(n)
    views = {n for n in part if words.is_view(n) and words.leaves(n)}  # these stay the graph's
    own = inside - views
    results = tuple(n for n in part if n in own and _is_tensor(n) and not own.issuperset(n.users))
    nodes = (*weights, *part)
    text = text_of(nodes, given, results, moves)
    names = {f"v{k}": n for k, n in enumerate((*given, *nodes))}
    try:
        region = Region.of(text)
        turned = _turned(region, given, results, moves)
        paid = gain(_as_traced(region, moves), region.subgraph.device, config.min_gain, turned)
        if config.min_gain and (losers := _losers(region, paid, names)):
            reasons.update(losers)
            return str(paid)
        if paid.ratio < config.min_gain:
            return str(paid)
        region.kernel()
    except NodeError as error:
        at = names[error.node.meta["at"]] if "at" in error.node.meta else part[-1]
        reasons[at if at in inside else part[-1]] = str(error)
        return str(error)
    except FormError as error:
        reasons.update(dict.fromkeys(_asked(region, error.ops, names), str(error)))
        return str(error)
    except (TilegenError, DataDependentOutputException) as error:
        return f"{type(error).__name__}: {error}"
    _tell(region, paid)
    return Candidate(tuple(n for n in nodes if n not in views), given, results, text)


def _losers(region: Region, paid: Gain, names: Mapping[str, Node]) -> dict[Node, str]:
    """Nodes that a region is better off without, and why; an op that the spec alone has asked for stays."""
    asked = _asked(region, paid.losers, names)
    return {node: f"{node.target}: {paid.losers[op]}" for node, op in asked.items()}


def _asked(region: Region, ops: Iterable[str], names: Mapping[str, Node]) -> dict[Node, str]:
    """Nodes that have asked for these ops of a region, with all that a pattern's last one stands for."""
    found: dict[Node, str] = {}
    for op in ops:
        if (asked := region.spec.written_for.get(op)) is not None:
            node = names[asked.meta["at"]]
            found |= dict.fromkeys(patterns.within(node) or {node}, op)
    return found


def _as_traced(region: Region, moves: sizes.Moving | None) -> Program:
    """Its program with what moves as large as it was while torch traced."""
    dim = region.subgraph.dim
    if dim is None or moves is None:
        return region.program
    program: Program = filled(region.program, dim, moves.hint)
    return program


def _turned(
    region: Region, given: Mapping[Node, bool], results: Sequence[Node], moves: sizes.Moving | None
) -> list[int]:
    """Bytes of images that are laid out anew before a region or after it."""
    taken = [region.spec.taken.get(g.name) for g in region.subgraph.given]
    before = [node for node, how in zip(given, taken, strict=True) if how is not None and how.order]
    after = [n for n, how in zip(results, region.spec.returned, strict=True) if len(how.shape) == 4]
    values = [n.meta["val"] for n in (*before, *after)]
    return [moves.bytes(v) if moves else v.numel() * v.element_size() for v in values]


def _device(node: Node) -> torch.device:
    """Where a node's result is, or the first of several."""
    values = pytree.tree_leaves(node.meta["val"])
    return next(v.device for v in values if isinstance(v, torch.Tensor))


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
    asked = {n: r for n, r in reasons.items() if r != STATIC and words.computes(n) and not sizes.is_size(n)}
    left = Counter([*filter(None, asked.values()), *dropped])
    for reason, times in sorted(left.items()):
        said[f"left: {reason}"] += times
        log.info("left to Inductor, %d times: %s", times, reason)
