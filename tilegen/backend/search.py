"""Which nodes of a joint graph become regions.

    nodes that a region may hold ─ partition ─▶ parts ─ program, cost ─▶ candidates, or nodes to leave

A part that no spec can say loses the node that the error names; one with ops that had better be Inductor's
(losers, tilegen.backend.gain) loses these; then all is partitioned anew. Where a part saves more with its
losers than what is left of it without them, such as images that would be turned at every layer, it keeps
them.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters, get_static_address_type
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from tilegen import config
from tilegen.backend import sizes, words
from tilegen.backend.gain import Gain, gain
from tilegen.backend.partition import partition
from tilegen.backend.region import Region
from tilegen.backend.rewrite import Candidate
from tilegen.backend.subgraph import text_of
from tilegen.errors import FormError, TilegenError
from tilegen.frontend.dims import filled
from tilegen.frontend.program import Program
from tilegen.nn import patterns
from tilegen.nn.aten_choices import COMPARISONS
from tilegen.nn.importer import NodeError, name_of

LOGGER = "tilegen.backend"
log = logging.getLogger(LOGGER)
FAULTS = "faults of tilegen's own"  # in torch._dynamo.utils.counters["tilegen"]
STATIC = "of weights or constants alone"  # what a region computes once, if it reads it
Part = tuple[Node, ...]


@dataclass(frozen=True)
class Input:
    """What torch.compile gives a graph. rank: of a tensor. static: a parameter or a buffer."""

    rank: int | None
    static: bool

    @staticmethod
    def of(given: Any) -> Input:
        static = isinstance(given, torch.nn.Parameter) or get_static_address_type(given) is not None
        return Input(_rank(given), static)


@dataclass(frozen=True)
class Found:
    """taken: what becomes regions. reasons: why a node is in none; empty of one that is, or of a part in
    dropped, which names why each part is none."""

    taken: list[Candidate]
    reasons: Mapping[Node, str]
    dropped: list[str]

    @property
    def saved(self) -> float:
        return sum(c.paid.saved for c in self.taken)


def regions(graph: Graph, inputs: Sequence[Input]) -> Found:
    """Those of a graph that pay."""
    search = _Search(graph, _static(graph, inputs), sizes.moving(graph))
    best, kept = search.settled(frozenset()), frozenset[Node]()
    while wanted := search.better_kept(best, kept):
        kept |= wanted
        found = search.settled(kept)
        best = max(best, found, key=lambda f: f.saved)
    return best


@dataclass(frozen=True)
class _Judged:
    """A part as a region, which is none where its candidate is not. blamed: nodes that no spec can say.
    losers: those that had better be Inductor's. names: of nodes in the region's text."""

    candidate: Candidate | None
    why: str
    blamed: Mapping[Node, str] = field(default_factory=dict)
    losers: Mapping[Node, str] = field(default_factory=dict)
    names: Mapping[str, Node] = field(default_factory=dict)

    @property
    def pays(self) -> bool:
        return self.candidate is not None and self.candidate.paid.ratio >= config.min_gain


class _Search:
    """Parts of a graph, each judged once."""

    def __init__(self, graph: Graph, static: set[Node], moves: sizes.Moving | None):
        self.graph, self.static, self.moves = graph, static, moves
        self.reasons = _reasons(graph, static, moves)
        self.judged: dict[Part, _Judged] = {}

    def settled(self, kept: frozenset[Node]) -> Found:
        """Partitioned until no part loses a node. kept: losers that stay in their parts."""
        reasons = dict(self.reasons)
        while True:
            _leave_casts(self.graph, reasons)
            allowed = {n for n, reason in reasons.items() if not reason}
            parts = [part for p in partition(self.graph, allowed) if (part := _trimmed(p))]
            left: dict[Node, str] = {}
            for part in parts:
                left |= {n: why for n, why in self._left(part, kept).items() if n in allowed}
            if not left:
                break
            reasons |= left
        found = [self.judged[part] for part in parts]
        taken = [j.candidate for j in found if j.candidate is not None and j.pays]
        return Found(taken, reasons, [j.why for j in found if not j.pays])

    def better_kept(self, best: Found, kept: frozenset[Node]) -> frozenset[Node]:
        """Losers of the parts that save more as a whole than all regions that came of them."""
        wanted = set[Node]()
        for part, whole in self.judged.items():
            if whole.losers and whole.pays and whole.candidate is not None:
                came = [c for c in best.taken if not set(part).isdisjoint(c.nodes)]
                if whole.candidate.paid.saved > sum(c.paid.saved for c in came):
                    wanted.update(whole.losers)
        return frozenset(wanted - kept)

    def _left(self, part: Part, kept: frozenset[Node]) -> Mapping[Node, str]:
        """Nodes that a part loses, and why."""
        if part not in self.judged:
            self.judged[part] = self._judge(part)
        found = self.judged[part]
        losers = {n: why for n, why in found.losers.items() if n not in kept}
        if losers or not found.pays or found.candidate is None:
            return found.blamed or losers
        region = Region.of(found.candidate.text)
        try:
            region.kernel()
        except FormError as error:
            blamed = dict.fromkeys(_asked(region, error.ops, found.names), str(error))
            self.judged[part] = _Judged(None, str(error), blamed)
        except Exception as error:
            self.judged[part] = _Judged(None, _said(error))
        return self.judged[part].blamed

    def _judge(self, part: Part) -> _Judged:
        """As an operator, unless a node is one that no spec can say."""
        device, inside = _device(part[0]), set(part)
        if elsewhere := [n for n in part if _device(n) != device]:
            blamed = {n: f"on {_device(n)}, beside {device}" for n in elsewhere}
            return _Judged(None, "of several devices", blamed)
        if passed := [n for n in part if n.target in COMPARISONS and not inside.issuperset(n.users)]:
            # they take torch.bool, in a spec it gives numbers
            why = "a comparison that others than its region read"
            return _Judged(None, why, dict.fromkeys(passed, why))
        given, weights = _given(part, self.static)
        views = {n for n in part if words.is_view(n) and words.leaves(n)}  # these stay the graph's
        own = inside - views
        results = tuple(n for n in part if n in own and _is_tensor(n) and not own.issuperset(n.users))
        nodes = (*weights, *part)
        text = text_of(nodes, given, results, self.moves)
        names = {f"v{k}": n for k, n in enumerate((*given, *nodes))}
        try:
            region = Region.of(text)
            turned = _turned(region, given, results, self.moves)
            traced = _as_traced(region, self.moves)
            paid = gain(traced, region.subgraph.device, config.min_gain, turned)
        except NodeError as error:
            at = names[error.node.meta["at"]] if "at" in error.node.meta else part[-1]
            return _Judged(None, str(error), {at if at in inside else part[-1]: str(error)})
        except FormError as error:
            return _Judged(None, str(error), dict.fromkeys(_asked(region, error.ops, names), str(error)))
        except Exception as error:
            return _Judged(None, _said(error))
        kept = tuple(n for n in nodes if n not in views)
        candidate = Candidate(kept, given, results, text, region.program, paid)
        losers = _losers(region, paid, names) if config.min_gain else {}
        return _Judged(candidate, str(paid), losers=losers, names=names)


def _said(error: Exception) -> str:
    """Why a part is no region. Of an error that none was to be the log has all: a model that Inductor
    compiles does not fail for it."""
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, (TilegenError, DataDependentOutputException)):
        counters["tilegen"][FAULTS] += 1
        log.warning("left to Inductor, a fault of tilegen's own, please tell us: %s", said, exc_info=error)
    return said


def _given(part: Part, static: set[Node]) -> tuple[dict[Node, bool], list[Node]]:
    """What a part takes from outside, and whether it is static; weights, and what they are made of."""
    given: dict[Node, bool] = {}
    weights: list[Node] = []
    inside = set(part)

    def take(node: Node) -> None:
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
    return given, weights


# --- nodes and parts ----------------------------------------------------------------------------------------


def _reasons(graph: Graph, static: set[Node], moves: sizes.Moving | None) -> dict[Node, str]:
    """Why no region may hold a node, by the node alone; empty where one may."""
    tangible = _of_tangents(graph)
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
    return reasons


def _leave_casts(graph: Graph, reasons: dict[Node, str]) -> None:
    """A cast to fewer bytes is left where what it is made of is, or a view of that: a region would take it
    as it was before."""
    for node in graph.nodes:
        if not reasons[node] and words.narrows(node) and (why := reasons[words.seen(node)]):
            reasons[node] = f"a cast of what is left: {why}"


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


def _trimmed(part: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without views at the end, and without what nothing is computed of."""
    inside = set(part)
    for node in reversed(part):
        view = words.is_view(node) or not words.computes(node) and node.target is not operator.getitem
        if view and inside.isdisjoint(node.users):
            inside.remove(node)
    return tuple(n for n in part if n in inside) if any(map(words.computes, inside)) else ()


# --- of a region --------------------------------------------------------------------------------------------


def _losers(region: Region, paid: Gain, names: Mapping[str, Node]) -> dict[Node, str]:
    """Nodes that a region is better off without, and why; an op that the spec alone has asked for stays."""
    asked = _asked(region, paid.losers, names)
    return {node: f"{name_of(node)}: {paid.losers[op]}" for node, op in asked.items()}


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
