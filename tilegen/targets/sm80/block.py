"""What a CTA of a portable kernel multiplies at a time, and how its warps share it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilegen.arch import gpus

WARPS = 8
REGISTERS = 200  # of a thread for sums and fragments; the rest holds addresses
STAGES = 3  # the fewest
PANELS = (64, 32)  # columns of K of a panel
SLOT = 128  # bytes of shared memory for the next tile's rank
ROOM = gpus.SM_86.shared_block - SLOT  # what every GPU has
# Clocks, fitted to 41 tiles and blocks of pairs of convolutions on an H200 (docs/perf-log.md)
MMA = 1.9  # of an SM for one of a warp: four warps' at a time
BARRIER = 135  # of each stage's: warps meet, and begin without fragments; twice that where panels are narrow
SHARED = 162  # bytes a clock that shared memory takes and gives
GATHER = 0.15  # of a gathered row's 16 columns
L2 = 74  # bytes a clock that an SM gets
BESIDE = 6400  # of a block beside its products: until the first chunk is there, and from the last one on


@dataclass(frozen=True)
class Block:
    """8 warps. Of each stage of K a *panel* belongs to as many of them as have its number: `deep` panels;
    of a panel's warps `across` lie side by side, each with m x 16 rows and n x 8 columns of each group.
    of_pixels: rows are gathered from images."""

    across: int
    m: int
    n: int
    groups: int
    deep: int = 1
    of_pixels: bool = False

    @property
    def down(self) -> int:
        """Warps of a panel, below each other."""
        return WARPS // (self.across * self.deep)

    @property
    def rows(self) -> int:
        return self.down * 16 * self.m

    @property
    def columns(self) -> int:
        return self.across * 8 * self.n

    @property
    def loaded(self) -> int:
        """Rows of activations and weights in a panel."""
        return self.rows + self.groups * self.columns

    @property
    def registers(self) -> int:
        """Sums, two sets of fragments, and where the pixels are whose units a thread copies, every 32nd."""
        pixels = 4 * math.ceil(self.rows / 32) if self.of_pixels else 0
        return 4 * self.m * self.n * self.groups + 2 * (4 * self.m + 2 * self.n * self.groups) + pixels

    @property
    def pitch(self) -> int:
        """Floats from row to row of sums in shared memory, so that four rows of eight lie in different
        banks."""
        return self.columns + (40 - self.columns % 32) % 32

    @property
    def summed_bytes(self) -> int:
        """Of shared memory, where panels' sums meet."""
        return 4 * self.deep * self.groups * self.rows * self.pitch if self.deep > 1 else 0

    def panel(self, room: int) -> int:
        """The widest of which three stages fit into so many bytes of shared memory; 0: none."""
        row = 2 * STAGES * self.loaded * self.deep
        return next((n for n in PANELS if row * n <= room), 0)

    def fits(self, room: int) -> bool:
        return self.registers <= REGISTERS and self.panel(room) > 0 and self.summed_bytes <= room

    def cost(self, tm: int, tn: int, depth: int, room: int = ROOM) -> float:
        """Clocks for 16 columns of K of a tile: the slowest of multiplying, shared memory and loading; the
        barrier of a stage, which deep blocks have fewer of; panels' sums, written and read once; and a
        block's begin and end."""
        blocks = math.ceil(tm / self.rows) * math.ceil(tn / self.columns)
        warps = WARPS // self.deep
        multiply = warps * self.m * self.n * self.groups * MMA
        fragments = warps * (self.m * 512 + self.n * self.groups * 256)
        copied = 32 * (min(tm, self.rows) + self.groups * min(tn, self.columns))
        sums = 2 * self.summed_bytes / SHARED
        panel = self.panel(room)
        chunk = self.deep * panel
        whole = math.ceil(depth / chunk) * chunk / depth  # the last chunk is multiplied with what it lacks
        barrier = BARRIER * PANELS[0] / panel * 16 / chunk
        gathered = GATHER * self.rows if self.of_pixels else 0
        busy = max(multiply, (fragments + copied) / SHARED, copied / L2) + gathered + barrier
        return blocks * (busy * whole + (sums + BESIDE) * 16 / depth)


@lru_cache(maxsize=4096)
def best_block(
    tm: int, tn: int, groups: int, depth: int = 1024, room: int = ROOM, of_pixels: bool = False
) -> Block:
    """The cheapest block that fits registers and `room` bytes of shared memory; larger than the tile, whose
    edge then bounds it, or smaller and repeated."""
    found = [
        Block(across, m, n, groups, deep, of_pixels)
        for deep in (1, 2, 4, 8)
        for across in (1, 2, 4, 8)
        if across * deep <= WARPS
        for m in range(1, math.ceil(tm * across * deep / (16 * WARPS)) + 1)
        for n in range(1, math.ceil(tn / (8 * across)) + 1)
    ]
    return min(
        (b for b in found if b.fits(room)),
        key=lambda b: (b.cost(tm, tn, depth, room), b.registers, b.deep, -b.across),
    )
