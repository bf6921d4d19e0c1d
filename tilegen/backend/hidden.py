"""Scores that a model hides by a choice, as sums with a mask, which attention knows: tilegen.backend.spelled.

    softmax(where(seen, q kᵀ, -inf))   →   softmax(q kᵀ + where(seen, 0, -inf))

What is hidden counts for nothing in the softmax either way, if it is finite, as torch's own attention asks
of it, too. Of rows of which all is hidden, by -inf, eager makes NaN, and attention numbers. What is far below
all scores, but finite, may stand for -inf: then such a row is eager's, since its sum with a product is
itself, rounded to float32; not with a sum that another mask has hidden already.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from tilegen.backend.rewrite import called
from tilegen.backend.scalars import full, scalars
from tilegen.backend.spelled import is_product
from tilegen.nn.patterns import COPIES

aten = torch.ops.aten
FAR_BELOW = -1e30  # whose last digit in float32 is 7.6e22
PASSED = (aten.view.default, aten.reshape.default, aten.expand.default, *COPIES)


def as_sums(graph: Graph) -> None:
    """All scores (B, h, S, T) of a graph, hidden by what is no score."""
    chosen = graph.find_nodes(op="call_function", target=aten.where.self)
    known = scalars(graph) if chosen else {}
    for node in chosen:
        seen, yes, no = node.args
        number, scores = (known.get(yes), no) if yes in known else (known.get(no), yes)
        if number is None or number > FAR_BELOW or not _is_scores(node, scores):
            continue
        if not _of_softmax(node, sums=number == -math.inf) or number > -math.inf and not is_product(scores):
            continue
        with graph.inserting_before(node):
            zero = full(graph, 0.0, scores)
            hidden = full(graph, number, scores)
            either = (hidden, zero) if scores is no else (zero, hidden)
            mask = called(graph, aten.where.self, (seen, *either))
            new = called(graph, aten.add.Tensor, (scores, mask))
        new.meta = {**node.meta, "val": new.meta["val"]}
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _is_scores(node: Node, scores: Any) -> bool:
    value = scores.meta.get("val") if isinstance(scores, Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not value.dtype.is_floating_point:
        return False
    return bool(value.dtype in (torch.float32, torch.bfloat16) and value.shape == node.meta["val"].shape)


def _of_softmax(node: Node, sums: bool) -> bool:
    """Whether a softmax alone reads a node or views of it; sums: or sums."""
    passed = (*PASSED, aten.add.Tensor) if sums else PASSED
    return bool(node.users) and all(
        user.target is aten._softmax.default or user.target in passed and _of_softmax(user, sums)
        for user in node.users
    )
