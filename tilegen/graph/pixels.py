"""A convolution as a linear over all pixels.

    conv2d(x, w) -> linear(A, w),    w (N, R, S, C)

    y[b, p, q, n] = Σ_rsc x[b, p·stride + r·dilation - padding, …, c] w[n, r, s, c]  is
    y[i, n] = Σ_k A[i, k] w[n, k],  i = (b·P + p)·Q + q,  k = (r·S + s)·C + c

Images are stored channels last, so the rows of w, of y and of what the epilogue reads are where they were. Of
one pixel, stride 1 and no padding, A is x itself. Of others a row of A is a patch of x (tilegen.ops.patches),
which bulk copies put together as they load it, 64 channels of a pixel at a time; where C is no multiple of
64, a step of the sum is a whole pixel of the filter.

Tiles of rows are whole where boxes of pixels are not (14 rows of an image in boxes of 9), and a linear has
more forms: clusters that share rows, warpgroups in turn, residuals by TMA. But each pixel of a patch is
loaded, where a box of pixels slides over some: so it is a linear where that takes less time. Only of an op
that stands alone: a tile of rows and the boxes of another op's pixels do not cut an image alike.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilegen.errors import PlanError
from tilegen.frontend.program import DTYPES
from tilegen.graph.conv_box import MOST_ROWS, MOST_STRIDE, by_boxes
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import TileOp
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, patches
from tilegen.options import Options

MOST_CORNER = 128  # of a tensor map in im2col mode
TILE_OF_LINEAR = 3  # sizes of its tile: rows, columns, depth


def alone_as_linear(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph of one convolution as that of a linear, where it may be one and that takes less time; or as
    the options cut it.

    Raises:
        PlanError: they cut it as a linear, which it cannot be, and bulk copies bring its pixels: no box of
            these is so large.
    """
    (op, *others) = graph.ops
    if others or not isinstance(op.attributes, ConvAttributes):
        return graph
    why, asked = _problem(graph, op, place), _in_rows(op, options)
    if why:
        if asked and place.target.multiplies_patches and by_boxes(graph.bound(op)):
            tile = "x".join(map(str, dict(options.tiles)[op.name]))
            raise PlanError(f"tile {tile} of {op.name!r} is a linear's, and {why}", op.where)
        return graph
    linear = in_rows(graph)
    if asked is None:
        asked = of_one_pixel(graph, op) or _faster(op, linear, graph, place)
    return linear if asked else graph


def _problem(graph: Graph, op: TileOp, place: Place) -> str:
    """Why a convolution can be no linear, or an empty string."""
    b, a = graph.bound(op), ConvAttributes.of(op)
    numbers = (b.shape(0)[-1], b.out[-1])
    units = DTYPES[b.result.dtype] == 2 and all(isinstance(n, int) and n % 8 == 0 for n in numbers)
    if not (place.target.on_gpu and units):
        return "its pixels are no whole 16-byte units of 2-byte numbers"
    if of_one_pixel(graph, op):
        return ""
    sizes, window = (*b.shape(0)[1:], *b.shape(1)), b.shape(1)[1:3]
    if not place.target.multiplies_patches or not all(isinstance(n, int) for n in sizes):
        return "its patches are of no fixed size"
    seen = patches(in_rows(graph).bound(as_linear(op)))
    if seen and seen.problem:
        return seen.problem
    reach = (d * (int(n) - 1) for d, n in zip(a.dilation, window, strict=True))
    if max(a.stride) > MOST_STRIDE or max(*a.padding, *reach) >= MOST_CORNER:
        return (
            f"a tensor map of patches takes strides up to {MOST_STRIDE}, and padding and filters that reach"
            f" less than {MOST_CORNER} pixels; given stride {a.stride}, padding {a.padding}, {window[0]} x"
            f" {window[1]} pixels of dilation {a.dilation}"
        )
    return ""


def _faster(op: TileOp, linear: Graph, boxes: Graph, place: Place) -> bool:
    as_linear, in_boxes = (place.forms.choose(g, place.machine).get(op.name) for g in (linear, boxes))
    return bool(as_linear and in_boxes and as_linear.us < in_boxes.us)


def in_rows(graph: Graph) -> Graph:
    """The graph of one convolution as that of a linear."""
    (op,) = graph.ops
    return replace(
        graph, ops=(as_linear(op),), tensors={name: t.as_rows for name, t in graph.tensors.items()}
    )


def of_one_pixel(graph: Graph, op: TileOp) -> bool:
    """Whether each pixel of a convolution's result is made of the same pixel of x alone."""
    _, rows, columns, _ = graph.bound(op).shape(1)
    a = ConvAttributes.of(op)
    return (rows, columns, a.stride, a.padding, a.dilation) == (1, 1, (1, 1), (0, 0), (1, 1))


def as_linear(op: TileOp) -> TileOp:
    """A convolution; one that is a linear stays."""
    if op.pixels:
        return op
    a = ConvAttributes.of(op)
    attributes = LinearAttributes(1, stride=a.stride, padding=a.padding, dilation=a.dilation)
    return replace(op, kind="linear", attributes=attributes, pixels=True)


def _in_rows(op: TileOp, options: Options) -> bool | None:
    """Whether they cut it as a linear: its tile has three sizes and is more than a box of pixels, of which
    others may be left out. None where they leave it open."""
    tile = dict(options.tiles).get(op.name)
    if tile:
        return len(tile) == TILE_OF_LINEAR and math.prod(tile) > MOST_ROWS
    return False if op.name in dict(options.cluster) or op.name in dict(options.split_k) else None


def lines(graph: Graph, place: Place) -> list[str]:
    """For `explain`: each convolution that is a linear."""
    return [
        f"convolution {op.name} is a linear: each pixel is made of {_made_of(graph, op)}, rows are pixels"
        for op in graph.ops
        if op.pixels
    ]


def _made_of(graph: Graph, op: TileOp) -> str:
    seen = patches(graph.bound(op))
    return f"a patch of {seen.window[0]} x {seen.window[1]}" if seen else "one"


REWRITE = Rewrite(5, alone_as_linear, lines)
