"""How a Hopper kernel cuts a product's tile, in numbers: between the CTAs of a cluster, their math
warpgroups, and the stages of the ring."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.graph.product_time import ALTERNATING, ROW_BYTES
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.patches import BLOCK, MOST_DEEP, SLICE

BOX = 256  # the most rows of one bulk tensor copy
SLICE_BYTES = 2 * SLICE
HEIGHTS = (64, 128, 192, 256)  # rows that a CTA can compute
HEIGHTS_IN_TURN = (128, 192)  # rows that one math warpgroup can, where they take turns, unless swapped
MOST_CTAS = 8  # of a cluster that any GPU runs
SWAPPED_COLUMNS = (64, 128, 256)  # that a CTA computes of a swapped tile
TWO_BYTES = ("bfloat16", "float16")
SUMS = 192  # accumulators that a math thread can hold beside everything else


@dataclass(frozen=True)
class Piece:
    """Rows of a group's weights that a copy brings. first: column of the CTA's result; at: row of a block."""

    group: int
    first: int
    at: int
    rows: int


@dataclass(frozen=True)
class Tile:
    """Rows, columns and depth (columns of a step) of a tile, and the CTAs of a cluster that split it;
    pingpong: the math warpgroups of a CTA take turns, else they share it; step: depth is a multiple of it;
    row_bytes: of a block of K in a row of shared memory."""

    rows: int
    columns: int
    depth: int
    steps: int
    groups: int
    cluster: ClusterShape
    pingpong: bool = False
    step: int = BLOCK
    row_bytes: int = ROW_BYTES

    @property
    def exchanges(self) -> bool:
        """Whether the CTAs of a cluster send each other sums."""
        return self.cluster.k > 1

    @property
    def cta_rows(self) -> int:
        return self.rows // self.cluster.m

    @property
    def cta_columns(self) -> int:
        return self.columns // self.cluster.n

    @property
    def cta_row(self) -> str:
        """Which of the cluster's rows of CTAs this one is in, as C."""
        return "cta_rank" if self.cluster.n == 1 else f"cta_rank / {self.cluster.n}"

    @property
    def cta_column(self) -> str:
        """Which of its columns."""
        return "cta_rank" if self.cluster.m == 1 else f"cta_rank % {self.cluster.n}"

    @property
    def swapped(self) -> bool:
        """Whether weights are wgmma's left operand and activations its right one (swap-AB). Of the left
        operand it takes 64 rows, of the right one any eights: so a tile of other rows is swapped."""
        return self.cta_rows % 64 != 0

    @property
    def warpgroups_split_right(self) -> bool:
        """Of a swapped tile that they share: the two math warpgroups have half the rows of activations each
        where it has 64 columns, else half the columns."""
        return self.swapped and self.cta_columns == 64 and not self.pingpong

    @property
    def warpgroups_split_n(self) -> bool:
        """The two math warpgroups finish half the columns each where a CTA has 64 rows, else half the
        rows."""
        return self.cta_rows == 64

    @property
    def halved(self) -> bool:
        """Whether the math warpgroups have half of the right operand's rows each. These become columns, or
        rows of a swapped tile, of which the CTAs of a cluster that splits K finish parts."""
        return self.warpgroups_split_n or self.warpgroups_split_right

    @property
    def alternates(self) -> bool:
        """Whether they get there by every other slice of K each, for all columns, and swap sums at the end:
        activations are read once."""
        pairs = self.depth % (2 * SLICE) == 0
        return pairs and self.warpgroups_split_n and self.groups == 1 and self.cta_columns <= ALTERNATING

    @property
    def m64(self) -> int:
        """Blocks of 64 rows of the left operand that the first math warpgroup has."""
        if self.swapped:
            return self.groups * max(1, self.cta_columns // (64 if self.pingpong else 128))
        if self.pingpong:
            return self.cta_rows // 64
        return max(1, -(-self.cta_rows // 128))

    @property
    def left_blocks(self) -> int:
        """The same of one group."""
        return self.m64 // self.groups if self.swapped else self.m64

    @property
    def uneven(self) -> bool:
        """Whether the second math warpgroup has a block less."""
        shared = not (self.warpgroups_split_n or self.swapped or self.pingpong)
        return shared and self.cta_rows % (128 * self.m64) != 0

    def occupied(self, rows: int) -> set[int]:
        """Of a math warpgroup's blocks of 64 rows, how many hold any where a tile has so many rows: the
        numbers that occur."""
        found, height = set[int](), 64 * self.m64
        for end in range(self.cta_rows, self.rows + 1, self.cta_rows):
            starts = range(end - self.cta_rows, end, height)
            found |= {-(-max(0, min(rows, end, start + height) - start) // 64) for start in starts}
        return found

    @property
    def n8s(self) -> int:
        """Eights of columns of one group that a math warpgroup has; swapped: of rows."""
        if self.swapped:
            return self.cta_rows // (16 if self.warpgroups_split_right else 8)
        return self.cta_columns // (16 if self.warpgroups_split_n and not self.alternates else 8)

    @property
    def parts(self) -> int:
        """CTAs that each finish a part of the columns, swapped: of the rows, of which a math warpgroup has
        the sums."""
        return self.cluster.k // 2 if self.exchanges and self.halved else self.cluster.k

    @property
    def sends(self) -> int:
        """Parts that a math warpgroup sends, at most: where each has half of them, one of them finishes
        none."""
        return self.parts if self.halved else self.parts - 1

    @property
    def finished_n8s(self) -> int:
        """Eights of columns that a math warpgroup finishes; swapped: of rows."""
        return self.n8s // ((2 if self.alternates else 1) * self.parts)

    @property
    def right_groups(self) -> int:
        """Groups that lie side by side in the right operand."""
        return 1 if self.swapped else self.groups

    @property
    def columns_of_warpgroup(self) -> int:
        """Rows of the right operand, which are columns of wgmma's sums."""
        return 8 * self.right_groups * self.n8s

    @property
    def registers(self) -> int:
        return self.columns_of_warpgroup // 2

    @property
    def sums_bytes(self) -> int:
        """Bytes of sums that a math warpgroup is sent, by all others together."""
        return self.m64 * self.right_groups * self.finished_n8s * 2048 * (self.cluster.k - 1)

    @property
    def scratch_bytes(self) -> int:
        """Of sums that the two math warpgroups swap."""
        return 2048 * self.n8s if self.alternates else 0

    # --- where a math warpgroup reads a stage ---------------------------------------------------------------

    @property
    def a_offset(self) -> str:
        """Of the left operand, in bytes."""
        if self.alternates:
            return f"warpgroup * {SLICE_BYTES}"
        return "0" if self.halved or self.pingpong else f"warpgroup * {self.m64 * 64 * self.row_bytes}"

    @property
    def b_offset(self) -> str:
        """Of the right one."""
        if self.alternates:
            return f"warpgroup * {SLICE_BYTES}"
        return f"warpgroup * {self.columns_of_warpgroup * self.row_bytes}" if self.halved else "0"

    @property
    def slices(self) -> int:
        """Of 16 columns of K in a block, that a warpgroup multiplies."""
        return self.row_bytes // SLICE_BYTES // (2 if self.alternates else 1)

    @property
    def last_slices(self) -> int:
        """The same in the last block of a step, which may have fewer columns."""
        block = self.row_bytes // 2
        return (self.depth % block or block) * self.slices // block

    @property
    def b_pieces(self) -> list[Piece]:
        """How the weights of one 64-column block lie in shared memory."""
        left = self.swapped and not self.warpgroups_split_right
        columns = self.cta_columns
        if not (self.warpgroups_split_n or left) or self.alternates or self.pingpong:
            return [Piece(g, 0, g * columns, columns) for g in range(self.groups)]
        half = columns // 2
        if self.groups == 1:  # in one copy where it may move so many rows
            return (
                [Piece(0, 0, 0, columns)]
                if columns <= BOX
                else [Piece(0, w * half, w * half, half) for w in (0, 1)]
            )
        return [
            Piece(g, w * half, (w * self.groups + g) * half, half) for w in (0, 1) for g in range(self.groups)
        ]

    # --- limits ---------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why the machine's instructions cannot compute it, or an empty string."""
        if self.step % BLOCK and self.depth != self.step:
            return f"steps are {self.depth} wide, expected a pixel's {self.step} channels"
        if self.depth % self.step or self.depth > MOST_DEEP:
            return f"steps are {self.depth} wide, expected a multiple of {self.step} up to {MOST_DEEP}"
        if self.cluster.size > MOST_CTAS:
            return f"a cluster of {self.cluster.size}: {MOST_CTAS} CTAs are the most that share a tile"
        if self.exchanges and self.halved and self.cluster.k % 2:
            return (
                f"its math warpgroups have half of {self.cta_rows} x {self.cta_columns} each, of which"
                f" {self.cluster.k} CTAs cannot finish equal parts"
            )
        in_turn = self.swapped or self.cta_rows in HEIGHTS_IN_TURN
        if self.pingpong and (self.exchanges or not in_turn):
            return (
                "math warpgroups take turns over 128 or 192 rows, or eights of other numbers, of which a CTA"
                f" has all sums, not over {self.cta_rows} of a cluster of {self.cluster.option}"
            )
        if self.exchanges and self.cluster.finishes_rows != self.swapped:
            return (
                "where a cluster splits a sum its CTAs finish columns of 64, 128, 192 or 256 rows (k), rows"
                f" where there are other numbers of them (km), not {self.cluster.option} of {self.cta_rows}"
            )
        problem = self._swapped_problem if self.swapped else self._blocks_problem
        if not problem and self.exchanges and self.steps < self.cluster.k:
            return f"its {self.steps} steps cannot be shared by {self.cluster.k} CTAs"
        return problem

    @property
    def _blocks_problem(self) -> str:
        if self.cta_rows not in HEIGHTS:
            return f"a CTA computes 64, 128, 192 or 256 rows, not {self.cta_rows}"
        parts = max(self.cluster.k, 2 if self.warpgroups_split_n else 1)
        if self.cta_columns % (8 * parts):
            return f"a CTA's {self.cta_columns} columns do not split into {parts} times eight"
        if self.columns_of_warpgroup > 256 or self.m64 * self.columns_of_warpgroup // 2 > SUMS:
            return (
                f"a math warpgroup would hold {self.m64 * 64} x {self.columns_of_warpgroup} sums, which do"
                " not fit its registers"
            )
        return ""

    @property
    def _swapped_problem(self) -> str:
        if self.cta_rows % 8 or self.cta_rows > BOX or self.cta_columns not in SWAPPED_COLUMNS:
            return (
                f"a CTA computes 64, 128, 192 or 256 rows, or any eights up to {BOX} of"
                f" {', '.join(map(str, SWAPPED_COLUMNS))} columns, not {self.cta_rows} x {self.cta_columns}"
            )
        if self.warpgroups_split_right and self.cta_rows % 16:
            return f"two math warpgroups do not share {self.cta_rows} rows of 64 columns in eights"
        if self.cta_rows % (8 * self.cluster.k):
            return f"a CTA's {self.cta_rows} rows do not split into {self.cluster.k} times eight"
        if self.m64 * self.registers > SUMS:
            return (
                f"a math warpgroup would hold {self.m64 * 64} x {self.columns_of_warpgroup} sums, which do"
                " not fit its registers"
            )
        return ""


@dataclass(frozen=True)
class Stage:
    """A step of a product in a stage of the ring: blocks of 64 columns of activations, then as many of
    weights; of 32 columns where rows have 64 bytes.

    a_block: bytes from the activations of one block to those of the next; a_bytes: what is loaded of them;
    b_at: where weights begin. lines: of a filter, that share the blocks; a_line: bytes from the activations
    of one line to those of the next. Rows of activations beyond the tensor's last may hold anything.
    """

    blocks: int
    a_rows: int
    a_block: int
    a_bytes: int
    b_at: int
    b_rows: int
    row_bytes: int = ROW_BYTES
    lines: int = 1
    a_line: int = 0

    @property
    def of_line(self) -> int:
        """Blocks of a filter line."""
        return self.blocks // self.lines

    @property
    def b_block(self) -> int:
        return self.b_rows * self.row_bytes

    @property
    def b_bytes(self) -> int:
        return self.b_block * self.blocks

    @property
    def bytes(self) -> int:
        return self.b_at + self.b_bytes

    def overrun(self, tile: Tile) -> int:
        """Bytes that wgmma may touch beyond the activations that are loaded, counted from the start of a
        stage."""
        last = (self.lines - 1) * self.a_line + (self.of_line - 1) * self.a_block
        return last + max(64, tile.cta_rows) * self.row_bytes
