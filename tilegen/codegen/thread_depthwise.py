"""A convolution of each channel by its own filter, by threads (templates/cuda/threads/depthwise.cuh.j2).

Y[p, q, c] = Σ_{r, s} X[p·stride + r·dilation - padding, …, c] · W[c, r, s]. A thread sums up a few
neighbouring pixels of eight channels, so that what it has loaded serves several of them. A tile's filters lie
in shared memory as float32, the eight channels of a position in two 16-byte units, so that neighbouring
threads read neighbouring units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.codegen.thread_conv import REDUCTIONS
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.conv2d import GroupedConvAttributes

PIXELS = 4  # of a line, that a thread sums up together
HELD = 8  # filter columns that a thread holds


@dataclass(frozen=True)
class Depthwise:
    """pixels: that a thread sums up together."""

    bound: OpInstance
    pixels: int

    @property
    def window(self) -> tuple[int, int]:
        return int(self.bound.shape(1)[1]), int(self.bound.shape(1)[2])

    @property
    def positions(self) -> int:
        return math.prod(self.window)

    @property
    def seen(self) -> int:
        """Pixels of a line of the image that a thread's pixels see."""
        a = GroupedConvAttributes.of(self.bound)
        return (self.pixels - 1) * a.stride[1] + (self.window[1] - 1) * a.dilation[1] + 1

    @property
    def holds(self) -> bool:
        """Whether a thread holds a line of its channels' filters; else it reads them for every pixel."""
        return self.window[1] <= HELD

    @property
    def eights(self) -> int:
        """Of a tile's channels."""
        return ceil_div(min(self.bound.tile[3], int(self.bound.out[3])), 8)

    @property
    def filters_at(self) -> int:
        return REDUCTIONS

    @property
    def bytes(self) -> int:
        return self.filters_at + 32 * self.eights * self.positions
