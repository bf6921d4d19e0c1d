"""grouped_conv2d: y[b, p, q, n] = Σ_{r, s, c} x[b, p·stride + r·dilation - padding, …, g·C' + c] w[n, r, s,
c], g = ⌊n / N'⌋, of C' channels and N' filters a group; channels last.

What tg.conv2d makes of groups > 1. Depthwise: a group is one channel with one filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, register, whole
from tilegen.ops.conv2d import GroupedConvAttributes, window_rows
from tilegen.ops.spatial import spatial_tiles

STAGED = 16384  # the most filter weights of a tile, which threads hold in shared memory


def channels_of(b: OpInstance) -> int:
    """Of a group, of the input."""
    return int(b.shape(1)[3])


def filters_of(b: OpInstance) -> int:
    """Of a group."""
    return int(b.out[3]) // GroupedConvAttributes.of(b).groups


def by_eights(b: OpInstance) -> bool:
    """Whether eight neighbouring channels of y are made of the same eight of x: depthwise, or in whole
    groups."""
    each = channels_of(b)
    if each != filters_of(b) or 8 % each:
        return False
    first = (b.op.operands[0].columns or (0, 0))[0]
    return each == 1 or all(n % 8 == 0 for n in (first, b.pitch(0), b.out[3]))


@register
class GroupedConv2d(OpDef):
    """Output tile tb images x th rows x tw columns x tg groups."""

    name, coords, stem, fusable = "grouped_conv2d", ("b", "p", "q", "c"), "conv2d", True
    operands, attributes = ("x", "w"), GroupedConvAttributes

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        sizes = (*b.out[:3], GroupedConvAttributes.of(b).groups)
        return tuple(ceil_div(n, t) for n, t in zip(sizes, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = GroupedConvAttributes.of(b)
        (n, p, q, g), (tb, th, tw, tg) = b.coords, b.tile
        (_, h, w, c), (_, r, s, _) = b.shape(0), b.shape(1)
        rows, rows_exact = window_rows(p, th, b.out[1], h, r, a.stride[0], a.padding[0], a.dilation[0])
        cols, cols_exact = window_rows(q, tw, b.out[2], w, s, a.stride[1], a.padding[1], a.dilation[1])
        image = (blocks(n, tb, b.out[0]), rows, cols, blocks(g, tg * channels_of(b), c))
        filters = (blocks(g, tg * filters_of(b), b.out[3]), whole(r), whole(s), whole(channels_of(b)))
        return (Access(0, image, exact=rows_exact and cols_exact), Access(1, filters))

    def write(self, b: OpInstance) -> Box:
        sizes = (*b.tile[:3], b.tile[3] * filters_of(b))
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, sizes, b.out, strict=True))

    def flops(self, b: OpInstance) -> float:
        return 2.0 * math.prod(b.tile) * filters_of(b) * math.prod(int(n) for n in b.shape(1)[1:])

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        if not by_eights(b):  # a group is a product of its own
            return [(*t, 1) for t in spatial_tiles(b.out, (64, 32) if filters_of(b) <= 256 else (32, 16))]
        weights = math.prod(int(n) for n in b.shape(1)[1:])  # of a filter
        widths = [n for n in (64, 32, 8) if n * weights <= STAGED] or [8]
        groups = min(int(b.out[3]), widths[0]) // channels_of(b)
        return [(*t, groups) for t in spatial_tiles(b.out, (128, 64))]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = GroupedConvAttributes.of(b)
        import torch.nn.functional as F

        x, w = (t.permute(0, 3, 1, 2) for t in operands[:2])
        y = F.conv2d(x, w, stride=a.stride, padding=a.padding, dilation=a.dilation, groups=a.groups)
        return [y.permute(0, 2, 3, 1)]
