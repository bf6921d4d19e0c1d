"""Nearest upsampling of channels-last images by whole factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register
from tilegen.ops.conv2d import pair
from tilegen.ops.spatial import spatial_tiles


@dataclass(frozen=True)
class UpsampleAttributes(Attributes):
    """factor: of rows and of columns."""

    factor: tuple[int, int]


def upsample(x: Value, factor: Any, *, name: str | None = None) -> Value:
    """y[b, p, q, c] = x[b, ⌊p / f⌋, ⌊q / g⌋, c].

    x (B, H, W, C); y (B, f·H, g·W, C) of x's dtype. factor: f and g, an int or two.

    Raises:
        SpecError: x has not four dimensions, or a factor is no positive int.

    Source: torch.nn.functional.interpolate, mode="nearest".
    """
    where = caller()
    tensors("upsample", where, x=x)
    need(len(x.shape) == 4, f"upsample: x is (B, H, W, C), given {x.shape}", where)
    f, g = pair(factor, "upsample: factor", 1, where)
    b, h, w, c = x.shape
    operands, shape = [x.operand("spatial", where)], (b, f * h, g * w, c)
    return call("upsample", name, operands, shape, x.dtype, "spatial", UpsampleAttributes((f, g)), where)


@register
class Upsample(OpDef):
    """Tile tb images x th rows x tw columns x tc channels of x, and all that is made of them."""

    name, coords, stem, fusable = "upsample", ("b", "p", "q", "c"), "pool", True
    operands, attributes, width = ("x",), UpsampleAttributes, 3

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.shape(0), b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        return (
            Access(0, tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.shape(0), strict=True))),
        )

    def write(self, b: OpInstance) -> Box:
        f, g = UpsampleAttributes.of(b).factor
        sizes = zip(b.coords, b.tile, (1, f, g, 1), b.out, strict=True)
        return tuple(blocks(c, t * by, n) for c, t, by, n in sizes)

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile) * math.prod(UpsampleAttributes.of(b).factor))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        x = b.shape(0)
        c = x[3] if isinstance(x[3], int) else 64
        return [(*t, min(c, tc)) for t in spatial_tiles(x, (32,)) for tc in (128, 64)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        f, g = UpsampleAttributes.of(b).factor
        return [operands[0].repeat_interleave(f, 1).repeat_interleave(g, 2)]
