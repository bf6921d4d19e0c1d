"""Masks of attention that a model computes of constants alone, as the flags that they say.

mask = where(arange(S)[None] <= arange(S)[:, None], 0, -inf)   attention(q, k, v, mask) → attention(…, causal)
mask = zeros(S, T)                                              attention(q, k, v, mask) → attention(q, k, v)
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from tilegen.backend import words

aten = torch.ops.aten
MOST = 1 << 24  # elements of a mask that is looked at
# attentions with a mask: which of their arguments is the dropout, after which stands whether they are causal
DROPOUT: dict[Any, int] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    aten._scaled_dot_product_efficient_attention.default: 5,
    aten._scaled_dot_product_cudnn_attention.default: 5,
}
MASK_BY_NAME = (aten._scaled_dot_product_flash_attention_for_cpu.default,)
# what is added to the scores of no key, or less: models write it for -inf
HIDDEN = torch.finfo(torch.float16).min


def as_flags(graph: Graph) -> None:
    """All attentions of a graph whose masks are known."""
    known = cache(hides_later)  # many layers have one mask
    for target in DROPOUT:
        for node in graph.find_nodes(op="call_function", target=target):
            mask, plain = mask_of(node), not any(node.args[DROPOUT[target] : DROPOUT[target] + 2])
            if mask is not None and plain and (causal := known(mask)) is not None:
                _flagged(node, causal)
    graph.eliminate_dead_code()


def mask_of(node: Node) -> Node | None:
    """What an attention has of a mask."""
    found = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
    return found if isinstance(found, Node) else None


def set_mask(node: Node, mask: Node) -> None:
    """Gives an attention that has a mask another one."""
    if "attn_mask" in node.kwargs:
        node.kwargs = {**node.kwargs, "attn_mask": mask}
    else:
        node.args = (*node.args[:3], mask, *node.args[4:])


def _flagged(node: Node, causal: bool) -> None:
    at = DROPOUT[node.target]
    if node.target in MASK_BY_NAME:
        node.kwargs = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}
        before = node.args[:at]
    else:
        before = (*node.args[:3], None, *node.args[4:at])
    node.args = (*before, 0.0, causal, *node.args[at + 2 :])


def hides_later(mask: Node) -> bool | None:
    """Whether a mask is that of causal attention; False: it hides nothing; None where neither is known."""
    shape = mask.meta["val"].shape
    fixed = all(isinstance(n, int) for n in shape)
    if not fixed or len(shape) < 2 or mask.meta["val"].numel() > MOST or not of_constants(mask):
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


def of_constants(node: Node) -> bool:
    """Whether a node is the same at each call, and in each run of the model."""
    left, seen = [node], {node}
    while left:
        n = left.pop()
        if not words.repeats(n):
            return False
        new = set(n.all_input_nodes) - seen
        seen |= new
        left += new
    return True


def alike(node: Node) -> list[int]:
    """Dimensions of a node of constants along which all elements are the same."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        value = _computed(node)
        long = [d for d, size in enumerate(value.shape) if size > 1]
        return [d for d in long if bool((value == value.narrow(d, 0, 1)).all())]


def period(node: Node) -> int:
    """How many places of the first dimension of a node of constants come again and again."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        value = _computed(node)
        size = len(value)
        again = (
            n for n in range(1, size + 1) if size % n == 0 and bool((value[n:] == value[: size - n]).all())
        )
        return next(again)


def _computed(node: Node) -> Any:
    """What a node of constants is, on the CPU."""
    known: dict[Node, Any] = {}

    def of(n: Node) -> Any:
        if n not in known:
            args, kwargs = pytree.tree_map_only(Node, of, (n.args, dict(n.kwargs)))
            if "device" in kwargs:
                kwargs["device"] = torch.device("cpu")
            moved = n.target is torch.ops.prims.device_put.default
            known[n] = args[0] if moved else n.target(*args, **kwargs)  # type: ignore[operator]
        return known[n]

    return of(node)
