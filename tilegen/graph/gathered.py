"""How a convolution's pixels lie in a CTA's shared memory, and which of its tiles are worth trying."""

from __future__ import annotations

import math
from typing import Any

from tilegen.frontend.program import DTYPES, Size
from tilegen.graph.conv_box import by_boxes
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.spatial import spatial_tiles

MOST_SEEN = 16384  # elements that a tile of a convolution by threads holds of its input
MOST_POSITIONS = 384  # of 64 filters that it holds
FEWEST_FILTERS = 32  # that it holds
MOST_HELD = 52_000  # elements that it can hold of both


def seen(pixels: int, window: Size, stride: int, dilation: int) -> Any:
    """Lines or pixels of the input under so many of the output: the inverse of output_size."""
    return (pixels - 1) * stride + (window - 1) * dilation + 1


def by_threads(b: OpInstance) -> bool:
    """Whether pixels are no whole 16-byte units of two-byte numbers, which bulk copies move: threads of a GPU
    then bring them."""
    return isinstance(b.attributes, ConvAttributes) and not (by_boxes(b) and DTYPES[b.dtype(0)] == 2)


def few_tiles(b: OpInstance) -> list[tuple[int, int, int]]:
    """(tb, th, tw) for a convolution by threads.

    A tile costs more than its products, so it has up to many pixels, as long as what it reads is MOST_SEEN
    elements. Of patches that see more than that, it has the most that fit beside their filters.
    """
    a = ConvAttributes.of(b)
    (_, *window, channels), found = b.shape(1), spatial_tiles(b.out, (1024, 512, 256, 128, 64))

    def held(images: int, *pixels: int) -> Any:
        return (
            math.prod(seen(*size) for size in zip(pixels, window, a.stride, a.dilation, strict=True))
            * images
            * channels
        )

    if not isinstance(channels, int):
        return found
    fitting = [t for t in found if held(*t) <= MOST_SEEN]
    if fitting:
        return fitting
    smaller = spatial_tiles(b.out, (64, 32, 16, 8, 4, 2, 1))
    # an offset for each position, too
    room = MOST_HELD - (FEWEST_FILTERS + 2) * (math.prod(window) * channels + 16)
    return next(([t] for t in smaller if held(*t) <= room), smaller[-1:])


def gathered_tiles(b: OpInstance) -> list[tuple[int, ...]]:
    """Tiles of a convolution by threads: all input channels in one step."""
    channels = b.shape(1)[3] if isinstance(b.shape(1)[3], int) else 64
    vectors = ceil_div(b.out[3] if isinstance(b.out[3], int) else 256, 8) * 8
    widest = 64 if math.prod(b.shape(1)[1:3]) * channels <= MOST_POSITIONS else 32
    return [(*t, min(vectors, widest), max(64, channels)) for t in few_tiles(b)]
