"""Split-KV: the keys of an attention over caches in splits, where there are fewer tiles than SMs.

    y = attention(q, k, v)   →   p = attention(q, k, v) with splits, in float32; y = combine(p)

A split is Σ e^(score - m) v, m and Σ e^(score - m) of some of the keys that are there, m their largest score:
the softmax over all of them is their sum, each scaled by e^(m - largest m).
"""

from __future__ import annotations

from dataclasses import replace

from tilegen.errors import PlanError
from tilegen.frontend.program import Operand, Tensor
from tilegen.graph.graph import Graph, refuse_taken
from tilegen.ops.attention import AttentionAttributes, over_caches
from tilegen.ops.base import ceil_div
from tilegen.ops.combine import STATE, CombineAttributes


def split_kv(graph: Graph, name: str, splits: int) -> Graph:
    """An attention over caches as NAME_split_kv, which writes NAME_partial in float32, a split of the keys
    below the other, and NAME, which combines them."""
    op = graph.op(name)
    b, a = graph.bound(op), op.attributes
    if not isinstance(a, AttentionAttributes) or not over_caches(b) or a.splits:
        raise PlanError(
            f"only a whole attention over caches (at=…) can be split over its keys, {name!r} is none",
            op.where,
        )
    steps = ceil_div(a.k_len, op.tile[1])
    if not isinstance(splits, int) or not 2 <= splits <= steps:
        raise PlanError(
            f"{name!r} has {steps} blocks of {op.tile[1]} keys, which do not split into {splits} splits",
            op.where,
        )
    partial = f"{name}_partial"
    refuse_taken(graph, name, names_of_splits(name))
    rows = a.batch * a.q_len
    tensor = Tensor(
        partial, (splits * rows, a.heads * (a.head_dim + STATE)), "float32", "partial", op.where, "rows"
    )
    attributes = replace(a, splits=splits)
    parts = replace(op, name=f"{name}_split_kv", result=partial, attributes=attributes)
    whole = replace(
        op,
        kind="combine",
        operands=(Operand(partial),),
        attributes=CombineAttributes(splits, a.heads, int(a.head_dim)),
        tile=(),
    )
    return graph.with_op(name, parts, whole, tensors={partial: tensor})


def names_of_splits(name: str) -> set[str]:
    """The op and the tensor that a split of attention `name` makes."""
    return {f"{name}_split_kv", f"{name}_partial"}
