"""Tiles of a convolution that a portable kernel multiplies as a product (tilegen.targets.sm80.product)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilegen.arch.machine import Machine
from tilegen.frontend.dims import most
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.targets.sm80.block import SLOT, best_block

MOST_PIXELS = 256  # of a tile
FILTERS = (128, 64, 32)  # of a tile


def pixel_tiles(b: OpInstance, machine: Machine) -> list[tuple[int, ...]]:
    """The tile whose waves take the least time."""
    images, lines, pixels, filters = (most(n) for n in b.out)
    channels = int(b.shape(1)[3])
    depth = math.prod(int(n) for n in b.shape(1)[1:])
    room = machine.architecture.shared_block - SLOT

    def cost(tile: tuple[int, ...]) -> float:
        tb, th, tw, tn = tile
        count = (
            ceil_div(images, tb) * ceil_div(lines, th) * ceil_div(pixels, tw) * ceil_div(filters, tn)
        )
        block = best_block(tb * th * tw, tn, 1, depth, room, of_pixels=True)
        return ceil_div(count, machine.sms) * block.cost(tb * th * tw, tn, depth, room)

    boxes = set(_boxes(images, lines, pixels))
    widths = {min(n, filters) for n in FILTERS}
    best = min(((*box, n) for box in sorted(boxes) for n in sorted(widths)), key=cost)
    return [(*best, max(channels, 64))]


def _boxes(images: int, lines: int, pixels: int) -> Iterator[tuple[int, int, int]]:
    """Images, lines and pixels of tiles worth trying: parts of lines, whole lines where a tile may have so
    many pixels, whole images."""
    fewest = next(n for n in (1 << i for i in range(64)) if ceil_div(pixels, n) <= MOST_PIXELS)
    for part in (1, 2, 4, 8):
        width = ceil_div(pixels, part * fewest)
        for tw in {width, ceil_div(width, 8) * 8}:
            if tw > min(pixels, MOST_PIXELS):
                continue
            for th in range(1, min(lines, MOST_PIXELS // tw) + 1):
                yield 1, th, tw
                if (th, tw) == (lines, pixels):
                    for tb in range(2, min(images, MOST_PIXELS // (th * tw)) + 1):
                        yield tb, th, tw
