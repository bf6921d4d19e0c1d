"""How the pixels of a convolution's tile lie in a Hopper CTA's shared memory: rows of 64 channels, a pixel
each, which tensor cores read as 64 or 128 rows of activations.

Where it fits, a tile slides: its lines are loaded once for a filter line, with the pixels beside them, and
position s of the filter line reads from row s on. Of 32 channels at a time it slides over the whole filter:
the lines above and below are loaded, too, and position (r, s) reads from row r · line + s on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.conv2d import ConvAttributes

MOST_ROWS = 128  # of a tile
MOST_STRIDE = 8  # of a tensor map
SLIDING_DEPTH = 32  # channels of a step whose tile slides over the whole filter
MOST_POSITIONS = 9  # of such a filter: each is a part of the text


def by_boxes(b: OpInstance) -> bool:
    """Whether bulk copies bring a convolution's pixels: whole 16-byte units, eight channels, also of a
    view."""
    if not isinstance(b.attributes, ConvAttributes):
        return False
    return all(n % 8 == 0 for n in (b.shape(0)[3], b.pitch(0), b.first(0)))


@dataclass(frozen=True)
class Window:
    """What of a convolution its boxes depend on: thousands of them are looked at, of one op."""

    lines: int  # of the filter
    columns: int
    channels: int
    stride: int  # from pixel to pixel of a line
    reach: int  # pixels beside a line that a filter line sees
    reach_down: int  # lines below the first that a filter sees

    @staticmethod
    def of(b: OpInstance) -> Window:
        """Kept with the op."""
        found: Window | None = b.__dict__.get("_window")
        if found is None:
            a, (_, lines, columns, channels) = ConvAttributes.of(b), (int(n) for n in b.shape(1))
            down, across = (lines - 1) * a.dilation[0], (columns - 1) * a.dilation[1]
            found = b.__dict__["_window"] = Window(lines, columns, channels, a.stride[1], across, down)
        return found


@dataclass(frozen=True)
class ConvBox:
    """The box of pixels (images, lines, pixels of a line) of a convolution's tile, `depth` channels of a
    filter position at a time."""

    bound: OpInstance
    pixels: tuple[int, int, int]
    depth: int

    @staticmethod
    def of(b: OpInstance, tile: tuple[int, ...]) -> ConvBox:
        """Of a convolution with this tile."""
        images, lines, pixels, _, depth = tile
        return ConvBox(b, (images, lines, pixels), depth)

    @cached_property
    def window(self) -> Window:
        return Window.of(self.bound)

    @property
    def filter(self) -> tuple[int, int]:
        return self.window.lines, self.window.columns

    @cached_property
    def slides(self) -> bool:
        """Whether a tile's lines are loaded once for all positions of a filter line."""
        (images, lines, width), w = self.pixels, self.window
        once = w.columns > 1 and w.stride == 1 and self.depth == 64
        return self.slides_down or (once and images * lines * (width + w.reach) <= MOST_ROWS)

    @property
    def slides_down(self) -> bool:
        """Whether its pixels are loaded once for the whole filter."""
        return self.depth == SLIDING_DEPTH

    @property
    def sliding_problem(self) -> str:
        """Why a tile that is to slide over the whole filter cannot, or an empty string."""
        if not self.slides_down:
            return ""
        a, positions = ConvAttributes.of(self.bound), math.prod(self.filter)
        if not 1 < positions <= MOST_POSITIONS or max(a.stride) > 1:
            return (
                f"{SLIDING_DEPTH} channels at a time are for filters of 2 to {MOST_POSITIONS} pixels and"
                f" stride 1, not {self.filter[0]} x {self.filter[1]} and {a.stride}"
            )
        if self.pixels[0] > 1 or not 64 < self.spanned <= MOST_ROWS:
            return (
                f"{SLIDING_DEPTH} channels at a time are for lines of one image that take 65 to {MOST_ROWS}"
                f" rows with {self.window.reach} more pixels each, not {self.pixels[0]} x {self.spanned}"
            )
        return ""

    @property
    def row_bytes(self) -> int:
        """Of shared memory: the channels of a pixel."""
        return 2 * min(self.depth, 64)

    @property
    def line(self) -> int:
        """Rows of shared memory that a line takes."""
        return self.pixels[2] + (self.window.reach if self.slides else 0)

    @property
    def lines_loaded(self) -> int:
        """Of an image."""
        return self.pixels[1] + (self.window.reach_down if self.slides_down else 0)

    @cached_property
    def spanned(self) -> int:
        """Rows of shared memory that a filter position reads for a tile's pixels."""
        return self.pixels[0] * self.pixels[1] * self.line

    @cached_property
    def loaded(self) -> int:
        """Rows of shared memory that are loaded for a block of channels."""
        return self.pixels[0] * self.lines_loaded * self.line

    @property
    def loaded_whole(self) -> int:
        """The same, from one block of channels to the next: whole KiB, in which swizzles repeat."""
        rows = 1024 // self.row_bytes
        return ceil_div(self.loaded, rows) * rows

    @property
    def rows(self) -> int:
        """That tensor cores read."""
        return 64 if self.spanned <= 64 else 128

    @property
    def positions(self) -> int:
        """Of the filter, each of which is a step; or lines of it, or all of it."""
        if self.slides_down:
            return 1
        return self.filter[0] if self.slides else math.prod(self.filter)

    @property
    def blocks(self) -> int:
        """Products of a step with a block of channels: those of a filter (line), or of the channels of a
        position."""
        return math.prod(self.filter) // self.positions if self.slides else ceil_div(self.depth, 64)

    @property
    def blocks_loaded(self) -> int:
        """Of pixels, for a step."""
        return 1 if self.slides else self.blocks

    def stage_bytes(self, width: int) -> int:
        """That a step loads, with so many columns of filters."""
        return self.row_bytes * (self.loaded_whole * self.blocks_loaded + width * self.blocks)

    @property
    def steps(self) -> int:
        """Of a tile."""
        return self.positions * ceil_div(self.window.channels, self.depth)
