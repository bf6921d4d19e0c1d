"""conv2d: y[b, p, q, n] = Σ_{r, s, c} x[b, p·stride + r·dilation - padding, …, c] w[n, r, s, c], channels
last."""

from __future__ import annotations

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
    K,
    OpDef,
    OpInstance,
    blocks,
    ceil_div,
    need,
    register,
    whole,
)
from tilegen.ops.extrema import largest, smallest
from tilegen.ops.pointwise import pointwise
from tilegen.ops.spatial import spatial_tiles


@dataclass(frozen=True)
class ConvAttributes(Attributes):
    """Rows and columns of each."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True)
class GroupedConvAttributes(Attributes):
    """Rows and columns of each; into how many groups channels and filters fall."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def pair(value: Any, what: str, least: int, where: str) -> tuple[int, int]:
    """(h, w) from one int or two; SpecError when they are not ints of at least `least`."""
    both = (
        (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
    )
    need(
        len(both) == 2 and all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in both),
        f"{what} must be one or two ints of at least {least}, given {value!r}",
        where,
    )
    return both


def output_size(size: Size, window: int, stride: int, padding: int, dilation: int = 1) -> Size:
    """⌊(size + 2·padding - dilation·(window - 1) - 1) / stride⌋ + 1."""
    room = size + 2 * padding - dilation * (window - 1) - 1
    return room // stride + 1 if isinstance(room, int) else sp.floor(room / sp.Integer(stride)) + 1


def conv2d(
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    name: str | None = None,
) -> Value:
    """y = x ∗ w + bias, as torch.nn.functional.conv2d on channels-last data.

    x (B, H, W, C), w (N, R, S, C / groups) and bias (N,) of one dtype; y (B, P, Q, N), summed in float32.
    stride, padding and dilation, in pixels: an int, or two for height and width. groups: a divisor of C and
    of N; filter n sees the channels of group ⌊n · groups / N⌋ alone. groups = C: depthwise.

    Raises:
        SpecError: the shapes, channels or dtypes do not meet, w is a view, groups does not divide C and N, or
            the filter does not fit into the padded image.
    """
    where = caller()
    tensors("conv2d", where, x=x, w=w)
    need(
        len(x.shape) == 4 and len(w.shape) == 4,
        f"conv2d: x is (B, H, W, C) and w (N, R, S, C), given {x.shape} and {w.shape}",
        where,
    )
    need(
        isinstance(groups, int)
        and not isinstance(groups, bool)
        and groups >= 1
        and x.shape[3] % groups == w.shape[0] % groups == 0,
        f"conv2d: groups divide the {x.shape[3]} channels and the {w.shape[0]} filters, given {groups!r}",
        where,
    )
    need(
        x.shape[3] == w.shape[3] * groups,
        f"conv2d: x has {x.shape[3]} channels{f' in {groups} groups' if groups > 1 else ''}, w expects"
        f" {w.shape[3]}{' of each' if groups > 1 else ''} (NHWC activations, KRSC weights)",
        where,
    )
    need(w.columns is None, f"conv2d: w is a whole tensor, given some columns of {w.tensor!r}", where)
    need(x.dtype == w.dtype, f"conv2d: x is {x.dtype}, w is {w.dtype}; expected one dtype", where)
    stride, padding = pair(stride, "conv2d: stride", 1, where), pair(padding, "conv2d: padding", 0, where)
    dilation = pair(dilation, "conv2d: dilation", 1, where)
    size = tuple(
        output_size(x.shape[1 + d], w.shape[1 + d], stride[d], padding[d], dilation[d]) for d in (0, 1)
    )
    need(
        all(not isinstance(n, int) or n >= 1 for n in size),
        f"conv2d: the {w.shape[1:3]} filter does not fit into {x.shape[1:3]} with padding {padding}",
        where,
    )
    attributes: Attributes = ConvAttributes(stride, padding, dilation)
    if groups > 1:
        attributes = GroupedConvAttributes(stride, padding, dilation, groups)
    y = call(
        "conv2d" if groups == 1 else "grouped_conv2d",
        name,
        [x.operand("spatial", where), w.operand("filter", where)],
        (x.shape[0], *size, w.shape[0]),
        x.dtype,
        "spatial",
        attributes,
        where,
    )
    if bias is None:
        return y
    tensors("conv2d", where, bias=bias)
    return pointwise("e0 + e1", y, bias, where=where)


def window_rows(
    index: Any, tile: int, out: Size, size: Size, window: int, stride: int, padding: int, dilation: int
) -> tuple[Interval, bool]:
    """Input rows under output rows [tile·index, tile·index + tile): { p·stride + r·dilation - padding }
    inside [0, size).

    The rows are without gaps, or evenly spaced, in all usual cases; else the covering range is given and
    marked as not exact.
    """
    p = blocks(index, tile, out)
    lo = p.lo * stride - padding
    hi = (p.hi - 1) * stride + dilation * (window - 1) - padding + 1
    step, exact = 1, True
    rows = min(tile, out) if isinstance(out, int) else tile
    uneven = not (isinstance(out, int) and (out <= tile or out % tile == 0))  # the last tile is shorter
    if window == 1:
        step = stride  # p·stride - padding alone
    elif rows == 1 and not uneven:
        step = dilation
    elif stride == 1:
        exact = rows >= dilation and not (uneven and dilation > 1)
    else:
        exact = dilation == 1 and window >= stride
    if padding > 0:
        first = sp.Integer(0) if step == 1 else sp.Mod(lo, step)  # the first element inside keeps the spacing
        lo = largest(lo, first)
    last = (out - 1) * stride + dilation * (window - 1) - padding + 1
    if not (isinstance(last, int) and isinstance(size, int) and last <= size):
        hi = smallest(hi, size)
    return Interval(sp.sympify(lo), sp.sympify(hi), step if exact else 1), exact


@register
class Conv2d(OpDef):
    """Output tile tb images x th rows x tw columns x tn channels; steps over input channels, all filter
    positions inside a step."""

    name, coords, stem, fusable = "conv2d", ("b", "p", "q", "j"), "conv2d", True
    operands, attributes = ("x", "w"), ConvAttributes
    width, clusters, mma = 3, True, True

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=False))

    def steps(self, b: OpInstance) -> Any:
        return ceil_div(b.shape(0)[3], b.tile[4])

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = ConvAttributes.of(b)
        (n, p, q, j), (tb, th, tw, tn, tc) = b.coords, b.tile
        _, r, s, c = b.shape(1)
        x = b.shape(0)
        rows, rows_exact = window_rows(p, th, b.out[1], x[1], r, a.stride[0], a.padding[0], a.dilation[0])
        cols, cols_exact = window_rows(q, tw, b.out[2], x[2], s, a.stride[1], a.padding[1], a.dilation[1])
        chunk = blocks(K, tc, c)
        return (
            Access(0, (blocks(n, tb, x[0]), rows, cols, chunk), exact=rows_exact and cols_exact),
            Access(1, (blocks(j, tn, b.out[3]), whole(r), whole(s), chunk)),
        )

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=False))

    def flops(self, b: OpInstance) -> float:
        _, r, s, c = b.shape(1)
        tb, th, tw, tn, _ = b.tile
        return 2.0 * tb * th * tw * tn * r * s * c

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        wide = b.out[3] if isinstance(b.out[3], int) else 256
        vectors = ceil_div(wide, 8) * 8
        return [(*t, min(vectors, tn), 64) for t in spatial_tiles(b.out, (128, 64)) for tn in (128, 64, 256)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = ConvAttributes.of(b)
        import torch.nn.functional as F

        x, w = (t.permute(0, 3, 1, 2) for t in operands[:2])
        return [F.conv2d(x, w, stride=a.stride, padding=a.padding, dilation=a.dilation).permute(0, 2, 3, 1)]
