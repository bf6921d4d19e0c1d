"""A product by threads: mma.sync on rows that no bulk copy brings, since they are no whole 16-byte units or
lie across (templates/cuda/threads/product.cuh.j2).

Y[m, n] = Σ_k A[m, k] · B[n, k]. Threads bring LINE bytes of k of a tile's rows of A and of B at a time into
shared memory, holding the next ones meanwhile, and each warp multiplies blocks of 16 rows and 32 columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import MatmulAttributes
from tilegen.codegen.thread_conv import REDUCTIONS

LINE = 128  # bytes of k that are in shared memory at a time
PITCH = LINE + 16  # from row to row: an odd number of 16-byte units, so that ldmatrix meets no bank twice
ROWS, COLUMNS = 16, 32  # of a block
WARPS = 8
MOST_BLOCKS = 8  # of a warp, of which each takes 16 registers
UNITS = (16, 8, 4, 2)  # bytes that one load may bring
TILES = ((16, 128), (32, 128), (64, 64))  # of up to so many rows the first, else the last


@dataclass(frozen=True)
class Side:
    """An operand, of which a tile has `rows`, whole blocks of them. across: memory goes along rows, not along
    k; unit: elements that one load brings."""

    rows: int
    pitch: int
    across: bool
    unit: int

    def place(self, row: str) -> str:
        """Where the numbers of row `row` from k on lie, as C."""
        line, at = ("k", row) if self.across else (row, "k")
        return f"(long long){line} * {self.pitch} + {at}"


@dataclass(frozen=True)
class ThreadProduct:
    """What the text of a matmul by mma.sync may ask."""

    PITCH: ClassVar[int] = PITCH

    bound: OpInstance

    @property
    def problem(self) -> str:
        blocks = math.ceil(self.rows // ROWS * (self.columns // COLUMNS) / WARPS)
        if blocks > MOST_BLOCKS:
            most_sums = MOST_BLOCKS * WARPS * ROWS * COLUMNS
            return f"threads multiply tiles of up to {most_sums:,} sums"
        return ""

    @property
    def a(self) -> Side:
        b = self.bound
        a = MatmulAttributes.of(b)
        return self._side(0, self.rows, b.tile[0], a.transpose_a, a.m)

    @property
    def b(self) -> Side:
        b = self.bound
        a = MatmulAttributes.of(b)
        return self._side(1, self.columns, b.tile[1], not a.transpose_b, a.n)

    @property
    def rows(self) -> int:
        """Of a tile, whole blocks of them."""
        return ceil_div(min(self.bound.tile[0], most(MatmulAttributes.of(self.bound).m)), ROWS) * ROWS

    @property
    def columns(self) -> int:
        return ceil_div(min(self.bound.tile[1], most(MatmulAttributes.of(self.bound).n)), COLUMNS) * COLUMNS

    @property
    def element(self) -> int:
        """Bytes of a number."""
        return DTYPES[self.bound.dtype(0)]

    @property
    def depth(self) -> int:
        """Of k that are in shared memory at a time."""
        return LINE // self.element

    def _side(self, operand: int, rows: int, tile: int, across: bool, extent: object) -> Side:
        """A unit lies inside or outside of what a tile reads: it divides all that says where that begins and
        ends."""
        b, of = self.bound, self.bound.op.operands[operand]
        pitch = int(b.shape(operand)[-1] if of.flatten else b.tensors[of.tensor].plan_shape[-1])
        first = (of.columns or (0, 0))[0]
        ends = (extent, tile) if across else (MatmulAttributes.of(b).k,)
        fixed = [n if isinstance(n, int) else 1 for n in (pitch, first, *ends)]
        unit = next(n for n in UNITS if all(x * self.element % n == 0 for x in fixed))
        return Side(rows, pitch, across, unit // self.element)

    # --- shared memory --------------------------------------------------------------------------------------

    @property
    def a_at(self) -> int:
        return REDUCTIONS

    @property
    def b_at(self) -> int:
        return self.a_at + self.rows * PITCH

    @property
    def bytes(self) -> int:
        return self.b_at + self.columns * PITCH

    # --- blocks ---------------------------------------------------------------------------------------------

    @cached_property
    def across(self) -> int:
        """Blocks beside each other."""
        return self.columns // COLUMNS

    @cached_property
    def blocks(self) -> int:
        """Of a tile."""
        return self.rows // ROWS * self.across

    @property
    def blocks_of_warp(self) -> int:
        return math.ceil(self.blocks / WARPS)

    @property
    def even(self) -> bool:
        """Whether all warps have as many."""
        return self.blocks % WARPS == 0


def product_tiles(b: OpInstance) -> list[tuple[int, ...]]:
    """Tiles of such a product: few rows have more columns, so that all warps have a block."""
    m = most(MatmulAttributes.of(b).m)
    return [(*next((t for t in TILES if m <= t[0]), TILES[-1]), LINE // DTYPES[b.dtype(0)])]
