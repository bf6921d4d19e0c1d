"""Masks of attention as the tensors that torch broadcasts them from.

    attention(q, k, v, where(expand(seen, (B, 1, S, S)), 0, -inf))       seen (B, 1, 1, S)             before
    attention(q, k, v, where(seen, 0, -inf))                                                            after

What is made of alike tensors is made once: layers that each make their mask of the same one share it. A
region takes such a mask for what is added to scores (tg.attention); what stays torch's gets its own back,
since torch's kernels want it whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from tilegen.backend import masks, words
from tilegen.backend.rewrite import called
from tilegen.nn.patterns import COPIES

aten = torch.ops.aten
# of whose elements each is of those at its place
ELEMENTWISE = (
    aten.where.self,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    aten.bitwise_and.Tensor,
    aten.bitwise_or.Tensor,
    aten.bitwise_not.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_not.default,
    *(op for of in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge) for op in (of.Scalar, of.Tensor)),
    *(op for of in (aten.add, aten.sub, aten.mul) for op in (of.Scalar, of.Tensor)),
    aten.rsub.Scalar,
    aten.neg.default,
    *COPIES,
)


def thinned(graph: Graph) -> Mapping[Node, Node]:
    """All attentions of a graph whose masks are broadcast: these masks."""
    thin, found = _Thinner(graph), dict[Node, Node]()
    for target in (*masks.DROPOUT, words.MATH):
        for node in graph.find_nodes(op="call_function", target=target):
            mask = masks.mask_of(node)
            if mask is None or any(not isinstance(n, int) for n in mask.meta["val"].shape):
                continue
            new = thin.of(mask)
            if new is not mask and new.meta["val"].shape[-1:] == mask.meta["val"].shape[-1:]:
                found[node] = mask
                masks.set_mask(node, new)
    if found:
        stable_topological_sort(graph)
    return found


def restored(graph: Graph, before: Mapping[Node, Node]) -> None:
    """The masks of attentions that no region has taken, as they were."""
    there = set(graph.nodes)
    for node, mask in before.items():
        if node not in there:
            continue
        if mask not in there:
            with graph.inserting_before(node):
                mask = _whole(graph, masks.mask_of(node), mask.meta["val"].shape)
        masks.set_mask(node, mask)


def _whole(graph: Graph, thin: Any, shape: torch.Size) -> Node:
    given = thin.meta["val"].shape
    if len(given) == len(shape) and given[0] not in (1, shape[0]):
        times = [shape[0] // given[0], *[1] * (len(shape) - 1)]
        thin = called(graph, aten.repeat.default, (thin, times))
    return called(graph, aten.expand.default, (thin, list(shape)))


def _repeats_first(node: Node) -> bool:
    """Whether a node has its input again and again along the first dimension alone."""
    given, times, *_ = (*node.args, None, None)
    if node.target is not aten.repeat.default or not isinstance(given, Node) or not isinstance(times, list):
        return False
    return len(times) == given.meta["val"].dim() and all(n == 1 for n in times[1:])


def _unpads(node: Node) -> bool:
    """Whether it takes away again what its input was padded with, at the end."""
    padded, _, start, *_ = (*node.args, None, None, None)
    if node.target is not aten.slice.Tensor or not isinstance(padded, Node) or start not in (None, 0):
        return False
    if padded.target is not aten.constant_pad_nd.default:
        return False
    given, pads, *_ = padded.args
    assert isinstance(given, Node) and isinstance(pads, (list, tuple))
    return bool(given.meta["val"].shape == node.meta["val"].shape) and not any(pads[::2])


class _Thinner:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.known: dict[Node, Node] = {}
        self.made: dict[str, Node] = {}  # by what is called with what

    def of(self, node: Node) -> Node:
        if node not in self.known:
            self.known[node] = self._of(node)
        return self.known[node]

    def _of(self, node: Node) -> Node:
        """The tensor that a node's is broadcast from; of fewer dimensions perhaps."""
        value: Any = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not words.repeats(node):
            return node
        given: Any = node.args[0] if node.args else None
        if masks.of_constants(node) and value.numel() <= masks.MOST:
            return self._constant(node)
        if node.target is aten.expand.default or self._same(node):
            return self.of(given)
        if _repeats_first(node):
            return self.of(given)
        if _unpads(node):
            return self.of(given.args[0])
        if node.target in ELEMENTWISE:
            return self._elementwise(node)
        return node

    def _elementwise(self, node: Node) -> Node:
        """Of tensors that are broadcast, where the result is, too."""
        given, value = node.all_input_nodes, node.meta["val"]
        shapes = [self.of(n).meta["val"].shape for n in given]
        # batches of some may come again and again, of others not
        apart = len({s[0] for s in shapes if len(s) == value.dim() > 0} - {1}) > 1
        broadcast: Any = torch.broadcast_shapes
        whole = apart or math.prod(broadcast(*shapes)) == value.numel()
        known = {n: n if whole and n.meta["val"].dim() else self.of(n) for n in given}
        args, kwargs = pytree.tree_map_only(Node, known.__getitem__, (node.args, dict(node.kwargs)))
        return self._called(node, args, kwargs)

    def _same(self, node: Node) -> bool:
        """Whether it is a copy of its input, of the same type."""
        given: Any = node.args[0] if node.args else None
        if node.target not in COPIES or not isinstance(given, Node):
            return False
        return bool(given.meta["val"].dtype == node.meta["val"].dtype)

    def _constant(self, node: Node) -> Node:
        """Of a dimension along which all is alike the first place; of batches that come again and again those
        that come once."""
        node = self._called(node, node.args, dict(node.kwargs))
        for d in masks.alike(node):
            node = self._called(node, (node, d, 0, 1), {}, aten.slice.Tensor)
        if node.meta["val"].dim() == 4 and (period := masks.period(node)) < node.meta["val"].shape[0]:
            node = self._called(node, (node, 0, 0, period), {}, aten.slice.Tensor)
        return node

    def _called(self, node: Node, args: Any, kwargs: Any, target: Any = None) -> Node:
        """A node's call with other arguments, or that of one before."""
        target = target or node.target
        key = repr((str(target), args, sorted(kwargs.items())))
        if key not in self.made:
            new = node
            if target is not node.target or (args, kwargs) != (node.args, dict(node.kwargs)):
                with self.graph.inserting_after(node):
                    new = called(self.graph, target, args, **kwargs)
            self.made[key] = new
        return self.made[key]
