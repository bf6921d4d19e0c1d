"""A convolution of a few input channels, whose pixels are no whole 16-byte units: threads gather them into
the operands of mma.sync (templates/cuda/threads/conv2d.cu.j2).

Y[pixel, n] = Σ_k A[pixel, k] · W[n, k], where k counts the filter's positions and channels, k = (r·S + s)·C +
c, as W lies in memory. A is never written: the pixels that a tile sees, its *patch*, lie in shared memory,
and A[pixel, k] is at the pixel's first element in it plus an offset that depends on k alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tilegen.codegen.cuda_op import mma_problem
from tilegen.frontend.dims import most
from tilegen.graph.gathered import seen
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes

SLICE = 16  # of k, that an mma.sync sums over
TURN = 32  # channels that four lanes turn into eights at once
UNIT = 8  # elements of a copy to shared memory
REDUCTIONS = 32  # bytes at the start of the scratch memory, which other ops use
SCRATCH = 106496  # the most bytes of shared memory for one op's own use


@dataclass(frozen=True)
class Gather:
    """Where a tile's filters, offsets and patch lie in shared memory, in elements of 2 bytes."""

    bound: OpInstance

    @property
    def problem(self) -> str:
        b = self.bound
        if b.pitch(0) != b.shape(0)[3]:
            return "threads gather whole pixels, not some of their channels"
        if any(i.stride != 1 for i in b.reads[0].box[1:3]):  # what lies between is nobody's to wait for
            return "threads gather all lines and pixels under a tile, of which a filter leaves some out"
        if b.tile[4] < self.channels:
            return (
                f"threads compute a convolution of {self.channels} channels in one step, not in steps of"
                f" {b.tile[4]}"
            )
        return mma_problem(b)

    @property
    def channels(self) -> int:
        """C, of the input."""
        return int(self.bound.shape(0)[3])

    @property
    def line(self) -> int:
        """Elements of a line of the image."""
        return int(self.bound.shape(0)[2]) * self.channels

    @cached_property
    def window(self) -> tuple[int, int]:
        return int(self.bound.shape(1)[1]), int(self.bound.shape(1)[2])

    # --- filters --------------------------------------------------------------------------------------------

    @property
    def positions(self) -> int:
        """Of k."""
        return math.prod(self.window) * self.channels

    @property
    def depth(self) -> int:
        """The same in whole slices; filters are zero beyond."""
        return math.ceil(self.positions / SLICE) * SLICE

    @property
    def filter_pitch(self) -> int:
        """From filter to filter: an odd number of 16-byte units, so that the eight that ldmatrix reads lie in
        different banks."""
        return self.depth + 8

    @property
    def filters(self) -> int:
        """Of a tile; zero beyond its channels."""
        return math.ceil(self.bound.tile[3] / TURN) * TURN

    @property
    def together(self) -> int:
        """Filters that a warp multiplies at once."""
        return 2 * TURN if self.filters % (2 * TURN) == 0 else TURN

    # --- the patch ------------------------------------------------------------------------------------------

    @property
    def unit(self) -> int:
        """Elements copied at once: 16 bytes where all lines begin on such a boundary, so that a unit lies
        inside of the image or outside."""
        return UNIT if self.line % UNIT == 0 else 1

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Lines and pixels of a whole tile."""
        th, tw = (min(self.bound.tile[d], int(self.bound.out[d])) for d in (1, 2))
        return th, tw

    def _seen(self, d: int) -> int:
        """Lines or pixels of the image under it."""
        a = ConvAttributes.of(self.bound)
        return int(seen(self.tile[d], self.window[d], a.stride[d], a.dilation[d]))

    @property
    def patch_lines(self) -> int:
        return self._seen(0)

    @property
    def patch_pitch(self) -> int:
        """From line to line: whole units, the first of which the tile may begin inside of."""
        return math.ceil((self._seen(1) * self.channels + self.unit - 1) / UNIT) * UNIT

    # --- bytes ----------------------------------------------------------------------------------------------

    @property
    def offsets_at(self) -> int:
        return REDUCTIONS

    @property
    def filters_at(self) -> int:
        return self.offsets_at + 4 * self.depth

    @property
    def patch_at(self) -> int:
        return self.filters_at + 2 * self.filters * self.filter_pitch

    @property
    def bytes(self) -> int:
        images = min(self.bound.tile[0], most(self.bound.out[0]))
        return self.patch_at + 2 * images * self.patch_lines * self.patch_pitch
