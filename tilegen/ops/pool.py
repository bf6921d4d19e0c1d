"""max_pool2d, avg_pool2d and global_avg_pool on channels-last tensors, and flatten, the view that leads from
there to linear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.conv2d import output_size, pair, window_rows
from tilegen.ops.spatial import spatial_tiles


@dataclass(frozen=True)
class PoolAttributes(Attributes):
    """Rows and columns of each."""

    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True)
class AvgPoolAttributes(PoolAttributes):
    """counts_padding: whether a mean is over the whole window, also where it hangs over the image."""

    counts_padding: bool = True


@dataclass(frozen=True)
class GlobalAvgPoolAttributes(Attributes):
    """None: the window is the whole image."""


def max_pool2d(
    x: Value, window: Any, *, stride: Any = None, padding: Any = 0, name: str | None = None
) -> Value:
    """y[b, p, q, c] = max over the window of x, as torch.nn.functional.max_pool2d; padding never wins.

    x (B, H, W, C); y (B, P, Q, C) of x's dtype. window, stride (the window unless given) and padding, in
    pixels: an int, or two for height and width.

    Raises:
        SpecError: x has not four dimensions, the padding is over half of the window, or the window does not
            fit.
    """
    return _pooled("max_pool2d", x, _windows("max_pool2d", x, window, stride, padding, caller()), name)


def avg_pool2d(
    x: Value,
    window: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
    name: str | None = None,
) -> Value:
    """y[b, p, q, c] = mean over the window of x, in float32, as torch.nn.functional.avg_pool2d.

    x (B, H, W, C); y (B, P, Q, C) of x's dtype. window, stride (the window unless given) and padding, in
    pixels: an int, or two for height and width. count_include_pad: whether padding counts as zeros; else a
    mean is over the pixels inside the image.

    Raises:
        SpecError: x has not four dimensions, the padding is over half of the window, or the window does not
            fit.
    """
    where = caller()
    need(
        isinstance(count_include_pad, bool),
        f"avg_pool2d: count_include_pad is True or False, given {count_include_pad!r}",
        where,
    )
    a = _windows("avg_pool2d", x, window, stride, padding, where)
    return _pooled("avg_pool2d", x, AvgPoolAttributes(a.window, a.stride, a.padding, count_include_pad), name)


def _windows(kind: str, x: Value, window: Any, stride: Any, padding: Any, where: str) -> PoolAttributes:
    """Of a pool of images, checked."""
    tensors(kind, where, x=x)
    need(len(x.shape) == 4, f"{kind}: x is (B, H, W, C), given {x.shape}", where)
    window = pair(window, f"{kind}: window", 1, where)
    stride = window if stride is None else pair(stride, f"{kind}: stride", 1, where)
    padding = pair(padding, f"{kind}: padding", 0, where)
    need(
        all(2 * p <= w for p, w in zip(padding, window, strict=True)),
        f"{kind}: padding {padding} is over half of the window {window}",
        where,
    )
    return PoolAttributes(window, stride, padding)


def _pooled(kind: str, x: Value, a: PoolAttributes, name: str | None) -> Value:
    where = caller()
    size = tuple(output_size(x.shape[1 + d], a.window[d], a.stride[d], a.padding[d]) for d in (0, 1))
    need(
        all(not isinstance(n, int) or n >= 1 for n in size),
        f"{kind}: window {a.window} does not fit into {x.shape[1:3]}",
        where,
    )
    shape = (x.shape[0], *size, x.shape[3])
    return call(kind, name, [x.operand("spatial", where)], shape, x.dtype, "spatial", a, where)


def global_avg_pool(x: Value, *, name: str | None = None) -> Value:
    """y[b, c] = mean over h and w of x[b, h, w, c], in float32.

    x (B, H, W, C); y (B, C) of x's dtype.

    Raises:
        SpecError: x has not four dimensions.
    """
    where = caller()
    tensors("global_avg_pool", where, x=x)
    need(len(x.shape) == 4, f"global_avg_pool: x is (B, H, W, C), given {x.shape}", where)
    return call(
        "global_avg_pool",
        name,
        [x.operand("spatial", where)],
        (x.shape[0], x.shape[3]),
        x.dtype,
        "rows",
        GlobalAvgPoolAttributes(),
        where,
    )


def flatten(x: Value) -> Value:
    """y[b, (h·W + w)·C + c] = x[b, h, w, c]: a view, no copy. The order is channels-last, unlike torch's.

    x (B, H, W, C); y (B, H·W·C).

    Raises:
        SpecError: x is not a whole tensor of four dimensions.
    """
    where = caller()
    tensors("flatten", where, x=x)
    need(
        len(x.shape) == 4 and x.columns is None,
        f"flatten: x is a whole (B, H, W, C) tensor, given {x.shape}",
        where,
    )
    x.operand("spatial", where)
    return replace(x, shape=(x.shape[0], math.prod(x.shape[1:])), flattened=True)


class _Pool(OpDef):
    """Tile tb images x th rows x tw columns x tc channels of the output."""

    coords, stem, fusable = ("b", "p", "q", "c"), "pool", True
    operands, width = ("x",), 3

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=False))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = PoolAttributes.of(b)
        (n, p, q, c), (tb, th, tw, tc) = b.coords, b.tile
        x = b.shape(0)
        rows, rows_exact = window_rows(p, th, b.out[1], x[1], a.window[0], a.stride[0], a.padding[0], 1)
        cols, cols_exact = window_rows(q, tw, b.out[2], x[2], a.window[1], a.stride[1], a.padding[1], 1)
        return (
            Access(
                0, (blocks(n, tb, x[0]), rows, cols, blocks(c, tc, x[3])), exact=rows_exact and cols_exact
            ),
        )

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=False))

    def flops(self, b: OpInstance) -> float:
        a = PoolAttributes.of(b)
        return float(math.prod(b.tile) * math.prod(a.window))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        c = b.out[3] if isinstance(b.out[3], int) else 64
        return [(*t, min(c, tc)) for t in spatial_tiles(b.out, (64,)) for tc in (128, 64)]


@register
class MaxPool2d(_Pool):
    name, attributes = "max_pool2d", PoolAttributes

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = PoolAttributes.of(b)
        import torch.nn.functional as F

        return [
            F.max_pool2d(operands[0].permute(0, 3, 1, 2), a.window, a.stride, a.padding).permute(0, 2, 3, 1)
        ]


@register
class AvgPool2d(_Pool):
    name, attributes = "avg_pool2d", AvgPoolAttributes

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = AvgPoolAttributes.of(b)
        import torch.nn.functional as F

        x = operands[0].permute(0, 3, 1, 2)
        y = F.avg_pool2d(x, a.window, a.stride, a.padding, count_include_pad=a.counts_padding)
        return [y.permute(0, 2, 3, 1)]


@register
class GlobalAvgPool(OpDef):
    """Tile tb images x tc channels."""

    name, coords, stem, fusable = "global_avg_pool", ("b", "c"), "pool", True
    operands, attributes = ("x",), GlobalAvgPoolAttributes
    width = 1

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=False))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        rows, columns = self.write(b)
        _, h, w, _ = b.shape(0)
        return (Access(0, (rows, whole(h), whole(w), columns)),)

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=False))

    def flops(self, b: OpInstance) -> float:
        _, h, w, _ = b.shape(0)
        return float(math.prod(b.tile) * h * w)

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        c = b.out[1] if isinstance(b.out[1], int) else 64
        return [(1, min(c, 64)), (1, min(c, 128))]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        return [operands[0].mean(dim=(1, 2))]
