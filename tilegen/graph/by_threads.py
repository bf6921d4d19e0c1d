"""A linear whose rows no bulk copy brings as a matmul, which threads bring themselves.

    linear(x, w) -> matmul(x, w), transpose_b        y[m, n] = Σ_k x[m, k] w[n, k]

    y = f(gate, up) of one linear -> sums = matmul(x, w); y = f(sums[:, :N], sums[:, N:])

Bulk copies take rows of whole 16-byte units of two-byte numbers. Where x or w has others (77 columns, a view
from column 3 on, float32, int8 weights), and the target's linears know bulk copies alone, the op is a matmul:
the same sums of the same numbers. A gated pair has one accumulator an op then; its halves, rounded to the
result's type, meet in an op of pointwise maths.
"""

from __future__ import annotations

from dataclasses import replace

from tilegen.frontend.program import DTYPES, PAIRED, UNIT, Tensor
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import renumber
from tilegen.graph.graph import Graph, refuse_taken
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import Epilogue, OpInstance, TileOp
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes
from tilegen.ops.pointwise import PointwiseAttributes
from tilegen.options import Options


def as_matmuls(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph with such linears as matmuls."""
    if place.target.any_linear:
        return graph
    for op in graph.ops:
        b = graph.bound(op)
        if isinstance(op.attributes, LinearAttributes) and why(b, place):
            graph = as_matmul(graph, b)
    return graph


def as_matmul(graph: Graph, b: OpInstance) -> Graph:
    """The graph with that linear as one."""
    return _gated(graph, b) if LinearAttributes.of(b).groups > 1 else _plain(graph, b)


def why(b: OpInstance, place: Place) -> str:
    """Why the target's linears do not take its rows, or an empty string. Rows of pairs are whole units."""
    if b.dtype(0) in PAIRED:
        return ""
    for n in (0, 1):
        operand, shape = b.op.operands[n], b.shape(n)
        size = DTYPES[b.dtype(n)]
        if size != 2:
            return f"{operand.tensor!r} is {b.dtype(n)}"
        first = (operand.columns or (0, 0))[0]
        for what, columns in (("columns", shape[-1]), ("a row of", b.pitch(n)), ("first column", first)):
            if isinstance(columns, int) and columns * size % UNIT:
                return f"{operand.tensor!r} has {what} {columns}"
    columns = b.out[-1]
    if not place.target.odd_results and isinstance(columns, int) and columns % (UNIT // 2):
        return f"{b.op.result!r} has columns {columns}"
    return ""


def _matmul(b: OpInstance, n: int) -> MatmulAttributes:
    m, k = b.shape(0)
    return MatmulAttributes(1, 1, m, n, k, transpose_a=False, transpose_b=True)


def _plain(graph: Graph, b: OpInstance) -> Graph:
    return graph.with_op(b.op.name, replace(b.op, kind="matmul", attributes=_matmul(b, b.out[1])))


def _gated(graph: Graph, b: OpInstance) -> Graph:
    op, (rows, columns) = b.op, b.out
    assert op.epilogue is not None  # that joins the pair
    sums, joined = f"{op.name}_sums", f"{op.name}_joined"
    refuse_taken(graph, op.name, {sums, joined})
    x, w, *extras = op.operands
    product = TileOp(
        op.name, "matmul", (x, w), sums, _matmul(b, 2 * columns), Epilogue("acc0", ()), where=op.where
    )
    halves = tuple(replace(x, tensor=sums, columns=c) for c in ((0, columns), (columns, 2 * columns)))
    names = {f"acc{g}": f"e{g}" for g in range(2)} | {f"e{n}": f"e{n + 2}" for n in range(len(extras))}
    hows = ("elements", "elements", *(how for _, how in op.epilogue.operands))
    order = (*halves, *(op.operands[index] for index, _ in op.epilogue.operands))
    maths = Epilogue(renumber(op.epilogue.expression, names), tuple(enumerate(hows)))
    after = TileOp(joined, "pointwise", order, op.result, PointwiseAttributes(), maths, where=op.where)
    made = Tensor(sums, (rows, 2 * columns), b.result.dtype, "intermediate", op.where, "rows")
    return graph.with_op(op.name, product, after, tensors={sums: made})


def lines(graph: Graph, place: Place) -> list[str]:
    """For `explain`: each product whose rows threads bring."""
    if place.target.any_linear:
        return []
    return [
        f"{b.op.name} is a matmul, whose rows threads bring: {why(b, place)}, and linears take rows of whole"
        f" {UNIT}-byte units of two-byte numbers"
        for b in graph.ops_of(MatmulAttributes)
        if MatmulAttributes.of(b).transpose_b and why(b, place)
    ]


REWRITE = Rewrite(4, as_matmuls, lines)
