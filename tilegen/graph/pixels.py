"""A convolution as a linear over all pixels.

    conv2d(x, w) -> linear(A, w),    w (N, R, S, C)

    y[b, p, q, n] = Σ_rsc x[b, p·stride + r·dilation - padding, …, c] w[n, r, s, c]  is
    y[i, n] = Σ_k A[i, k] w[n, k],  i = (b·P + p)·Q + q,  k = (r·S + s)·C + c

Images are stored channels last, so the rows of w, of y and of what the epilogue reads are where they were. Of
one pixel, stride 1 and no padding, A is x itself. Of others a row of A is a patch of x (tilegen.ops.patches),
which is put together as it is loaded: by bulk copies, 64 channels of a pixel at a time (where C is no
multiple of 64, a step of the sum is a whole pixel of the filter), or by threads.

Tiles of rows are whole where boxes of pixels are not (14 rows of an image in boxes of 9), and a linear has
more forms: clusters that share rows, warpgroups in turn, residuals by TMA. But each pixel of a patch is
loaded, where a box of pixels slides over some: so it is a linear where that takes less time. Only of an op
that stands alone, or where the target has chains of them of a launch of convolutions, all of which become
linears: a tile of rows and the boxes of another op's pixels do not cut an image alike.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilegen.errors import PlanError
from tilegen.frontend.program import DTYPES
from tilegen.graph.conv_box import by_boxes
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import TileOp
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, patches
from tilegen.options import Options

TILE_OF_LINEAR = 3  # sizes of its tile: rows, columns, depth
LEAST_OF_LINEAR = 16 * 8 * 16  # numbers that it multiplies; no box of pixels has so many


def convolutions_in_rows(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph of one convolution, or of a chain of them, as that of linears, where they may be and that
    takes less time; or as the options cut them.

    Raises:
        PlanError: they cut one as a linear, which it cannot be, and bulk copies bring its pixels: no box of
            these is so large; or one of a chain as a linear, another in boxes.
    """
    if not graph.consists_of(ConvAttributes) or (len(graph.ops) > 1 and not place.target.patches_in_chains):
        return graph
    asked = {op.name: _in_rows(op, options) for op in graph.ops}
    for op in graph.ops:
        why = _problem(graph, op, place)
        if why and asked[op.name] and place.target.multiplies_patches and by_boxes(graph.bound(op)):
            raise PlanError(f"tile {_tile(op, options)} of {op.name!r} is a linear's, and {why}", op.where)
        if why:
            return graph
    answers = {a for a in asked.values() if a is not None}
    if len(answers) > 1:
        first = next(op for op in graph.ops if asked[op.name])
        raise PlanError(
            f"tile {_tile(first, options)} of {first.name!r} is a linear's, and other convolutions of the"
            " launch are cut in boxes of pixels: cut all of them alike",
            first.where,
        )
    rows = in_rows(graph)
    if answers:
        return rows if answers.pop() else graph
    one_pixel = all(of_one_pixel(graph, op) for op in graph.ops)
    return rows if one_pixel or place.forms.faster_in_rows(rows, graph, place.machine) else graph


def _tile(op: TileOp, options: Options) -> str:
    return "x".join(map(str, dict(options.tiles)[op.name]))


def _problem(graph: Graph, op: TileOp, place: Place) -> str:
    """Why a convolution can be no linear, or an empty string."""
    b = graph.bound(op)
    numbers = (b.shape(0)[-1], b.pitch(0), b.first(0), b.out[-1])
    units = DTYPES[b.result.dtype] == 2 and all(isinstance(n, int) and n % 8 == 0 for n in numbers)
    if not (place.target.on_gpu and units):
        return "its pixels are no whole 16-byte units of 2-byte numbers"
    if of_one_pixel(graph, op):
        return ""
    sizes = (*b.shape(0)[1:], *b.shape(1))
    if not place.target.multiplies_patches or not all(isinstance(n, int) for n in sizes):
        return "its patches are of no fixed size"
    seen = patches(graph.bound(as_linear(op)))
    return place.target.patches_problem(b, seen) if seen else ""


def in_rows(graph: Graph) -> Graph:
    """The graph of convolutions as that of linears."""
    tensors = {name: t.as_rows for name, t in graph.tensors.items()}
    return replace(graph, ops=tuple(as_linear(op) for op in graph.ops), tensors=tensors)


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
        return len(tile) == TILE_OF_LINEAR and math.prod(tile) >= LEAST_OF_LINEAR
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


REWRITE = Rewrite(5, convolutions_in_rows, lines)
