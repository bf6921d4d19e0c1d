"""A convolution of each channel by its own filter, or of groups of two, four or eight, by threads
(templates/cuda/threads/depthwise.cuh.j2).

Y[p, q, n] = Σ_{r, s, c} X[p·stride + r·dilation - padding, …, ⌊n/C'⌋·C' + c] · W[n, r, s, c], C' channels a
group. A thread sums up a few neighbouring pixels of eight channels, so that what it has loaded serves several
of them. A tile's filters lie in shared memory as float32, those of eight channels in two 16-byte units, so
that neighbouring threads read neighbouring units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.codegen.thread_conv import REDUCTIONS
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.conv2d import GroupedConvAttributes
from tilegen.ops.grouped_conv2d import channels_of
from tilegen.ops.rows import THREADS

PIXELS = 4  # of a line, that a thread sums up together
HELD = 8  # filter columns that a thread holds
AT_ONCE = 20  # pixels of eight channels, packed


@dataclass(frozen=True)
class Depthwise:
    """unaligned: whether eights begin anywhere, so that other pixels' are others."""

    bound: OpInstance
    unaligned: bool

    @property
    def problem(self) -> str:
        width = self.bound.tile[3] * self.each
        if self.each > 1 and width % 8:
            return f"a tile has {width} channels, expected a multiple of 8"
        return ""

    @property
    def each(self) -> int:
        """Channels of a group."""
        return channels_of(self.bound)

    @property
    def pixels(self) -> int:
        """That a thread sums up together."""
        return 1 if self.unaligned and self.each == 1 else PIXELS

    @property
    def window(self) -> tuple[int, int]:
        return int(self.bound.shape(1)[1]), int(self.bound.shape(1)[2])

    @property
    def weights(self) -> int:
        """Of a filter."""
        return math.prod(self.window) * self.each

    @property
    def seen(self) -> int:
        """Pixels of a line of the image that a thread's pixels see."""
        a = GroupedConvAttributes.of(self.bound)
        return (self.pixels - 1) * a.stride[1] + (self.window[1] - 1) * a.dilation[1] + 1

    @property
    def ahead(self) -> bool:
        """Whether a thread holds a line of its channels' filters, and the pixels of the image's next line are
        on their way; else it reads filters for every pixel, one after another."""
        return self.each == 1 and self.window[1] <= HELD and not self.unaligned

    @property
    def at_once(self) -> bool:
        """Whether those of all lines are, since they are few."""
        return self.ahead and self.window[0] * self.seen <= AT_ONCE

    @property
    def eights(self) -> int:
        """Of a tile's channels."""
        return ceil_div(min(self.bound.tile[3] * self.each, int(self.bound.out[3])), 8)

    @property
    def turns(self) -> int:
        """In which threads bring a tile's filters, eight weights each."""
        return ceil_div(self.eights * self.weights, THREADS)

    @property
    def constant(self) -> bool:
        """Whether no op writes the filters."""
        return self.bound.tensors[self.bound.op.operands[1].tensor].constant

    @property
    def filters_at(self) -> int:
        return REDUCTIONS

    @property
    def bytes(self) -> int:
        return self.filters_at + 32 * self.eights * self.weights
