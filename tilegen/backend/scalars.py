"""Tensors of no dimensions that are the same at each call, as numbers of what computes with them; where that
takes tensors alone, as such that a region computes once.

    x / torch.sqrt(torch.tensor(64.0))    →   x / 8.0
    torch.maximum(x, torch.tensor(0.5))   →   torch.maximum(x, torch.full([], 0.5))
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from tilegen.backend import words
from tilegen.backend.masks import on_cpu

aten = torch.ops.aten
prims = torch.ops.prims
OF_NUMBERS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)  # either operand is one
# what is computed here, of constants of no dimensions
COMPUTED = (
    *(aten.full.default, aten.scalar_tensor.default, aten.lift_fresh_copy.default, aten.clone.default),
    *(aten._to_copy.default, prims.convert_element_type.default, prims.device_put.default, *OF_NUMBERS),
    *(aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.neg.default, aten.exp.default),
    *(aten.log.default, aten.pow.Tensor_Scalar, aten.pow.Scalar),
)


def as_numbers(graph: Graph) -> None:
    """All of a graph that such tensors are given to."""
    for node, number in scalars(graph).items():
        if not math.isfinite(number):
            continue
        for user in list(node.users):
            other = _beside(user, node)
            if other is not None and math.isfinite(rounded := _as_read(number, node, other)):
                user.args = tuple(rounded if a is node else a for a in user.args)
        point = node.meta["val"].dtype.is_floating_point
        if point and node.target is aten.lift_fresh_copy.default and node.users:
            with graph.inserting_before(node):
                node.replace_all_uses_with(full(graph, number, node))


def full(graph: Graph, number: float, like: Node) -> Node:
    """A tensor of no dimensions, of another's type and device."""
    value = like.meta["val"]
    how = {"dtype": value.dtype, "device": value.device}
    node = graph.call_function(aten.full.default, ([], number), how)
    with value.fake_mode:
        node.meta["val"] = torch.full([], number, **how)
    return node


def scalars(graph: Graph) -> dict[Node, float]:
    """Tensors of no dimensions that are computed of constants alone, and what they hold."""
    known: dict[Node, torch.Tensor] = {}
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not value.dim() and _is_number(value.dtype):
                found = _computed(node, known)
                if found is not None:
                    known[node] = found
        return {node: float(value) for node, value in known.items()}


def _is_number(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype in words.WHOLE


def _computed(node: Node, known: Mapping[Node, torch.Tensor]) -> torch.Tensor | None:
    """What a node holds, on the CPU."""
    if node.op == "get_attr":
        held = getattr(node.graph.owning_module, str(node.target), None)
        return held.cpu() if isinstance(held, torch.Tensor) and not isinstance(held, FakeTensor) else None
    if node.target not in COMPUTED or not known.keys() >= set(node.all_input_nodes):
        return None
    found = on_cpu(node, known.__getitem__)
    return found if isinstance(found, torch.Tensor) and not found.dim() else None


def _beside(user: Node, scalar: Node) -> torch.Tensor | None:
    """What a user computes with the scalar, where a number instead gives the same: a tensor of whose type the
    result is."""
    if user.target not in OF_NUMBERS or user.kwargs or user.args.count(scalar) != 1:
        return None
    (other,) = (a for a in user.args[:2] if a is not scalar)
    value = other.meta.get("val") if isinstance(other, Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim() or not value.dtype.is_floating_point:
        return None
    return value if user.meta["val"].dtype is value.dtype else None


def _as_read(number: float, scalar: Node, beside: torch.Tensor) -> float:
    """torch rounds a scalar to the type of the tensor beside it, but not one of the CPU beside a GPU's."""
    if scalar.meta["val"].device.type != beside.device.type:
        return number
    return float(torch.tensor(number, dtype=torch.float64).to(beside.dtype))
