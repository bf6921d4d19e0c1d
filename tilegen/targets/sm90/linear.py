"""A linear on sm_90a: rows of activations and of weights, 64 columns at a time, by TMA; weights as they are
or packed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilegen.analysis.regions import Array, to_c
from tilegen.codegen.cuda_op import TYPES, refuse
from tilegen.frontend.dims import dims_of, most
from tilegen.frontend.program import Size
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.base import Access, OpInstance, ceil_div
from tilegen.ops.extrema import smallest
from tilegen.ops.gemm import LinearAttributes, groups, k_range, normed
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.extras import Extras
from tilegen.targets.sm90.product import (
    Norm,
    Packing,
    Product,
    types_problem,
    waits_for_activations,
    waits_for_weights,
)
from tilegen.targets.sm90.stage import ALONE, Copy, Load, Loads, Map, Other, Share
from tilegen.targets.sm90.store import RowStore
from tilegen.targets.sm90.tile import BOX, TWO_BYTES, Stage, Tile

NORMED_STEP = 256
MOST_TAILS = 48  # linears of a kernel whose last rows have a map each: parameters hold some 255 maps
FEW_VECTORS = 128  # of columns in a step, in all rows: two warps add up their squares while the products run


def linear(code: Code, may_pack: frozenset[str] = frozenset()) -> Product:
    """A linear of a plan. may_pack: tensors that may come packed tile by tile. PlanError where its tile does
    not fit the machine's instructions."""
    b = code.bound
    tile = _tile(b)
    store = RowStore(code, tile)
    extras = Extras(code, tile, store.staged, _weights_once(code))
    refuse(
        b, "sm_90a", _operands_problem(b) or tile.problem or _sum_problem(code, tile) or extras.text.problem
    )
    stage = _stage(b, tile)
    packs = tuple(b.operand(name).tensor for name in ("w", "norm_weight") if b.has(name))
    packed = extras.weights_once and may_pack.issuperset(packs)
    load = _Load(code, tile, stage, packed, extras.weights_once)
    return Product(
        code.plan,
        b,
        members=code.members,
        numbered=code.numbered,
        tile=tile,
        stage=stage,
        a=load.a,
        b=load.b,
        maps=(*load.maps, *store.maps, *(store.residual_maps(extras.residual) if extras.residual else ())),
        store=store,
        extras=extras,
        weights_once=extras.weights_once,
        norm=_norm(b, tile, packed) if normed(b) else None,
        packing=Packing(packs, load.packed_rows) if packed else None,
    )


def _tile(b: OpInstance) -> Tile:
    tm, tn, tk = b.tile
    return Tile(tm, tn, tk, int(b.steps), groups(b), b.op.cluster_shape, b.op.pingpong)


def _stage(b: OpInstance, tile: Tile) -> Stage:
    blocks, a_rows = tile.depth // 64, min(tile.cta_rows, math.ceil(most(b.out[0]) / 8) * 8)
    a_bytes = a_rows * ROW_BYTES * blocks
    return Stage(blocks, a_rows, a_rows * ROW_BYTES, a_bytes, a_bytes, tile.groups * tile.cta_columns)


def _weights_once(code: Code) -> bool:
    b = code.bound
    stored = code.plan.graph.tensors[b.operand("w").tensor].role in ("weight", "input")
    return stored and math.ceil(most(b.out[0]) / b.tile[0]) <= 2


def _operands_problem(b: OpInstance) -> str:
    """Why TMA and wgmma do not take its operands and result, or an empty string."""
    problem = types_problem(b)
    if problem:
        return problem
    for n in (0, 1):
        for what, size in (
            ("columns", int(b.shape(n)[1])),
            ("first column", (b.op.operands[n].columns or (0, 0))[0]),
        ):
            if size % 8:
                padded = math.ceil(size / 8) * 8
                return (
                    f"{b.op.operands[n].tensor!r} has {what} {size}: rows must be whole 16-byte units; pad it"
                    f" to {padded}"
                )
    if int(b.out[1]) % 8:
        return (
            f"{b.op.result!r} has {b.out[1]} columns: rows must be whole 16-byte units; pad to"
            f" {math.ceil(int(b.out[1]) / 8) * 8}"
        )
    return ""


def _sum_problem(code: Code, tile: Tile) -> str:
    """Why its rows cannot be normed, or its share of a sum not be taken, or an empty string."""
    b, (lo, hi) = code.bound, k_range(code.bound)
    if normed(b):
        written = code.plan.graph.writers(b.operand("norm_weight").tensor)
        if most(b.out[0]) > 64 or tile.cta_rows != 64 or tile.cluster.size > 1 or written:
            return "a norm is fused into products of up to 64 rows, a CTA a tile, whose weights no op writes"
        if tile.depth > NORMED_STEP:
            return (
                f"steps are {tile.depth} wide, expected at most {NORMED_STEP} where a norm is fused in:"
                " threads hold their share of a step"
            )
    if tile.pingpong and len(code.plan.graph.ops) > 1:
        return "math warpgroups take turns in a launch of one op; leave pingpong out, or ask for launches"
    if tile.pingpong and b.result.dtype not in TWO_BYTES:
        return f"math warpgroups take turns over results of two bytes a number, not {b.result.dtype}"
    if tile.uneven and b.result.dtype not in TWO_BYTES:
        return (
            f"a tile of {tile.cta_rows} rows is stored by TMA, in two bytes a number; the result is"
            f" {b.result.dtype}"
        )
    if hi < b.shape(0)[1] and (hi - lo) % tile.depth:
        return (
            f"its share of the sum ends at column {hi}, inside a step of {tile.depth}, which would bring the"
            " next share's columns too"
        )
    return ""


def _norm(b: OpInstance, tile: Tile, packed: bool) -> Norm:
    rows, blocks = most(b.out[0]), tile.depth // 64
    norm_eps = LinearAttributes.of(b).norm_eps
    assert norm_eps is not None  # it is normed
    lookers = 64 if packed and 8 * rows * blocks <= FEW_VECTORS else 256
    of_row = lookers >> (rows - 1).bit_length()
    weight = b.operand("norm_weight").tensor
    return Norm(
        weight,
        TYPES[b.dtype(b.index("norm_weight"))],
        int(b.shape(0)[1]),
        norm_eps,
        lookers,
        of_row,
        math.ceil(8 * blocks / of_row),
    )


def _times(rank: str, each: Size) -> str:
    return f"{rank} * {each}" if isinstance(each, int) else f"{rank} * ({to_c(each)})"


@dataclass(frozen=True)
class _Load:
    """The load role: what a step brings of activations and of weights. packed: weights come packed."""

    code: Code
    tile: Tile
    stage: Stage
    packed: bool
    weights_once: bool

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
    def a(self) -> Loads:
        policy = "evict_last" if self.weights_once else ""
        waits = waits_for_activations(self.code)
        copies, bytes = self._a_copies(policy), self._a_bytes(self._sharing_a * self._copied_rows)
        load = Load(copies, bytes, waits, others=tuple(self._others(policy)))
        return Loads((load,), policy=policy, together=self._sharing_a > 1)

    def _a_bytes(self, rows: Size) -> Size:
        return rows * ROW_BYTES * self.stage.blocks

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
        """Of activations, in the last of them. Each quotient rises with a size that moves, as rounding needs
        it; their difference does not."""
        rows = self.code.bound.out[0]
        unit = 8 * self._sharing_a
        return unit * ceil_div(rows, unit) - self._height * (self._down - 1)

    @cached_property
    def _tail(self) -> Size:
        """Rows that a CTA of the last row of tiles loads, where it loads fewer than others, else 0. Rows
        beyond the tensor's last would be filled with zeros, which takes longer than to load as many."""
        if len(self.code.plan.graph.ops_of(LinearAttributes)) > MOST_TAILS:
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
        """What tiles of the last row load: fewer rows, or nothing."""
        if self._moves:
            yield from self._others_where_rows_move(policy)
            return
        last = "" if self._down == 1 else f"{to_c(self.code.bound.coords[0])} == {to_c(self._down - 1)}"
        row, ctas, below = self.tile.cta_row, self._last_ctas, self.tile.cluster.m - self._last_ctas

        def of_last(condition: str) -> str:
            return " && ".join(filter(None, (last, condition)))

        if below:
            yield Other(of_last(f"{row} {'>=' if below > 1 else '=='} {ctas}"), (), 0)
        if self._tail:
            when = of_last(f"{row} == {ctas - 1}" if ctas > 1 else "")
            yield Other(when, self._a_copies(policy, self._tail), self._a_bytes(self._tail))

    def _others_where_rows_move(self, policy: str) -> Iterator[Other]:
        """The last row of CTAs is any of its cluster, and those below have no rows."""
        row, m = to_c(self.code.bound.coords[0]), self.tile.cluster.m
        if m > 1:
            row = f"{m} * {row} + {self.tile.cta_row}"
            yield Other(f"{row} {'==' if m == 2 else '>='} {to_c(self._down)}", (), 0)
        if self._tail:
            when = f"{row} == {to_c(self._down - 1)}"
            yield Other(when, self._a_copies(policy, self._tail), self._a_bytes(self._tail))

    @property
    def b(self) -> Loads:
        policy = "evict_first" if self.weights_once else ""
        copies = self._packed_copies(policy) if self.packed else self._b_copies(policy)
        load = Load(tuple(copies), self.stage.b_bytes, waits_for_weights(self.code))
        return Loads((load,), at=self.stage.b_at, policy=policy, together=self._sharing_b > 1)

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
        rows, columns = self._access(0)[0].box
        row = to_c(rows.lo) + (
            f" + {self.tile.cta_row} * {self.tile.cta_rows}" if self.tile.cluster.m > 1 else ""
        )
        out = []
        for block in range(self.stage.blocks):
            column = to_c(columns.lo) + (f" + {64 * block}" if block else "")
            at = block * self.stage.a_block
            if self._sharing_a > 1:
                own = tail // self._sharing_a if tail else self._copied_rows
                share = Share(_times(self.tile.cta_column, own * ROW_BYTES), self._to_row)
                own_row = f"{row} + {_times(self.tile.cta_column, own)}"
                out.append(self._copy(letter, column, own_row, at, policy, share))
            else:
                out.append(self._copy(letter, column, row, at, policy))
        return tuple(out)

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
        return self.tile.b_pieces[0][3] // self._sharing_b

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

    def _b_copies(self, policy: str) -> list[Copy]:
        accesses, out = self._access(1), []
        for block in range(self.stage.blocks):
            for group, first, at, rows in self.tile.b_pieces:
                box = accesses[group].box
                column = to_c(box[1].lo) + (f" + {64 * block}" if block else "")
                row = to_c(box[0].lo) + (f" + {first}" if first else "")
                if self.tile.cluster.n > 1:
                    row += f" + {self.tile.cta_column} * {self.tile.cta_columns}"
                to = block * self.stage.b_block + at * ROW_BYTES
                if self._sharing_b > 1:
                    own, rank = rows // self._sharing_b, self.tile.cta_row
                    share = Share(f"{rank} * {own * ROW_BYTES}", self._to_column)
                    out.append(self._copy("b", column, f"{row} + {rank} * {own}", to, policy, share))
                else:
                    out.append(self._copy("b", column, row, to, policy))
        return out

    @cached_property
    def packed_rows(self) -> Array:
        """(tiles, rows): which row of the weight lies in each row of a packed tile's block; -1 where there is
        none."""
        n, width = int(self.code.bound.out[1]), self.tile.cta_columns
        tiles = math.ceil(n / self.tile.columns) * self.tile.cluster.n
        out = np.full((tiles, self.stage.b_rows), -1, dtype=np.int64)
        for group, first, at, rows in self.tile.b_pieces:
            column = np.arange(tiles)[:, None] * width + first + np.arange(rows)[None, :]
            out[:, at : at + rows] = np.where(column < n, group * n + column, -1)
        return out

    # --- maps -----------------------------------------------------------------------------------------------

    @property
    def maps(self) -> list[Map]:
        found = [self._map("a", 0, self._copied_rows)]
        if self._tail:
            found.append(self._map("a_tail", 0, self._tail // self._sharing_a))
        if not self.packed:
            return [*found, self._map("b", 1, self._piece_rows)]
        rows = len(self.packed_rows) * self.tile.steps * self.stage.b_rows * self.stage.blocks
        name, weight = f"{self.code.name}_b", self.code.bound.operand("w").tensor
        return [*found, Map(name, weight, rows, 64, 64, 0, (self._packed_box, 64), True, True)]

    def _map(self, letter: str, n: int, box_rows: Size) -> Map:
        operand = self.code.bound.op.operands[n]
        shape = self.code.bound.tensors[operand.tensor].plan_shape
        pitch = math.prod(int(s) for s in shape[1:])
        first = operand.columns[0] if operand.columns else 0
        rows, columns = self.code.bound.shape(n)
        return Map(
            f"{self.code.name}_{letter}", operand.tensor, rows, columns, pitch, first, (box_rows, 64), True
        )
