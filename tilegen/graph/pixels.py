"""A convolution of one pixel as a linear over all pixels.

    conv2d(x, w) -> linear(x, w),    w (N, 1, 1, C), stride 1, no padding

    y[b, p, q, n] = Σ_c x[b, p, q, c] w[n, 0, 0, c]  is  y[i, n] = Σ_c x[i, c] w[n, c],  i = (b·H + p)·W + q

Images are stored channels last, so the rows of x, of y and of what the epilogue reads are where they were.
Tiles of rows are whole where boxes of pixels are not (14 rows of an image in boxes of 9), and a linear has
more forms: clusters that share rows, warpgroups in turn, residuals by TMA. Only of an op that stands alone: a
tile of rows and the boxes of another op's pixels do not cut an image alike.
"""

from __future__ import annotations

from dataclasses import replace

from tilegen.frontend.program import DTYPES
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import TileOp
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options


def alone_as_linear(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph of one convolution of one pixel as that of a linear, where a pixel of x and one of y are
    whole 16-byte units of 2-byte numbers, and unless the options cut it as a convolution."""
    (op, *others) = graph.ops
    if others or not (place.target.on_gpu and of_one_pixel(graph, op) and _in_units(graph, op)):
        return graph
    if _cut(op, options):
        return graph
    return replace(
        graph,
        ops=(as_linear(op),),
        tensors={name: t.as_rows for name, t in graph.tensors.items()},
    )


def of_one_pixel(graph: Graph, op: TileOp) -> bool:
    """Whether each pixel of its result is made of the same pixel of x alone."""
    if not isinstance(op.attributes, ConvAttributes):
        return False
    _, rows, columns, _ = graph.bound(op).shape(1)
    a = op.attributes
    return (rows, columns, a.stride, a.padding, a.dilation) == (1, 1, (1, 1), (0, 0), (1, 1))


def _in_units(graph: Graph, op: TileOp) -> bool:
    b = graph.bound(op)
    numbers = (b.shape(0)[-1], b.out[-1])
    return DTYPES[b.result.dtype] == 2 and all(isinstance(n, int) and n % 8 == 0 for n in numbers)


def as_linear(op: TileOp) -> TileOp:
    return replace(op, kind="linear", attributes=LinearAttributes(groups=1), pixels=True)


def _cut(op: TileOp, options: Options) -> bool:
    """Whether they have a tile for it, which is one of boxes of pixels, or clusters."""
    return op.name in dict(options.tiles) or op.name in dict(options.cluster)


def lines(graph: Graph, place: Place) -> list[str]:
    """For `explain`: each convolution that is a linear."""
    return [
        f"convolution {op.name} is a linear: each pixel is made of one, rows are pixels"
        for op in graph.ops
        if op.pixels
    ]


REWRITE = Rewrite(5, alone_as_linear, lines)
