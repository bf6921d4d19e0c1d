"""conv_transpose2d: y[b, p, q, n] = Σ x[b, i, j, c] w[n, r, s, c] over i·stride + r·dilation - padding = p,
and j, s and q likewise; channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import (
    Access,
    Box,
    Interval,
    OpDef,
    OpInstance,
    blocks,
    ceil_div,
    need,
    register,
    whole,
)
from tilegen.ops.conv2d import pair
from tilegen.ops.extrema import largest, smallest
from tilegen.ops.pointwise import pointwise
from tilegen.ops.spatial import spatial_tiles


@dataclass(frozen=True)
class ConvTransposeAttributes(Attributes):
    """Rows and columns of each."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    output_padding: tuple[int, int]
    dilation: tuple[int, int]


def conv_transpose2d(
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    name: str | None = None,
) -> Value:
    """y[b, p, q, n] = bias[n] + Σ x[b, i, j, c] · w[n, r, s, c] over i · stride + r · dilation - padding = p,
    and over j, s and q likewise.

    x (B, H, W, C), w (N, R, S, C) and bias (N,) of one dtype; y (B, P, Q, N), P = (H - 1) · stride - 2 ·
    padding + dilation · (R - 1) + output_padding + 1, summed in float32. stride, padding, output_padding and
    dilation, in pixels: an int, or two for height and width. w is that of torch.nn.ConvTranspose2d, (C, N, R,
    S), with its channels last: permute(1, 2, 3, 0).

    Raises:
        SpecError: the shapes, channels or dtypes do not meet, w is a view, output_padding is neither less
            than stride nor than dilation, or padding leaves no pixel.

    Source: torch.nn.functional.conv_transpose2d.
    """
    where = caller()
    tensors("conv_transpose2d", where, x=x, w=w)
    need(
        len(x.shape) == 4 and len(w.shape) == 4,
        f"conv_transpose2d: x is (B, H, W, C) and w (N, R, S, C), given {x.shape} and {w.shape}",
        where,
    )
    need(
        x.shape[3] == w.shape[3],
        f"conv_transpose2d: x has {x.shape[3]} channels, w expects {w.shape[3]}; w is (N, R, S, C), torch's"
        " weight permute(1, 2, 3, 0)",
        where,
    )
    whole = f"conv_transpose2d: w is a whole tensor, given some columns of {w.tensor!r}"
    need(w.columns is None, whole, where)
    need(x.dtype == w.dtype, f"conv_transpose2d: x is {x.dtype}, w is {w.dtype}; expected one dtype", where)
    stride = pair(stride, "conv_transpose2d: stride", 1, where)
    padding = pair(padding, "conv_transpose2d: padding", 0, where)
    more = pair(output_padding, "conv_transpose2d: output_padding", 0, where)
    dilation = pair(dilation, "conv_transpose2d: dilation", 1, where)
    need(
        all(m < max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)),
        f"conv_transpose2d: output_padding is less than stride {stride} or dilation {dilation}, given {more}",
        where,
    )
    size = tuple(
        (n - 1) * s - 2 * before + d * (r - 1) + m + 1
        for n, r, s, before, m, d in zip(
            x.shape[1:3], w.shape[1:3], stride, padding, more, dilation, strict=True
        )
    )
    need(
        all(not isinstance(n, int) or n >= 1 for n in size),
        f"conv_transpose2d: padding {padding} leaves {size} pixels of {x.shape[1:3]} under the"
        f" {w.shape[1:3]} filter",
        where,
    )
    y = call(
        "conv_transpose2d",
        name,
        [x.operand("spatial", where), w.operand("filter", where)],
        (x.shape[0], *size, w.shape[0]),
        x.dtype,
        "spatial",
        ConvTransposeAttributes(stride, padding, more, dilation),
        where,
    )
    if bias is None:
        return y
    tensors("conv_transpose2d", where, bias=bias)
    return pointwise("e0 + e1", y, bias, where=where)


def source_rows(
    index: Any, tile: int, out: Size, size: Size, window: int, stride: int, padding: int, dilation: int
) -> Interval:
    """Input rows that reach output rows [tile·index, tile·index + tile): those i inside [0, size) with any of
    these from i·stride - padding to i·stride - padding + dilation·(window - 1).

    Under a dilation not all of these need be read: a tile may have the gaps of a filter alone.
    """
    p = blocks(index, tile, out)
    lo = ceil_div(largest(p.lo + padding - dilation * (window - 1), 0), stride)
    return Interval(sp.sympify(lo), sp.sympify(smallest(ceil_div(p.hi + padding, stride), size)))


@register
class ConvTranspose2d(OpDef):
    """Output tile tb images x th rows x tw columns x tn channels."""

    name, coords, stem, fusable = "conv_transpose2d", ("b", "p", "q", "j"), "conv_transpose2d", True
    operands, attributes, width = ("x", "w"), ConvTransposeAttributes, 3

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = ConvTransposeAttributes.of(b)
        (n, p, q, j), (tb, th, tw, tn) = b.coords, b.tile
        (_, h, w, c), (_, r, s, _) = b.shape(0), b.shape(1)
        lines = source_rows(p, th, b.out[1], h, r, a.stride[0], a.padding[0], a.dilation[0])
        pixels = source_rows(q, tw, b.out[2], w, s, a.stride[1], a.padding[1], a.dilation[1])
        image = (blocks(n, tb, b.out[0]), lines, pixels, whole(c))
        filters = (blocks(j, tn, b.out[3]), whole(r), whole(s), whole(c))
        return (Access(0, image), Access(1, filters))

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=True))

    def flops(self, b: OpInstance) -> float:
        """A pixel meets every stride-th line and column of the filter."""
        taps = math.prod(int(n) for n in b.shape(1)[1:]) / math.prod(ConvTransposeAttributes.of(b).stride)
        return 2.0 * math.prod(b.tile) * taps

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        """Of about so many pixels that meet the same lines and columns of the filter."""
        images, *lines, filters = b.out
        stride = ConvTransposeAttributes.of(b).stride
        alike = (images, *(ceil_div(n, s) for n, s in zip(lines, stride, strict=True)))
        width = min(filters, 64) if isinstance(filters, int) else 64
        return [(tb, th * stride[0], tw * stride[1], width) for tb, th, tw in spatial_tiles(alike, (64, 32))]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = ConvTransposeAttributes.of(b)
        import torch.nn.functional as F

        x, w = operands[0].permute(0, 3, 1, 2), operands[1].permute(3, 0, 1, 2)
        y = F.conv_transpose2d(x, w, None, a.stride, a.padding, a.output_padding, 1, a.dilation)
        return [y.permute(0, 2, 3, 1)]
