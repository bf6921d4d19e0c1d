"""A matmul of rows by rows as a linear, which tensor cores of a Hopper GPU compute from bulk copies.

    matmul(a, b), transpose_b -> linear(a, b)        y[n, m] = Σ_k a[n, k] b[m, k]

Batches that share b are rows of one matrix. Left alone are targets whose linears threads bring as they bring
matmuls, numbers that no wgmma multiplies, and ops that the options speak of: tiles of the two are not the
same.
"""

from __future__ import annotations

from dataclasses import replace

from tilegen.frontend.program import DTYPES
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import OpInstance
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes
from tilegen.options import Options


def as_linears(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph with such matmuls as linears."""
    if place.target.any_linear:
        return graph
    for b in graph.ops_of(MatmulAttributes):
        if of_rows(b) and not options.named & {b.op.name, b.op.result}:
            op = replace(b.op, kind="linear", attributes=LinearAttributes(groups=1))
            graph = graph.with_op(op.name, op)
    return graph


def of_rows(b: OpInstance) -> bool:
    """Whether it multiplies rows of both operands, the same ones of b in all batches."""
    a = MatmulAttributes.of(b)
    rows = a.transpose_b and not a.transpose_a and a.b_batch == 1
    return rows and DTYPES[b.dtype(0)] == DTYPES[b.dtype(1)] == 2


REWRITE = Rewrite(2, as_linears, lambda graph, place: [])
