"""Tiles of a convolution that a portable kernel multiplies as a product (tilegen.targets.sm80.product): boxes
of pixels, or runs of them where it is a linear of patches (tilegen.graph.pixels)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilegen.arch.machine import Machine
from tilegen.frontend.dims import most
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import patches
from tilegen.targets.sm80.block import SLOT, best_block

MOST_PIXELS = 256  # of a tile
SLICE = 16  # rows of an mma
FILTERS = (128, 64, 32)  # of a tile


@dataclass(frozen=True)
class PixelTile:
    """A tile of an op's pixels and filters, and the clocks that all of the op's tiles take. at: images, lines
    and pixels of a box, or the rows of a run."""

    at: tuple[int, ...]
    filters: int
    clocks: float

    @staticmethod
    def of(b: OpInstance, at: tuple[int, ...], filters: int, depth: int, machine: Machine) -> PixelTile:
        room = machine.architecture.shared_block - SLOT
        tiles = math.prod(ceil_div(most(n), t) for n, t in zip(b.out, (*at, filters), strict=True))
        pixels = math.prod(at)
        block = best_block(pixels, filters, 1, depth, room, of_pixels=True)
        each = block.cost(pixels, filters, depth, room) * depth / SLICE
        return PixelTile(at, filters, ceil_div(tiles, machine.sms) * each)


def best_tile(b: OpInstance, machine: Machine) -> PixelTile:
    """The tile whose waves take the least time."""
    *pixels, filters = (most(n) for n in b.out)
    depth = math.prod(int(n) for n in b.shape(1)[1:])
    widths = sorted({min(n, filters) for n in FILTERS})
    found = (PixelTile.of(b, at, n, depth, machine) for at in sorted(set(_pixels(pixels))) for n in widths)
    return min(found, key=lambda t: t.clocks)


def pixel_tiles(b: OpInstance, machine: Machine) -> list[tuple[int, ...]]:
    """Of a convolution, or of a linear of patches."""
    tile, seen = best_tile(b, machine), patches(b)
    step = seen.step if seen else max(int(b.shape(1)[3]), 64)
    return [(*tile.at, tile.filters, step)]


def clocks(graph: Graph, machine: Machine) -> float:
    """That the best tiles of a graph's ops take."""
    return sum(best_tile(graph.bound(op), machine).clocks for op in graph.ops)


def _pixels(sizes: list[int]) -> Iterable[tuple[int, ...]]:
    """Pixels of tiles worth trying: runs of them, where an op's are rows, or boxes."""
    return _boxes(*sizes) if len(sizes) > 1 else ((n,) for n in range(SLICE, MOST_PIXELS + 1, SLICE))


def _boxes(images: int, lines: int, pixels: int) -> Iterator[tuple[int, ...]]:
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
