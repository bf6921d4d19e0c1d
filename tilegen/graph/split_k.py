"""Split-K: a linear's sum over K in splits.

    y = epilogue(x wᵀ)   →   pᵢ = xᵢ wᵢᵀ, in float32, for all chunks of K but the last;
                              y = epilogue(((x wᵀ)_last + p0) + p1 + …)

A fixed order, so results are bit-stable. Splits are ops that write `partial` tensors: ordinary dataflow, with
no lock. The op that finishes has the highest rank.
"""

from __future__ import annotations

from dataclasses import replace

from tilegen.errors import PlanError
from tilegen.frontend.program import Operand, Tensor
from tilegen.graph.fuse_epilogues import renumber, tidy_expression
from tilegen.graph.graph import Graph, refuse_taken
from tilegen.ops.base import Epilogue, ceil_div
from tilegen.ops.gemm import LinearAttributes, normed


def split_k(graph: Graph, name: str, splits: int) -> Graph:
    """The graph with a linear's sum over K in `splits`. PlanError where it cannot be."""
    op = graph.op(name)
    b, a = graph.bound(op), op.attributes
    if not isinstance(a, LinearAttributes) or a.k_range:
        raise PlanError(f"only a whole linear can be split over K, {name!r} is {op.kind}", op.where)
    if normed(b):
        raise PlanError(
            f"{name!r} norms its rows, so its sum cannot be split over K; fuse no norm into it"
            " (norms='separate')",
            op.where,
        )
    k, tk = b.shape(0)[1], op.tile[2]
    chunks = ceil_div(k, tk)
    if not isinstance(splits, int) or not 2 <= splits <= chunks:
        raise PlanError(
            f"{name!r} has {chunks} chunks of {tk}, which do not split into {splits} splits", op.where
        )
    made = {f"{name}_{what}{s}" for s in range(splits - 1) for what in ("k", "partial")}
    refuse_taken(graph, name, made)
    cuts = [min(k, chunks * s // splits * tk) for s in range(splits + 1)]
    rows, n = b.out
    groups, epilogue = a.groups, op.epilogue or Epilogue()
    partials, tensors, extra = [], {}, []
    expression = epilogue.expression
    for s in range(splits - 1):
        partial = Tensor(f"{name}_partial{s}", (rows, groups * n), "float32", "partial", op.where, "rows")
        tensors[partial.name] = partial
        partials.append(
            replace(
                op,
                name=f"{name}_k{s}",
                operands=op.operands[:2],
                result=partial.name,
                epilogue=Epilogue(),
                attributes=replace(a, groups=1, k_range=(cuts[s], cuts[s + 1])),
                tile=(op.tile[0], op.tile[1] * groups, tk),
            )
        )
    for g in range(groups):
        total = f"acc{g}"
        for partial_op in partials:
            operand = Operand(partial_op.result, (g * n, g * n + n) if groups > 1 else None)
            extra.append(operand)
            total = f"({total} + e{len(epilogue.operands) + len(extra) - 1})"
        expression = tidy_expression(renumber(expression, {f"acc{g}": total}))
    first = len(op.operands)
    joined = Epilogue(expression, (*epilogue.operands, *((first + i, "elements") for i in range(len(extra)))))
    last = replace(
        op,
        operands=(*op.operands, *extra),
        epilogue=joined,
        attributes=replace(a, k_range=(cuts[-2], k)),
    )
    return graph.with_op(name, *partials, last, tensors=tensors)
