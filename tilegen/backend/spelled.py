"""Attention that a graph spells out as two products and a softmax, as one call again.

    p = softmax(α q kᵀ + mask)     p v          before, α as factors of q, kᵀ or the scores, casts anywhere
    _scaled_dot_product_attention_math(q, k, v, mask, is_causal=…, scale=α)                            after

torch takes its own attention apart so where none of its kernels takes the mask. Of masks that flags say
(tilegen.backend.masks) nothing is added; else what is: several tensors as their sum, each as it is broadcast
to the scores, of windows to those of each image. What no region takes is taken apart again
(tilegen.backend.rewrite).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node

from tilegen.backend import sizes, words
from tilegen.backend.masks import hides_later
from tilegen.backend.rewrite import called
from tilegen.nn.patterns import is_copy, narrows

aten = torch.ops.aten
CALL = words.MATH
WIDE = (torch.float16, torch.bfloat16, torch.float32)  # types of what may be added to scores
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default)
FACTORS = (aten.mul.Scalar, aten.mul.Tensor)
DIVISORS = (aten.div.Scalar, aten.div.Tensor)


@dataclass(frozen=True)
class Spelled:
    """An attention: its operands (B, h, S, D), whether it is causal, what is added to its scores, and their
    factor. inside: the nodes that it stands for."""

    q: Node
    k: Node
    v: Node
    causal: bool
    added: tuple[_Added, ...]
    scale: float
    inside: frozenset[Node]


def as_calls(graph: Graph) -> None:
    """All attentions of a graph whose parts nothing else reads."""
    known = cache(_hides_later)  # many layers have one mask
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        for end in list(node.users):
            found = _of(end, known) if end.target in RESHAPES and end.meta["val"].dim() == 4 else None
            if found is not None and all(found.inside.issuperset(n.users) for n in found.inside - {end}):
                _replace(graph, end, found)
    graph.eliminate_dead_code()


def is_product(node: Node) -> bool:
    """Whether a node is a product, but for factors, casts and views."""
    return bool(_scaled(node, set())[0].target is aten.bmm.default)


def _replace(graph: Graph, end: Node, found: Spelled) -> None:
    wide = end.meta["val"].dtype
    with graph.inserting_before(end):
        mask = _sum(graph, found)
        call = graph.call_function(
            CALL,
            (found.q, found.k, found.v, mask, 0.0, found.causal),
            {"scale": found.scale},
        )
        first = graph.call_function(operator.getitem, (call, 0))
        new = graph.call_function(torch.ops.prims.convert_element_type.default, (first, wide))
    q = found.q.meta["val"]
    result = q.new_empty((*q.shape[:-1], found.v.meta["val"].shape[-1]))
    call.meta = {**end.meta, "val": (result, None)}
    first.meta = {**end.meta, "val": result}
    new.meta = dict(end.meta)
    end.replace_all_uses_with(new)


def _of(end: Any, known: Callable[[Node], bool | None]) -> Spelled | None:
    """What the rows (B, h, S, D) of a second product are the attention of."""
    inside: set[Node] = {end}
    second = _peeled(end.args[0], inside)
    if second.target is not aten.bmm.default:
        return None
    softmax = _softmax(_peeled(second.args[0], inside), inside)
    scores = _scores(_peeled(softmax.args[0], inside), inside) if softmax else None
    turned = _turned(scores.product.args[1], inside) if scores else None
    if scores is None or turned is None:
        return None
    found = [_operand(n, inside) for n in (scores.product.args[0], turned[0], second.args[1])]
    if any(f is None for f in found):
        return None
    (q, of_q), (k, of_k), (v, of_v) = (f for f in found if f is not None)
    if of_v != 1.0 or len({n.meta["val"].dtype for n in (q, k, v)}) > 1 or not _fit(q, k, v, end):
        return None
    causal = known(scores.added[0].node) if len(scores.added) == 1 else None
    added = scores.added if causal is None else ()
    shape = (*q.meta["val"].shape[:3], k.meta["val"].shape[2])
    if not all(n.fits(shape) for n in added):
        return None
    scale = scores.scale * of_q * of_k * turned[1]
    return Spelled(q, k, v, bool(causal), added, scale, frozenset(inside))


def _fit(q: Node, k: Node, v: Node, end: Node) -> bool:
    """Whether heads have one size, and operands and rows lie side by side; views may have put batches and
    heads together otherwise."""
    (*lead, rows, of_scores), (*_, width), *keys = (n.meta["val"].shape for n in (q, v, k, v))
    same = all(sizes.alike(shape[:2], lead) for shape in keys) and sizes.alike([of_scores], [width])
    return same and sizes.alike(end.meta["val"].shape, [*lead, rows, width])


def _hides_later(mask: Node) -> bool | None:
    """As hides_later, of what is added to scores."""
    return None if mask.meta["val"].dtype is torch.bool else hides_later(mask)


def _softmax(node: Any, inside: set[Node]) -> Any:
    """That over the last dimension; torch makes zeros of its rows where a mask hides all keys."""
    if node.target is aten.where.self:
        hidden, zeros, other = node.args
        softmax = _softmax(_peeled(other, inside), inside)
        if softmax is None or zeros.target is not aten.full.default or zeros.args[1] != 0:
            return None
        for target in (aten.logical_not.default, aten.any.dim, aten.logical_not.default, aten.eq.Scalar):
            if hidden.target is not target:
                return None
            inside.add(hidden)
            last, hidden = hidden, hidden.args[0]
        return softmax if hidden is softmax.args[0] and last.args[1] == -math.inf else None
    known = node.target is aten._softmax.default
    return node if known and node.args[1] in (-1, node.meta["val"].dim() - 1) else None


@dataclass(frozen=True)
class _Added:
    """What is added to scores that are seen in this shape."""

    node: Node
    shape: tuple[int, ...]

    def sizes(self, of_scores: Sequence[int]) -> list[int] | None:
        """Its own as part of (B, h, Sq, Sk), the first perhaps a divisor of B; None where it is no such
        part."""
        given = self.node.meta["val"].shape
        own = [*[1] * (len(self.shape) - len(given)), *given]
        if len(self.shape) == 4:
            return own
        if len(self.shape) != 5 or own[0] != 1 or self.shape[0] * self.shape[1] != of_scores[0]:
            return None
        return own[1:]

    def fits(self, of_scores: Sequence[int]) -> bool:
        """Whether it can be added in tiles; not where a size of it moves, which no bias of a spec does."""
        if not all(isinstance(n, int) for n in (*self.shape, *of_scores, *self.node.meta["val"].shape)):
            return False
        if self.node.meta["val"].dtype not in WIDE or len(self.shape) == 4 and self.shape != tuple(of_scores):
            return False
        own = self.sizes(of_scores)
        if own is None or of_scores[0] % own[0] or own[3] != of_scores[3]:
            return False
        return all(n in (1, whole) for n, whole in zip(own[1:3], of_scores[1:3], strict=True))


def _sum(graph: Graph, found: Spelled) -> Node | None:
    """All that is added to scores, as one tensor."""
    total: Node | None = None
    batch = found.q.meta["val"].shape[0]
    scores = (*found.q.meta["val"].shape[:3], found.k.meta["val"].shape[2])
    for n in found.added:
        sizes, node = n.sizes(scores), n.node
        assert sizes is not None
        if list(node.meta["val"].shape) != sizes:
            node = called(graph, aten.reshape.default, (node, sizes))
        total = node if total is None else called(graph, aten.add.Tensor, (total, node))
    if total is None:
        return None
    dtype, again = found.q.meta["val"].dtype, batch // total.meta["val"].shape[0]
    if total.meta["val"].dtype is not dtype:
        total = called(graph, torch.ops.prims.convert_element_type.default, (total, dtype))
    if total.meta["val"].shape[0] > 1 and again > 1:
        total = called(graph, aten.repeat.default, (total, [again, 1, 1, 1]))
    return total


@dataclass(frozen=True)
class _Scores:
    """product · scale + all that is added."""

    product: Any
    added: tuple[_Added, ...]
    scale: float


def _scores(node: Any, inside: set[Node]) -> _Scores | None:
    """What sums come to, from the last on; factors are of the product alone."""
    added: list[_Added] = []
    while node.target is aten.add.Tensor and not node.kwargs:
        a, b = node.args
        if not isinstance(a, Node) or not isinstance(b, Node):
            return None
        before, other = (a, b) if _of_product(a) else (b, a)
        added.append(_Added(other, tuple(node.meta["val"].shape)))
        node = _peeled(before, inside)
    found, scale = _scaled(node, inside)
    return _Scores(found, tuple(added), scale) if found.target is aten.bmm.default else None


def _of_product(node: Any) -> bool:
    """Whether it is a product, but for factors and for what is added to it."""
    found, _ = _scaled(node, set())
    sums = found.target is aten.add.Tensor and not found.kwargs
    return (
        found.target is aten.bmm.default
        or sums
        and any(isinstance(n, Node) and _of_product(n) for n in found.args)
    )


def _turned(node: Any, inside: set[Node]) -> tuple[Any, float] | None:
    """What a node has the last two dimensions of turned, and by which factor."""
    node, scale = _scaled(node, inside)
    order = list(range(node.meta["val"].dim()))
    last = order[-2:]
    swapped = [*order[:-2], *last[::-1]]
    permuted = node.target is aten.permute.default and [d % len(order) for d in node.args[1]] == swapped
    transposed = node.target is aten.transpose.int and sorted(d % len(order) for d in node.args[1:]) == last
    return (node.args[0], scale) if permuted or transposed else None


def _operand(node: Any, inside: set[Node]) -> tuple[Any, float] | None:
    """The first tensor (B, h, S, D) of a node's values, and their factor; what is made of it is inside."""
    found, scale, passed = None, 1.0, list[Node]()
    while True:
        if node.meta["val"].dim() == 4:
            found = node, scale, len(passed)
        passed.append(node)
        if _is_same(node) and not narrows(node):
            node = node.args[0]
        elif (by := _factor(node)) is not None:
            node, scale = node.args[0], scale * by
        else:
            break
    if found is None:
        return None
    inside.update(passed[: found[2]])
    return found[:2]


def _scaled(node: Any, inside: set[Node]) -> tuple[Any, float]:
    """What a node is so many times; it and all on the way are inside."""
    node, scale = _peeled(node, inside), 1.0
    while (by := _factor(node)) is not None:
        node, scale = _peeled(node.args[0], inside), scale * by
    return node, scale


def _factor(node: Any) -> float | None:
    if node.target not in (*FACTORS, *DIVISORS) or not isinstance(node.args[1], (int, float)):
        return None
    by = float(node.args[1])
    if node.target in FACTORS:
        return by
    return 1 / by if by else None


def _peeled(node: Any, inside: set[Node]) -> Any:
    """What a node has the values of; it and all on the way are inside."""
    inside.add(node)
    while _is_same(node):
        node = node.args[0]
        inside.add(node)
    return node


def _is_same(node: Any) -> bool:
    """Whether it has the values of its input, rounded or not, in the same last two dimensions."""
    if is_copy(node):
        return True
    if node.target not in RESHAPES:
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]  # a shape's own numel() fixes what moves
    return sizes.alike([before.numel(), *before.shape[-2:]], [after.numel(), *after.shape[-2:]])
