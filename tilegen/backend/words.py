"""Which nodes of a joint graph a region may hold.

A node may, if the table of operators (tilegen.nn.aten) has an entry for it, its tensors are of types that
specs have, and what it computes in float32 between tensors of two bytes is one operator at most: between two
tensors of a spec all is float32, but tensors are of the type of those around them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from itertools import chain
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from tilegen.backend.sizes import alike
from tilegen.nn import patterns
from tilegen.nn.aten import TABLE, VIEWS
from tilegen.nn.aten_choices import COMPARISONS, chooses

aten = torch.ops.aten
MATH = aten._scaled_dot_product_attention_math.default  # which torch takes apart by itself
# operators that Inductor would take apart before a region could know them
KEPT = (
    aten.native_layer_norm.default,
    aten._fused_rms_norm.default,
    aten.native_group_norm.default,
    aten._softmax.default,
    aten._log_softmax.default,
    aten.gelu.default,
    aten.silu.default,
    aten.hardswish.default,
    aten.hardsigmoid.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
    aten.addmm.default,
    aten.embedding.default,
    aten.max_pool2d_with_indices.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.upsample_nearest2d.vec,
    aten.linalg_vector_norm.default,
    MATH,
)
# of these, specs know the first result alone
FIRST_ALONE = (
    aten.native_layer_norm.default,
    aten._fused_rms_norm.default,
    aten.native_group_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.max_pool2d_with_indices.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    MATH,
)
OF_WHOLE_NUMBERS = (aten.embedding.default, aten.argmax.default, aten.topk.default, aten.gather.default)
OWN = ("aten", "prims")  # namespaces of operators
UNSET = (
    *(aten.empty.memory_format, aten.empty_like.default),
    *(aten.empty_strided.default, aten.new_empty.default),
)
# what has a result that lies as its input does: channels first or last
LIE_ALIKE = (
    *(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default),
    *(aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec, operator.getitem),
)
# what takes places in memory for elements, or what lies side by side for one
BY_PLACES = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
    aten.view_as_complex.default,
    aten.view.dtype,
)
HALF = (torch.float16, torch.bfloat16)
WHOLE = (torch.int32, torch.int64)


def reason(node: Node, composed: bool = False) -> str:
    """Why no region may hold a node; empty where one may. composed: as a part of what a pattern stands for,
    which is one word."""
    if node.op != "call_function":
        return node.op
    if node.target not in TABLE and not composed:
        return f"{node.target} has no word in a spec"
    if node.target in FIRST_ALONE and any(_number(user) != 0 for user in node.users):
        return f"a result of {node.target} besides the first is used"
    for n in (node, *node.all_input_nodes):
        if not chooses(n) and (told := _of_value(n.meta.get("val"))):
            return told
    if node.target is operator.getitem:
        return ""
    return _of_whole_numbers(node) or ("" if composed else _of_islands(node))


def computes(node: Node) -> bool:
    """Whether a node is more than a view or a cast of its input."""
    return node.op == "call_function" and node.target not in VIEWS


def is_view(node: Node) -> bool:
    """Whether a node shares its input's memory."""
    made: Any = node.args[0] if node.target is operator.getitem else node
    return made.target in VIEWS and isinstance(made.target, torch._ops.OpOverload) and made.target.is_view


def seen(node: Node) -> Node:
    """What a cast or a view is made of, by views alone."""
    node = node.all_input_nodes[0]
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def leaves(node: Node) -> bool:
    """Whether the graph returns a node or a view of it."""
    return _reaches_output(node, lambda user, of: user.target in VIEWS)


def lays_out_results(node: Node, inside: Container[Node]) -> bool:
    """Whether the graph returns a node, a view of it, or maths of its shape or a pool, which lies in memory
    as it does and is made by none of the nodes inside."""

    def follows(user: Node, of: Node) -> bool:
        alike = user.target in VIEWS or user.target in LIE_ALIKE or _of_one_shape(user, of)
        return user not in inside and alike

    return _reaches_output(node, follows)


def read_by_places(node: Node) -> bool:
    """Whether as_strided, or what reads memory as it does, reads a node or what is made of it."""
    return _reaches(node, lambda user: user.target in BY_PLACES, lambda user, of: True)


def _reaches_output(node: Node, follows: Callable[[Node, Node], bool]) -> bool:
    return _reaches(node, lambda user: user.op == "output", follows)


def _reaches(node: Node, ends: Callable[[Node], bool], follows: Callable[[Node, Node], bool]) -> bool:
    """Whether one of those wanted (ends) reads a node, or one behind it. follows: whether a user of a node is
    looked at."""
    found, left = {node}, [node]
    while left:
        of = left.pop()
        for user in of.users:
            if ends(user):
                return True
            if user not in found and follows(user, of):
                found.add(user)
                left.append(user)
    return False


def _of_one_shape(a: Node, b: Node) -> bool:
    """Whether both are tensors, and of one shape whatever moves."""
    x, y = a.meta.get("val"), b.meta.get("val")
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and alike(x.shape, y.shape)


def repeats(node: Node) -> bool:
    """Whether a node gives the same tensors each time, of the same inputs."""
    values = pytree.tree_leaves(node.meta.get("val"))
    sizes = [n for v in values if isinstance(v, torch.Tensor) for n in v.shape]
    return is_constant(node) and all(isinstance(n, int) for n in sizes)


def is_constant(node: Node) -> bool:
    """Whether a node gives the same numbers each time, of the same inputs and sizes. What others than torch
    have defined may count its calls, or ask other processes."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    if target.namespace not in OWN or target in UNSET:
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def narrows(node: Node) -> bool:
    """Whether a node casts float32 to two bytes."""
    if node.target not in patterns.COPIES or not node.all_input_nodes:
        return False
    return _dtype(node) in HALF and _dtype(node.all_input_nodes[0]) is torch.float32


def _of_whole_numbers(node: Node) -> str:
    """Why a node computes of or to whole numbers, where no word does."""
    if patterns.truncates(node):
        return f"a cast of {_dtype(node.all_input_nodes[0])} to {_dtype(node)}"
    whole = any(_dtype(n) in WHOLE for n in (node, *node.all_input_nodes))
    asked = computes(node) and node.target not in OF_WHOLE_NUMBERS
    return f"{node.target} of whole numbers" if whole and asked else ""


def _number(user: Node) -> Any:
    return user.args[1] if user.target is operator.getitem else None


def _of_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return next((told for v in value[:1] if (told := _of_value(v))), "")
    if not isinstance(value, torch.Tensor):
        plain = value is None or isinstance(value, (int, float, torch.SymInt))
        return "" if plain else f"a {type(value).__name__}"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}"
    if value.dtype not in (*HALF, *WHOLE, torch.float32):
        return f"a tensor of {value.dtype}"
    if any(isinstance(n, int) and n == 0 for n in value.shape):
        return "a tensor of no elements"
    return ""


def _of_islands(node: Node) -> str:
    """Why a node that computes in float32 may not be rounded to two bytes before and after it."""
    compared = node.target in COMPARISONS
    if not computes(node) or _dtype(node.all_input_nodes[0] if compared else node) is not torch.float32:
        return ""
    read = (n.all_input_nodes if n.target in COMPARISONS else [n] for n in node.all_input_nodes)
    given = [n for n in map(patterns.through, chain.from_iterable(read)) if isinstance(n, Node)]
    narrow = [n for n in given if _dtype(n) in HALF]
    if narrow and (len(narrow) < len([n for n in given if _dtype(n) is not None]) or not _narrowed(node)):
        return f"{node.target} computes in float32 between tensors of two bytes"
    return ""


def _narrowed(node: Node) -> bool:
    """Whether all that reads a node casts it to two bytes first."""
    for user in node.users:
        if user.target is operator.getitem or (user.target in patterns.COPIES and _dtype(user) not in HALF):
            if not _narrowed(user):
                return False
        elif user.target not in patterns.COPIES:
            return False
    return True


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return first.dtype if isinstance(first, torch.Tensor) else None
