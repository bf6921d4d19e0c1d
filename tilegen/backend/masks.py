"""Masks of attention that a model computes of constants alone, as the flags that they say.

mask = where(arange(S)[None] <= arange(S)[:, None], 0, -inf)   attention(q, k, v, mask) → attention(…, causal)
mask = zeros(S, T)                                              attention(q, k, v, mask) → attention(q, k, v)
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

aten = torch.ops.aten
MOST = 1 << 24  # elements of a mask that is looked at
HIDDEN = torch.finfo(
    torch.float16
).min  # what is added to scores of no key, or less: models write it for -inf


def as_flags(graph: Graph) -> None:
    """All attentions of a graph whose masks are known."""
    for target in (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ):
        for node in graph.find_nodes(op="call_function", target=target):
            mask = _mask(node)
            if mask is not None and (causal := _said(mask, node)) is not None:
                _flagged(node, causal)
    graph.eliminate_dead_code()


def _mask(node: Node) -> Node | None:
    if node.target is aten._scaled_dot_product_flash_attention_for_cpu.default:
        found = node.kwargs.get("attn_mask")
    else:
        found = node.args[3]
    return found if isinstance(found, Node) else None


def _flagged(node: Node, causal: bool) -> None:
    if node.target is aten._scaled_dot_product_flash_attention_for_cpu.default:
        node.kwargs = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}
        node.args = (*node.args[:3], 0.0, causal)
    else:
        node.args = (*node.args[:3], None, node.args[4], 0.0, causal, *node.args[7:])


def _said(mask: Node, node: Node) -> bool | None:
    """Whether a mask is that of causal attention, or hides nothing; None where neither is known."""
    dropout, causal = (*node.args[_dropout(node) :], 0.0, False)[:2]
    shape = mask.meta["val"].shape
    fixed = all(isinstance(n, int) for n in shape)
    if dropout or causal or not fixed or mask.meta["val"].numel() > MOST or not _of_constants(mask):
        return None
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        hidden = _computed(mask)
        hidden = ~hidden if hidden.dtype is torch.bool else hidden
        rows, columns = shape[-2:]
        later = torch.ones(rows, columns, dtype=torch.bool).triu(1).expand(shape)
        if hidden.dtype is not torch.bool:
            if not bool(((hidden == 0) | (hidden <= HIDDEN)).all()):
                return None
            hidden = hidden != 0
        if not bool(hidden.any()):
            return False
        return True if rows == columns and torch.equal(hidden, later) else None


def _dropout(node: Node) -> int:
    return 3 if node.target is aten._scaled_dot_product_flash_attention_for_cpu.default else 5


def _of_constants(node: Node) -> bool:
    left, seen = [node], {node}
    while left:
        n = left.pop()
        if n.op != "call_function":
            return False
        new = set(n.all_input_nodes) - seen
        seen |= new
        left += new
    return True


def _computed(node: Node) -> Any:
    """What a node of constants is, on the CPU."""
    known: dict[Node, Any] = {}

    def of(n: Node) -> Any:
        if n not in known:
            args, kwargs = pytree.tree_map_only(Node, of, (n.args, dict(n.kwargs)))
            if "device" in kwargs:
                kwargs["device"] = torch.device("cpu")
            known[n] = n.target(*args, **kwargs)  # type: ignore[operator]
        return known[n]

    return of(node)
