"""The patches of images that a filter sees, as the rows of a matrix: a convolution as a linear (implicit
GeMM).

    A[i, (r·S + s)·C + c] = x[b, p·stride + r·dilation - padding, q·stride + s·dilation - padding, c],
    i = (b·P + p)·Q + q;    zero beside the image
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.frontend.program import Size
from tilegen.ops.base import Interval, whole

Pair = tuple[int, int]  # of lines, of pixels
BLOCK = 64  # columns of a matrix, as bulk copies bring them
SLICE = 16  # columns that one wgmma sums over
MOST_DEEP = 512  # columns of a step


@dataclass(frozen=True)
class Patches:
    """x: images of `size` pixels of so many channels; a row of the matrix for each of `result` places of a
    filter of `window` pixels."""

    images: Size
    size: Pair
    channels: int
    window: Pair
    result: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def rows_of_image(self) -> int:
        return math.prod(self.result)

    @property
    def step(self) -> int:
        """Columns of a step, of which a deeper one has a multiple: a block of 64, or a whole pixel's channels
        where these are no whole blocks."""
        return BLOCK if self.channels % BLOCK == 0 else self.channels

    @property
    def problem(self) -> str:
        """Why tensor cores cannot multiply them step by step, or an empty string."""
        if self.channels % BLOCK == 0 or (self.channels % SLICE == 0 and self.channels <= MOST_DEEP):
            return ""
        return (
            f"a pixel of its patches has {self.channels} channels, expected a multiple of {BLOCK}, or of"
            f" {SLICE} up to {MOST_DEEP}"
        )

    @property
    def numbers(self) -> float:
        """Of x that the filter sees, where it leaves none out between its places."""
        seen = (min(1.0, w / s) for w, s in zip(self.window, self.stride, strict=True))
        return int(self.images) * math.prod(self.size) * self.channels * math.prod(seen)

    @property
    def corners(self) -> tuple[Pair, Pair]:
        """Of the box in which the first pixel of a patch lies: how far it begins behind an image's first
        pixel, and ends behind its last."""
        lines, pixels = (
            p - d * (n - 1) for p, n, d in zip(self.padding, self.window, self.dilation, strict=True)
        )
        return (-self.padding[0], -self.padding[1]), (lines, pixels)

    def seen(self, rows: Interval) -> Interval:
        """Rows of x, a pixel each, that rows of the matrix may be made of: all of the images that they
        belong to."""
        pixels, each = math.prod(self.size), sp.Integer(self.rows_of_image)
        if self.images == 1:
            return whole(pixels)
        first, last = sp.floor(rows.lo / each), sp.floor((rows.hi - 1) / each)
        return Interval(pixels * first, pixels * (last + 1))

    def multiplied(self, x: Any, w: Any) -> Any:
        """A wᵀ of x (pixels, C) and w (N, R·S·C)."""
        import torch.nn.functional as F

        images = x.reshape(-1, *self.size, self.channels).permute(0, 3, 1, 2)
        filters = w.reshape(w.shape[0], *self.window, self.channels).permute(0, 3, 1, 2)
        y = F.conv2d(images, filters, stride=self.stride, padding=self.padding, dilation=self.dilation)
        return y.permute(0, 2, 3, 1).reshape(-1, w.shape[0])
