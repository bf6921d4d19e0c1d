"""A product by threads: mma.sync on rows that no bulk copy brings, since they are no whole 16-byte units or
lie across (templates/cuda/threads/product.cuh.j2).

Y[m, n] = Σ_k A[m, k] · B[n, k]. Threads bring LINE bytes of k of a tile's rows of A and of B at a time into
shared memory, holding the next ones meanwhile, and each warp multiplies blocks of 16 rows and 32 columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from tilegen.codegen.thread_conv import REDUCTIONS, SCRATCH, Gather
from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES
from tilegen.graph.gathered import gathered_tiles
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import MatmulAttributes
from tilegen.ops.grouped_conv2d import filters_of
from tilegen.ops.spatial import spatial_tiles

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
    """What the text of a product by mma.sync may ask."""

    PITCH: ClassVar[int] = PITCH

    bound: OpInstance

    @property
    def problem(self) -> str:
        if self.blocks_of_warp > MOST_BLOCKS:
            most_sums = MOST_BLOCKS * WARPS * ROWS * COLUMNS
            return f"threads multiply tiles of up to {most_sums:,} sums"
        return ""

    @property
    def tile(self) -> tuple[int, int]:
        """The most rows and columns of a tile."""
        raise NotImplementedError

    @property
    def a(self) -> Side:
        raise NotImplementedError

    @property
    def b(self) -> Side:
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """Of a tile, whole blocks of them."""
        return ceil_div(self.tile[0], ROWS) * ROWS

    @property
    def columns(self) -> int:
        return ceil_div(self.tile[1], COLUMNS) * COLUMNS

    @property
    def element(self) -> int:
        """Bytes of a number."""
        return DTYPES[self.bound.dtype(0)]

    @property
    def depth(self) -> int:
        """Of k that are in shared memory at a time."""
        return LINE // self.element

    def unit(self, operand: int, *ends: object) -> int:
        """Elements that one load brings of an operand: so many lie inside or outside of what a tile reads,
        since they divide all that says where that begins and ends."""
        first = (self.bound.op.operands[operand].columns or (0, 0))[0]
        fixed = [n if isinstance(n, int) else 1 for n in (self.bound.pitch(operand), first, *ends)]
        return next(n for n in UNITS if all(x * self.element % n == 0 for x in fixed)) // self.element

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

    @property
    def across(self) -> int:
        """Blocks beside each other."""
        return self.columns // COLUMNS

    @property
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


class MatmulProduct(ThreadProduct):
    """Of a matmul, of either side as it is or transposed."""

    @property
    def tile(self) -> tuple[int, int]:
        a = MatmulAttributes.of(self.bound)
        return min(self.bound.tile[0], most(a.m)), min(self.bound.tile[1], most(a.n))

    @property
    def a(self) -> Side:
        a = MatmulAttributes.of(self.bound)
        ends = (a.m, self.bound.tile[0]) if a.transpose_a else (a.k,)
        return Side(self.rows, int(self.bound.pitch(0)), a.transpose_a, self.unit(0, *ends))

    @property
    def b(self) -> Side:
        a = MatmulAttributes.of(self.bound)
        ends = (a.k,) if a.transpose_b else (a.n, self.bound.tile[1])
        return Side(self.columns, int(self.bound.pitch(1)), not a.transpose_b, self.unit(1, *ends))


class ConvProduct(ThreadProduct):
    """Of a convolution: a row of A is what a pixel's filter sees, k = (r·S + s)·C + c."""

    @property
    def box(self) -> tuple[int, int, int]:
        """Images, lines and pixels of a tile."""
        images, lines, pixels = (
            min(t, most(n)) for t, n in zip(self.bound.tile[:3], self.bound.out[:3], strict=True)
        )
        return images, lines, pixels

    @property
    def tile(self) -> tuple[int, int]:
        return math.prod(self.box), min(self.bound.tile[3], int(self.bound.out[3]))

    @property
    def channels(self) -> int:
        """That a filter sees."""
        return int(self.bound.shape(1)[3])

    @property
    def first_channel(self) -> str:
        """Where these begin in a pixel, as C behind a pointer."""
        return ""

    @property
    def k(self) -> int:
        return math.prod(int(n) for n in self.bound.shape(1)[1:])

    @property
    def a(self) -> Side:
        return Side(self.rows, int(self.bound.pitch(0)), False, self.unit(0, self.channels))

    @property
    def b(self) -> Side:
        return Side(self.columns, self.k, False, self.unit(1, self.k))


class GroupConvProduct(ConvProduct):
    """Of a convolution in groups, one of which is a tile's."""

    @property
    def problem(self) -> str:
        if self.bound.tile[3] > 1:
            return f"threads multiply one group of a convolution at a time, not {self.bound.tile[3]}"
        return super().problem

    @property
    def tile(self) -> tuple[int, int]:
        return math.prod(self.box), filters_of(self.bound)

    @property
    def first_channel(self) -> str:
        return f" + lo3 / {filters_of(self.bound)} * {self.channels}"


def conv_tiles(b: OpInstance) -> list[tuple[int, ...]]:
    """Tiles of a convolution by threads: gathered from its patch where it has few channels of two bytes."""
    gathered = gathered_tiles(b)
    if DTYPES[b.dtype(0)] == 2 and b.shape(1)[3] % 8:
        made = Gather(replace(b, op=replace(b.op, tile=gathered[0])))
        if made.bytes <= SCRATCH:
            return gathered
    filters, channels = (int(n) for n in (b.out[3], b.shape(1)[3]))
    return [(*t, min(filters, 64), max(channels, 64)) for t in spatial_tiles(b.out, (64, 32))]


def product_tiles(b: OpInstance) -> list[tuple[int, ...]]:
    """Tiles of such a product: few rows have more columns, so that all warps have a block."""
    m = most(MatmulAttributes.of(b).m)
    return [(*next((t for t in TILES if m <= t[0]), TILES[-1]), LINE // DTYPES[b.dtype(0)])]
