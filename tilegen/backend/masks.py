"""Masks of attention that a model computes of constants alone, as the flags that they say.

mask = where(arange(S)[None] <= arange(S)[:, None], 0, -inf)   attention(q, k, v, mask) → attention(…, causal)
mask = zeros(S, T)                                              attention(q, k, v, mask) → attention(q, k, v)

Where a size moves, a mask is looked at if it compares places with each other and with 0 and 1 alone: then it
says the same of the first few places as of all. Numbers that it may know besides, as lengths, values or
constants that it computes, are looked beyond: at a size that is more than twice the largest.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import sympy as sp
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from tilegen.backend import sizes, words

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
END = 1 << 31  # of a slice, or more: all that is there
FEW = range(2, 7)  # values of a size that moves, at which a mask is looked at
# what a mask may be computed by whose sizes move: places, their order, and choices by it
VIEWS = "index slice view reshape expand permute unsqueeze squeeze clone cat"
ORDER = "eq ne lt le gt ge bitwise_and bitwise_or bitwise_not logical_and logical_or logical_not any all"
WITH_VALUES = {
    getattr(aten, n) for n in "full full_like scalar_tensor where masked_fill constant_pad_nd".split()
}
OF_FIRST_PLACES = {
    *(getattr(torch.ops.prims, name) for name in ("iota", "convert_element_type", "device_put")),
    *(getattr(aten, name) for name in f"_to_copy ones zeros add sub cumsum {VIEWS} {ORDER}".split()),
    *WITH_VALUES,
}


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
    if len(shape) < 2 or not (cone := made_of(mask)):
        return None
    symbols = sorted({s for n in cone for s in sizes.symbols(n)}, key=str)
    if not symbols:
        return _at_sizes(mask, {})
    if not all(map(_of_first_places, cone)):
        return None
    # whole masks, one for each of these, lie there alike; what they know are no numbers of theirs
    batches = sizes.symbols_of(shape[:-2]) - sizes.symbols_of(shape[-2:])
    beyond = 2 * int(max((n for node in cone for n in _known(node)), default=0)) + 3
    each = itertools.product(*(FEW if s in batches else (*FEW, beyond) for s in symbols))
    try:
        first, *others = (_at_sizes(mask, dict(zip(symbols, of, strict=True))) for of in each)
    except (RuntimeError, IndexError, ValueError):  # a size that it cannot have, such as of zeros(S - 10)
        return None
    return first if all(other is first for other in others) else None


def _at_sizes(mask: Node, at: Mapping[sp.Symbol, int]) -> bool | None:
    """What a mask is where what moves has these sizes; None of one that is too large to look at."""
    whole = math.prod(sizes.at(n, at) for n in mask.meta["val"].shape)
    return _hides_later(mask, at) if whole <= MOST else None


def _known(node: Node) -> Iterator[float]:
    """Finite numbers, made positive, that a node is given, those of sizes too, and those that it computes of
    no size. What hides is none."""
    if sizes.is_size(node):
        yield from (abs(int(n)) for n in sp.sympify(node.meta["val"].node.expr).atoms(sp.Integer))
        return
    given = pytree.tree_leaves((node.args, dict(node.kwargs)))
    found = [n for n in given if isinstance(n, (int, float)) and not isinstance(n, bool)]
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        found += [n for n in value.shape if isinstance(n, int)]
        if of_constants(node) and value.numel() <= MOST:
            with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
                numbers = _computed(node, {}).double()
                shown = numbers[numbers.isfinite() & (numbers > HIDDEN)]
                found += [float(shown.abs().max())] if shown.numel() else []
    yield from (abs(n) for n in found if HIDDEN < n < END)


def _hides_later(mask: Node, at: Mapping[sp.Symbol, int]) -> bool | None:
    """at: what moves."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        hidden = _computed(mask, at)
        hidden = ~hidden if hidden.dtype is torch.bool else hidden
        rows, columns = hidden.shape[-2:]
        later = torch.ones(rows, columns, dtype=torch.bool).triu(1).expand(hidden.shape)
        if hidden.dtype is not torch.bool:
            if not bool(((hidden == 0) | (hidden <= HIDDEN)).all()):
                return None
            hidden = hidden != 0
        if not bool(hidden.any()):
            return False
        return True if rows == columns and torch.equal(hidden, later) else None


def made_of(node: Node) -> set[Node]:
    """All that a node is computed of, itself too; none where that is not constants alone."""
    left, seen = [node], {node}
    while left:
        n = left.pop()
        if sizes.is_size(n):
            continue
        if not words.is_constant(n):
            return set()
        new = set(n.all_input_nodes) - seen
        seen |= new
        left += new
    return seen


def of_constants(node: Node) -> bool:
    """Whether a node is the same at each call, and in each run of the model."""
    made = made_of(node)
    return bool(made) and not any(map(sizes.symbols, made))


def _of_first_places(node: Node) -> bool:
    """Whether a node knows no number but 0, 1 and places."""
    if sizes.is_size(node) or node.target is operator.getitem:
        return True
    packet = getattr(node.target, "overloadpacket", None)
    return packet in OF_FIRST_PLACES and all(n in (-1, 0, 1) for n in _numbers(node, packet))


def _numbers(node: Node, packet: Any) -> Iterator[Any]:
    """Those that a node computes with: no dimensions, no ends of slices, and no values of the mask."""
    if packet in WITH_VALUES and node.meta["val"].dtype not in words.WHOLE:
        return
    for n, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        given = node.args[n] if n < len(node.args) else node.kwargs.get(argument.name)
        computes = str(argument.type) in ("number", "Tensor") or argument.name in ("start", "step")
        if computes and isinstance(given, (bool, int, float)):
            yield given


def alike(node: Node) -> list[int]:
    """Dimensions of a node of constants along which all elements are the same."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        value = _computed(node, {})
        long = [d for d, size in enumerate(value.shape) if size > 1]
        return [d for d in long if bool((value == value.narrow(d, 0, 1)).all())]


def period(node: Node) -> int:
    """How many places of the first dimension of a node of constants come again and again."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        value = _computed(node, {})
        size = len(value)
        again = (
            n for n in range(1, size + 1) if size % n == 0 and bool((value[n:] == value[: size - n]).all())
        )
        return next(again)


def _computed(node: Node, at: Mapping[sp.Symbol, int]) -> Any:
    """What a node of constants is, on the CPU. at: what moves."""
    known: dict[Node, Any] = {}

    def of(n: Node) -> Any:
        if sizes.is_size(n):
            return sizes.at(n.meta["val"], at)
        if n not in known:
            known[n] = on_cpu(n, of)
        return known[n]

    return of(node)


def on_cpu(node: Node, of: Callable[[Node], Any]) -> Any:
    """What a node of constants gives on the CPU, wherever the graph has it. of: what those hold that it
    reads."""
    args, kwargs = pytree.tree_map_only(Node, of, (node.args, dict(node.kwargs)))
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    moved = node.target is torch.ops.prims.device_put.default
    return args[0] if moved else node.target(*args, **kwargs)  # type: ignore[operator]
