"""A product by threads: mma.sync on rows that no bulk copy brings, since they are no whole 16-byte units or
lie across (templates/cuda/threads/product.cuh.j2).

Y[m, n] = Σ_k A[m, k] · B[n, k]. Threads bring LINE bytes of k of a tile's rows of A and of B at a time into a
stage of shared memory, while each warp multiplies a few blocks of 16 rows and 32 columns of another: by
copies of the 16-byte units that a line of them lies in, which is moved to the begin of its place then where
it does not begin with one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from tilegen.codegen.thread_conv import REDUCTIONS, SCRATCH, Gather
from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES, INT8
from tilegen.graph.gathered import gathered_tiles
from tilegen.graph.thread_blocks import COLUMNS, LINE, ROWS, WARPS, warps_of
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.conv_transpose2d import ConvTransposeAttributes
from tilegen.ops.gemm import MatmulAttributes
from tilegen.ops.grouped_conv2d import filters_of
from tilegen.ops.spatial import spatial_tiles

PAD = 16  # bytes behind a line: an odd number of 16-byte units, so that ldmatrix meets no bank twice
STAGED = 74240  # bytes of stages: two of the largest tiles, which is what any GPU's CTA has room for
MOST_STAGES = 4
FEWEST_STAGES = 3  # of deep ones
MOST_BLOCKS = 6  # of a warp, of which each takes 16 registers
UNITS = (16, 8, 4, 2, 1)  # bytes that lie inside or outside of a line together
# of up to so many rows the first that has them; of more the last, where it gives enough tiles
TILES = ((16, 128), (32, 128), (64, 64), (128, 128))
ENOUGH = 96  # tiles


@dataclass(frozen=True)
class Side:
    """An operand, of which a tile has `rows`, whole blocks of them. across: memory goes along rows, not along
    k; unit: elements that one load brings."""

    rows: int
    pitch: int
    across: bool
    unit: int

    def place(self, row: str) -> str:
        """Where the numbers of row `row` lie, from k = 0 on, as C."""
        return row if self.across else f"(long long){row} * {self.pitch}"

    def shifted(self, element: int) -> bool:
        """Whether its lines are brought by 16-byte units that begin and end beside them. Lines of four-byte
        numbers along rows are turned number by number."""
        return self.unit * element < UNITS[0] and not (self.across and element == 4)

    def bytes(self, element: int, line: int) -> int:
        """Of a stage of so many bytes of k. Lines of two-byte numbers along rows stay as they are."""
        if self.across and element == 2:
            return line // element * (element * self.rows + PAD)
        return self.rows * (line + PAD)


@dataclass(frozen=True)
class ThreadProduct:
    """What the text of a product by mma.sync may ask."""

    bound: OpInstance
    of_lines: ClassVar[str] = "ab"  # the sides whose rows are lines of a matrix (tg_side)

    @property
    def problem(self) -> str:
        if self.down * self.across > MOST_BLOCKS:
            rows, columns = self.tile
            return f"a tile of {rows} x {columns} leaves a warp over {MOST_BLOCKS} blocks of 16 x 32 sums"
        return ""

    @property
    def of_int8(self) -> bool:
        """Whether the right side is of int8 (templates/cuda/threads/int8.cuh.j2)."""
        return False

    @property
    def deep(self) -> int:
        """Warps that have the same blocks, each of other parts of k."""
        return 1

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
    def line(self) -> int:
        """Bytes of k that are in a stage."""
        return LINE

    @property
    def depth(self) -> int:
        """Of k that are in shared memory at a time."""
        return self.line // self.element

    def unit(self, operand: int, *ends: object) -> int:
        """Elements that one load brings of an operand: so many lie inside or outside of what a tile reads,
        since they divide all that says where that begins and ends."""
        given = (self.bound.pitch(operand), self.bound.first(operand), *ends)
        fixed = [n if isinstance(n, int) else 1 for n in given]
        size = DTYPES[self.bound.dtype(operand)]
        return next(n for n in UNITS if all(x * size % n == 0 for x in fixed)) // size

    @property
    def skewed(self) -> str:
        """The sides whose lines are shifted in shared memory."""
        sides = {"a": self.a, "b": self.b}
        return "".join(name for name in self.of_lines if sides[name].shifted(self.element))

    @property
    def shifted(self) -> list[tuple[str, int]]:
        """The same, and where each lies in a stage."""
        return [(name, self.b_at if name == "b" else 0) for name in self.skewed]

    # --- shared memory --------------------------------------------------------------------------------------

    @property
    def stages_at(self) -> int:
        return REDUCTIONS

    @property
    def b_at(self) -> int:
        """In a stage."""
        return self.a.bytes(self.element, self.line)

    @property
    def stage_bytes(self) -> int:
        return self.b_at + self.b.bytes(self.element, self.line)

    @property
    def stages(self) -> int:
        return max(2, min(MOST_STAGES, STAGED // self.stage_bytes))

    @property
    def bytes(self) -> int:
        return self.stages_at + self.stages * self.stage_bytes

    # --- blocks ---------------------------------------------------------------------------------------------

    @cached_property
    def warps(self) -> tuple[int, int]:
        """Below and beside each other."""
        return warps_of(self.rows, self.columns)

    @property
    def warps_beside(self) -> int:
        """That have blocks of the same part of k."""
        return math.prod(self.warps)

    @property
    def warps_down(self) -> int:
        return self.warps[0]

    @property
    def warps_across(self) -> int:
        return self.warps[1]

    @property
    def down(self) -> int:
        """Blocks of a warp, below each other."""
        return ceil_div(self.rows // ROWS, self.warps_down)

    @property
    def across(self) -> int:
        """Blocks of a warp, beside each other."""
        return ceil_div(self.columns // COLUMNS, self.warps_across)


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


class Int8Product(MatmulProduct):
    """Of a linear by int8 weights, which stay so in shared memory. Where copies bring few rows and columns, a
    stage is deep, so that many bytes of weights are on their way, and warps that have no blocks of their own
    take parts of its k. Lines of weights are never shifted: their units may be of a byte."""

    of_lines = "a"

    @property
    def of_int8(self) -> bool:
        return True

    @cached_property
    def warps(self) -> tuple[int, int]:
        """No more than there are blocks."""
        down, across = super().warps
        return min(down, self.rows // ROWS), min(across, self.columns // COLUMNS)

    @cached_property
    def deep(self) -> int:
        if self.skewed or self.b.unit < UNITS[0]:
            return 1
        alike = WARPS // self.warps_beside
        fitting = (n for n in (4, 2) if n <= alike and FEWEST_STAGES * self._staged(n) <= STAGED)
        return next(fitting, 1)

    @property
    def line(self) -> int:
        return LINE * self.deep

    def _staged(self, deep: int) -> int:
        """Bytes of a stage so deep."""
        line = LINE * deep
        return self.a.bytes(self.element, line) + self.columns * line // self.element

    @property
    def stage_bytes(self) -> int:
        return self._staged(self.deep)


class ConvProduct(ThreadProduct):
    """Of a convolution: a row of A is what a pixel's filter sees, k = (r·S + s)·C + c."""

    of_lines = "b"

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


class TransposedProduct(ConvProduct):
    """Of a transposed convolution, one for each *phase*: the pixels that see the same lines and columns of
    the filters, every stride-th of each. A filter's numbers are k = (i·columns_seen + j)·C + c of the i-th
    line and j-th column that a phase sees."""

    of_lines = ""  # both sides are loaded by the channels of a pixel

    @property
    def _attributes(self) -> ConvTransposeAttributes:
        return ConvTransposeAttributes.of(self.bound)

    @property
    def box(self) -> tuple[int, int, int]:
        """Images, lines and pixels of a tile that are of one phase."""
        images, *alike = super().box
        lines, pixels = (ceil_div(n, s) for n, s in zip(alike, self._attributes.stride, strict=True))
        return images, lines, pixels

    @cached_property
    def _shared(self) -> tuple[int, int]:
        """By what stride and dilation can be divided."""
        a = self._attributes
        return math.gcd(a.stride[0], a.dilation[0]), math.gcd(a.stride[1], a.dilation[1])

    @property
    def step(self) -> tuple[int, int]:
        """From one line and column of a filter to the next that a phase sees."""
        stride = self._attributes.stride
        return stride[0] // self._shared[0], stride[1] // self._shared[1]

    @property
    def back(self) -> tuple[int, int]:
        """By so many lines and columns of the image they go back."""
        dilation = self._attributes.dilation
        return dilation[0] // self._shared[0], dilation[1] // self._shared[1]

    @property
    def columns_seen(self) -> int:
        """The most columns of a filter that a phase sees."""
        return ceil_div(int(self.bound.shape(1)[2]), self.step[1])

    @property
    def b(self) -> Side:
        return Side(self.columns, self.k, False, self.unit(1, self.channels))


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
        if not made.problem and made.bytes <= SCRATCH:
            return gathered
    filters, channels = (int(n) for n in (b.out[3], b.shape(1)[3]))
    return [(*t, min(filters, 64), max(channels, 64)) for t in spatial_tiles(b.out, (64, 32))]


def product_tiles(b: OpInstance) -> list[tuple[int, ...]]:
    """Tiles of such a product: few rows have more columns, so that all warps have a block, and many rows the
    largest tiles of which there are enough."""
    a = MatmulAttributes.of(b)
    m, n, batch = most(a.m), most(a.n), most(a.batch)
    rows, columns = next((t for t in TILES if m <= t[0]), TILES[-1])

    def few() -> bool:
        return batch * ceil_div(m, rows) * ceil_div(n, columns) < ENOUGH

    if rows == TILES[-1][0] and few():
        rows, columns = TILES[-2]
    divides_rows = b.dtype(1) != INT8  # of int8, weights are what all SMs are to ask for
    while few() and (columns > COLUMNS or (divides_rows and rows > COLUMNS)):
        if divides_rows and rows > columns:
            rows //= 2
        else:
            columns //= 2
    return [(rows, columns, LINE // DTYPES[b.dtype(0)])]
