"""What a linear loads on sm_90a: rows of activations and of weights, 64 columns at a time, by TMA.

Rows beyond a tensor's last would be filled with zeros, which takes three times as long as to load as many. So
tiles of the last row and of the last column load fewer, by maps of their own; what stands in shared memory
below them goes into sums that nobody stores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from sympy import Expr

from tilegen.analysis.regions import Array, to_c
from tilegen.frontend.dims import dims_of, most
from tilegen.frontend.program import Size
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.base import Access, ceil_div
from tilegen.ops.extrema import smallest
from tilegen.ops.gemm import LinearAttributes, patches
from tilegen.ops.patches import Patches
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.product import waits_for_activations, waits_for_weights
from tilegen.targets.sm90.stage import ALONE, Copy, Load, Loads, Map, Other, PatchMap, Share, Wait
from tilegen.targets.sm90.tile import BOX, Piece, Stage, Tile

MOST_TAILS = 48  # linears of a kernel whose last rows have a map each: parameters hold some 255 maps
FEW_LINEARS = 16  # of a kernel, whose code is their own: columns that are looked up cost 2 %


def _times(rank: str, each: Size) -> str:
    return f"{rank} * {each}" if isinstance(each, int) else f"{rank} * ({to_c(each)})"


@dataclass(frozen=True)
class LinearLoads:
    """The load role: what a step brings of activations and of weights. packed: weights come packed."""

    code: Code
    tile: Tile
    stage: Stage
    packed: bool
    weights_once: bool

    @cached_property
    def _patches(self) -> Patches | None:
        return patches(self.code.bound)

    @property
    def _sharing_a(self) -> int:
        """CTAs of a row of the cluster that load activations together, each its share of the rows."""
        return self.tile.cluster.n if self.stage.a_rows >= 64 else 1

    @property
    def _sharing_b(self) -> int:
        """CTAs of a column of it that load weights together."""
        pair = self.tile.cluster.size == 2
        return 1 if pair and self.tile.cta_columns % 16 else self.tile.cluster.m

    @property
    def problem(self) -> str:
        """Why CTAs cannot have equal shares of what they load together, or an empty string."""
        for ctas, rows, what in (
            (self._sharing_a, self.stage.a_rows, "activations"),
            (self._sharing_b, self.tile.b_pieces[0].rows, "weights"),
        ):
            if rows % ctas:
                return (
                    f"{ctas} CTAs of a cluster of {self.tile.cluster.option} do not share {rows} rows of"
                    f" {what} evenly"
                )
        return ""

    @property
    def a(self) -> Loads:
        policy = "evict_last" if self.weights_once else ""
        waits = waits_for_activations(self.code)
        copies, bytes = self._a_copies(policy), self._a_bytes(self._sharing_a * self._copied_rows)
        load = _load_of(copies, bytes, waits, self._others(policy))
        return Loads((load,), policy=policy, together=self._sharing_a > 1)

    def _a_bytes(self, rows: Size) -> Size:
        return rows * ROW_BYTES * self.stage.blocks

    @property
    def _coupled(self) -> bool:
        """Whether CTAs load together with those of their row and with those of their column. Then each loads
        in every step, if only zeros: one that waits for no load of its row could release a stage a second
        time before one of another row has released it once, and who loads into both would not see which."""
        return self.tile.cluster.m > 1 and self.tile.cluster.n > 1

    # --- the last row of tiles ------------------------------------------------------------------------------

    @cached_property
    def _moves(self) -> bool:
        """Whether how many rows there are is known at run time only."""
        return bool(dims_of(self.code.bound.out[0]))

    @cached_property
    def _height(self) -> int:
        """Of a row of tiles, or where rows move of a row of CTAs, of which a cluster may have several."""
        return self.tile.cta_rows if self._moves else self.tile.rows

    @cached_property
    def _down(self) -> Size:
        """How many such rows."""
        return ceil_div(self.code.bound.out[0], self._height)

    @cached_property
    def _last_rows(self) -> Size:
        """Of activations, in the last of them: eights for each CTA that loads a share, and no more than a row
        of tiles has. Each quotient rises with a size that moves, as rounding needs it; their difference does
        not."""
        rows, ctas = self.code.bound.out[0], self._sharing_a
        share, most_rows = 8 * ceil_div(rows, 8 * ctas), self._height // ctas
        last = share - most_rows * (self._down - 1)
        return ctas * (smallest(most_rows, last) if most_rows % 8 else last)

    @cached_property
    def _linears(self) -> int:
        """Of the kernel."""
        return len(self.code.plan.graph.ops_of(LinearAttributes))

    @cached_property
    def _tail(self) -> Size:
        """Rows that a CTA of the last row of tiles loads, where it loads fewer than others, else 0."""
        if self._linears > MOST_TAILS:
            return 0
        rows, tail = self.code.bound.out[0], self._last_rows
        if self._moves:
            return 0 if most(rows) <= self.stage.a_rows else tail
        tail -= self.tile.cta_rows * (self._last_ctas - 1)
        return tail if tail < self.stage.a_rows else 0

    @property
    def _last_ctas(self) -> int:
        """Rows of CTAs of the last row of tiles that have any."""
        return ceil_div(int(self._last_rows), self.tile.cta_rows)

    def _others(self, policy: str) -> Iterator[Other]:
        """What tiles of the last row load: fewer rows, or nothing. Where rows move, the last row of CTAs is
        any of its cluster."""
        tail = None
        if self._tail:
            tail = Other("", self._a_copies(policy, self._tail), self._a_bytes(self._tail))
        i, m, row = self.code.bound.coords[0], self.tile.cluster.m, self.tile.cta_row
        if self._moves:
            row = f"{m} * {to_c(i)} + {row}" if m > 1 else to_c(i)
            yield from self._of_last("", row, self._down, m - 1, tail)
        else:
            ctas = self._last_ctas
            yield from self._of_last(_is_last(i, int(self._down)), row, ctas, m - ctas, tail)

    def _of_last(self, last: str, cta: str, ctas: Size, beyond: int, tail: Other | None) -> Iterator[Other]:
        """What tiles of the last row or column load. ctas: how many CTAs have any; so many beyond them load
        nothing, unless they are coupled. The last that has any, and coupled ones beyond it, load the tail,
        where it is less than others load."""

        def when(condition: str) -> str:
            return " && ".join(filter(None, (last, condition)))

        if beyond and not self._coupled:
            yield Other(when(f"{cta} {'>=' if beyond > 1 else '=='} {to_c(ctas)}"), (), 0)
        if tail:
            to_end = ">=" if beyond and self._coupled else "=="
            yield replace(tail, condition=when(f"{cta} {to_end} {to_c(ctas - 1)}" if ctas != 1 else ""))

    @cached_property
    def b(self) -> Loads:
        policy = "evict_first" if self.weights_once else ""
        copies = self._packed_copies(policy) if self.packed else self._b_copies(policy)
        waits, others = waits_for_weights(self.code), self._others_of_weights(policy)
        load = _load_of(tuple(copies), self.stage.b_bytes, waits, others)
        return Loads((load,), at=self.stage.b_at, policy=policy, together=self._sharing_b > 1)

    # --- the last column of tiles ---------------------------------------------------------------------------

    @cached_property
    def _ends(self) -> bool:
        """Whether tiles of the last column load less: packed weights have no end."""
        return not self.packed and self._linears <= FEW_LINEARS

    @cached_property
    def _across(self) -> int:
        """How many columns of tiles."""
        return ceil_div(int(self.code.bound.out[1]), self.tile.columns)

    @cached_property
    def _last_columns(self) -> int:
        """Of the result, in the last of them."""
        return int(self.code.bound.out[1]) - self.tile.columns * (self._across - 1)

    @cached_property
    def _last_ctas_across(self) -> int:
        """Columns of CTAs of the last column of tiles that have any."""
        return ceil_div(self._last_columns, self.tile.cta_columns)

    def _rows_there(self, piece: Piece) -> int:
        """Of a piece of the weights, in the last CTA that has any; eights for each CTA that loads a share."""
        left = self._last_columns - self.tile.cta_columns * (self._last_ctas_across - 1) - piece.first
        unit = 8 * self._sharing_b
        return max(0, min(piece.rows, unit * ceil_div(left, unit)))

    @cached_property
    def _b_tail(self) -> int:
        """Rows of a piece of the weights that the tensor ends in, or 0: at most one of a group's is such, and
        those of all groups are alike."""
        return max((n for p in self.tile.b_pieces if 0 < (n := self._rows_there(p)) < p.rows), default=0)

    def _others_of_weights(self, policy: str) -> Iterator[Other]:
        """What tiles of the last column load: fewer rows, or nothing."""
        if not self._ends:
            return
        there = sum(self._rows_there(piece) for piece in self.tile.b_pieces)
        tail = None
        if there < self.stage.b_rows:
            bytes = there * ROW_BYTES * self.stage.blocks
            tail = Other("", tuple(self._b_copies(policy, last=True)), bytes)
        last, ctas = _is_last(self.code.bound.coords[1], self._across), self._last_ctas_across
        yield from self._of_last(last, self.tile.cta_column, ctas, self.tile.cluster.n - ctas, tail)

    @property
    def _copied_rows(self) -> Size:
        """Of activations that a CTA copies in a step: where few rows move, in eights no more than there
        are."""
        rows, most_rows = self.code.bound.out[0], self.stage.a_rows
        share = most_rows // self._sharing_a
        if not self._moves or most(rows) > most_rows:
            return share
        return smallest(share, 8 * ceil_div(rows, 8 * self._sharing_a))

    def _copy(self, letter: str, column: str, row: str, to: int, policy: str, share: Share = ALONE) -> Copy:
        return Copy(self.code.map_address(f"{self.code.name}_{letter}"), (column, row), to, share, policy)

    def _access(self, operand: int) -> list[Access]:
        return [a for a in self.code.bound.reads if a.operand == operand and a.when == "step"]

    def _a_copies(self, policy: str, tail: Size = 0) -> tuple[Copy, ...]:
        """tail: the rows of the last row of tiles, which have a map of their own."""
        letter = "a_tail" if tail else "a"
        row = to_c(self.code.bound.write[0].lo) + (
            f" + {self.tile.cta_row} * {self.tile.cta_rows}" if self.tile.cluster.m > 1 else ""
        )
        copy = self._copy if self._patches is None else self._copy_of_patches
        share = ALONE
        if self._sharing_a > 1:
            own = tail // self._sharing_a if tail else self._copied_rows
            share = Share(_times(self.tile.cta_column, own * ROW_BYTES), self._to_row)
            row = f"{row} + {_times(self.tile.cta_column, own)}"
        return tuple(
            copy(letter, self._column(block), row, block * self.stage.a_block, policy, share)
            for block in range(self.stage.blocks)
        )

    def _column(self, block: int) -> str:
        """The first of a block of a step, of activations and of weights."""
        _, columns = self._access(1)[0].box
        return to_c(columns.lo) + (f" + {64 * block}" if block else "")

    def _copy_of_patches(
        self, letter: str, column: str, row: str, to: int, policy: str, share: Share = ALONE
    ) -> Copy:
        """64 columns of the matrix of patches are 64 channels of a pixel of each patch."""
        p = self._patches
        assert p
        geometry = (*p.result, *p.stride, *p.padding)
        first = f"tg_patch_of<{', '.join(map(str, geometry))}>({row})"
        (lines, pixels), (down, across) = p.window, p.dilation
        channel = f"({column}) % {p.channels}" if lines * pixels > 1 else column
        pixel = f"({column}) / {p.channels}"
        at = (
            channel,
            first,
            _scaled(f"{pixel} % {pixels}" if lines > 1 else pixel, across) if pixels > 1 else "0",
            _scaled(f"({column}) / {p.channels * pixels}", down) if lines > 1 else "0",
        )
        return Copy(self.code.map_address(f"{self.code.name}_{letter}"), at, to, share, policy)

    @property
    def _to_row(self) -> str:
        """The CTAs of this one's row, where a cluster has others."""
        return "row_ctas" if self.tile.cluster.m > 1 else "all_ctas"

    @property
    def _to_column(self) -> str:
        return "column_ctas" if self.tile.cluster.n > 1 else "all_ctas"

    # --- weights --------------------------------------------------------------------------------------------

    @property
    def _packed_box(self) -> int:
        """Rows of one copy from packed weights: all blocks of a step in as few copies as possible."""
        total = self.stage.b_rows * self.stage.blocks // self._sharing_b
        eights = 8 if total % 8 == 0 else 1
        count = next(n for n in range(1, total + 1) if total % (eights * n) == 0 and total // n <= BOX)
        return total // count

    @property
    def _piece_rows(self) -> int:
        """Rows of one copy from weights as they are."""
        return self.tile.b_pieces[0].rows // self._sharing_b

    def _packed_copies(self, policy: str) -> list[Copy]:
        j = to_c(self.code.bound.coords[1])
        n = self.tile.cluster.n
        tile = f"({j} * {n} + {self.tile.cta_column})" if n > 1 else j
        rows = self.stage.b_rows * self.stage.blocks
        row = f"({tile} * {self.code.number('steps', self.tile.steps)} + k) * {rows}"
        if self._sharing_b > 1:
            own, rank = rows // self._sharing_b, self.tile.cta_row
            share = Share(f"{rank} * {own * ROW_BYTES}", self._to_column)
            return [
                self._copy("b", "0", f"{row} + {rank} * {own} + {n}", n * ROW_BYTES, policy, share)
                for n in range(0, own, self._packed_box)
            ]
        starts = range(0, rows, self._packed_box)
        return [self._copy("b", "0", f"{row} + {n}" if n else row, n * ROW_BYTES, policy) for n in starts]

    def _b_copies(self, policy: str, last: bool = False) -> Iterator[Copy]:
        """last: those of the last CTA that has columns."""
        accesses = self._access(1)
        for block in range(self.stage.blocks):
            for piece in self.tile.b_pieces:
                rows = self._rows_there(piece) if last else piece.rows
                if not rows:
                    continue
                letter = "b" if rows == piece.rows else "b_tail"
                box, column = accesses[piece.group].box, self._column(block)
                row = to_c(box[0].lo) + (f" + {piece.first}" if piece.first else "")
                if self.tile.cluster.n > 1:
                    row += f" + {self.tile.cta_column} * {self.tile.cta_columns}"
                to = block * self.stage.b_block + piece.at * ROW_BYTES
                if self._sharing_b > 1:
                    own, rank = rows // self._sharing_b, self.tile.cta_row
                    share = Share(f"{rank} * {own * ROW_BYTES}", self._to_column)
                    yield self._copy(letter, column, f"{row} + {rank} * {own}", to, policy, share)
                else:
                    yield self._copy(letter, column, row, to, policy)

    @cached_property
    def packed_rows(self) -> Array:
        """(tiles, rows): which row of the weight lies in each row of a packed tile's block; -1 where there is
        none."""
        n, width = int(self.code.bound.out[1]), self.tile.cta_columns
        tiles = math.ceil(n / self.tile.columns) * self.tile.cluster.n
        out = np.full((tiles, self.stage.b_rows), -1, dtype=np.int64)
        for piece in self.tile.b_pieces:
            column = np.arange(tiles)[:, None] * width + piece.first + np.arange(piece.rows)[None, :]
            row = np.where(column < n, piece.group * n + column, -1)
            out[:, piece.at : piece.at + piece.rows] = row
        return out

    # --- maps -----------------------------------------------------------------------------------------------

    @property
    def maps(self) -> list[Map | PatchMap]:
        found = [self._map_of_activations("a", self._copied_rows)]
        if self._tail:
            found.append(self._map_of_activations("a_tail", self._tail // self._sharing_a))
        if self.packed:
            return [*found, self._packed_map()]
        weights = (
            self._map("b", 1, self._piece_rows),
            self._map("b_tail", 1, self._b_tail // self._sharing_b),
        )
        (load,) = self.b.each
        named = {c.map for copies in (load.copies, *(o.copies for o in load.others)) for c in copies}
        return [*found, *(m for m in weights if self.code.map_address(m.name) in named)]

    def _packed_map(self) -> Map:
        rows = len(self.packed_rows) * self.tile.steps * self.stage.b_rows * self.stage.blocks
        name, weight = f"{self.code.name}_b", self.code.bound.operand("w").tensor
        return Map(name, weight, rows, 64, 64, 0, (self._packed_box, 64), True, True)

    def _map_of_activations(self, letter: str, rows: Size) -> Map | PatchMap:
        if self._patches is None:
            return self._map(letter, 0, rows)
        b, name = self.code.bound, f"{self.code.name}_{letter}"
        return PatchMap(name, b.operand("x").tensor, self._patches, rows, int(b.pitch(0)), int(b.first(0)))

    def _map(self, letter: str, n: int, box_rows: Size) -> Map:
        operand = self.code.bound.op.operands[n]
        shape = self.code.bound.tensors[operand.tensor].plan_shape
        pitch, first = math.prod(int(s) for s in shape[1:]), int(self.code.bound.first(n))
        rows, columns = self.code.bound.shape(n)
        return Map(
            f"{self.code.name}_{letter}", operand.tensor, rows, columns, pitch, first, (box_rows, 64), True
        )


def _load_of(
    copies: tuple[Copy, ...], bytes: Size, waits: tuple[Wait, ...], others: Iterator[Other]
) -> Load:
    """Another without a condition is what all tiles load for which no condition holds."""
    some = []
    for other in others:
        if not other.condition:
            copies, bytes = other.copies, other.bytes
            break
        some.append(other)
    return Load(copies, bytes, waits, others=tuple(some))


def _scaled(index: str, by: int) -> str:
    return f"{by} * ({index})" if by > 1 else index


def _is_last(coordinate: Expr, count: int) -> str:
    """Whether a tile is in the last of so many rows or columns of tiles, as C; "" where there is one."""
    return "" if count == 1 else f"{to_c(coordinate)} == {count - 1}"
