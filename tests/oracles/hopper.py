"""What sm_90a does with the loads and stores of a linear, element by element: TMA copies boxes, wgmma reads
rows of 128 bytes.

Elements are numbered from 1 in the memory that a tensor map looks at; 0 is what TMA fills in beyond its edge,
-1 what nobody wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch

from tilegen.analysis.regions import evaluate
from tilegen.ops.gemm import k_range
from tilegen.targets.sm90.packing import pack
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.stage import Copy, Load, Map, Other
from tilegen.targets.sm90.store import Branch, Step, Steps

COLUMNS = 64  # of a block: 128 bytes
M64_BYTES = 8192  # 64 rows of a block

Coord = tuple[int, ...]


def value(text: str, **names: int) -> int:
    """An index expression of the generated text; all numbers in it are positive, so C's division is
    Python's."""
    return int(eval(text.replace("(int)", "").replace("/", "//"), {}, names))


class Tile:
    """One tile of an op, run by all CTAs of its cluster."""

    def __init__(self, op: Product, coord: Coord):
        self.op, self.b = op, op.bound
        self.names = {c.name: n for c, n in zip(self.b.coords, coord, strict=True)}
        self.row, self.column = (int(evaluate(i.lo, self.names)) for i in self.b.write)
        self.k_begin, self.k_end = (int(k) for k in k_range(self.b))

    @staticmethod
    def all(op: Product) -> Iterator[Tile]:
        return (Tile(op, coord) for coord in product(*(range(n) for n in op.grid)))

    def steps(self, cta_rank: int) -> range:
        first, last = re.findall(r"= ([^,;]+)[,;]", self.op.range)
        return range(value(first, cta_rank=cta_rank), value(last, cta_rank=cta_rank))

    # --- loads ----------------------------------------------------------------------------------------------

    def stages(self, memory: dict[str, Any], k: int) -> dict[int, tuple[Any, Any]]:
        """cta_rank -> (elements, how often written) of its stage after step k, a row of 128 bytes each."""
        ranks = [p for p in range(self.op.cluster) if k in self.steps(p)]
        rows = self.op.stage.bytes // 128
        made = {
            p: (np.full((rows, COLUMNS), -1, dtype=np.int64), np.zeros(rows, dtype=np.int64)) for p in ranks
        }
        maps = {m.name: m for m in self.op.maps}
        for cta_rank in ranks:
            names = {**self.names, "k": k, "cta_rank": cta_rank}
            for base, copy in chosen(self.op, names):
                at = base + copy.to + (value(copy.share.before, **names) if copy.share.before else 0)
                assert at % 128 == 0, copy
                name, (column, row) = copy.map.removeprefix("&maps."), copy.at
                first = value(row, **names)
                box = copied(maps[name], memory[name], first, value(column, **names))
                beyond = first + len(box) - maps[name].rows
                assert beyond < 8 * self.op.cluster or beyond >= len(box), "rows beyond take longer"
                for target in self.getting(copy, cta_rank, ranks):
                    elements, times = made[target]
                    elements[at // 128 : at // 128 + len(box)] = box
                    times[at // 128 : at // 128 + len(box)] += 1
        return made

    def getting(self, copy: Copy, cta_rank: int, ranks: list[int]) -> list[int]:
        """The CTAs whose shared memory a copy of this one goes to."""
        across = self.op.tile.cluster.n
        match copy.share.ctas:
            case "":
                return [cta_rank]
            case "row_ctas":
                return [p for p in ranks if p // across == cta_rank // across]
            case "column_ctas":
                return [p for p in ranks if p % across == cta_rank % across]
            case "all_ctas":
                return ranks
        raise AssertionError(copy)

    def check_loads(self, memory: dict[str, Any]) -> None:
        """Each math warpgroup finds the rows and columns that its sums are over, each once, and zeros beyond
        the end of K."""
        for k in sorted({k for p in range(self.op.cluster) for k in self.steps(p)}):
            for cta_rank, (elements, times) in self.stages(memory, k).items():
                b_at, names = self.op.stage.b_at // 128, {**self.names, "cta_rank": cta_rank}
                assert (times <= 1).all(), "a row of the stage is written twice"
                assert not self.op.packing or (times[b_at:] == 1).all(), "a packed row is never written"
                for role, rows in ((self.op.a, times[:b_at]), (self.op.b, times[b_at:])):
                    assert sum(filling(load, names).bytes for load in role.each) == 128 * rows.sum(), (
                        "the barrier counts other bytes than arrive"
                    )
                for warpgroup in (0, 1):
                    self._check_operands(elements, cta_rank, warpgroup, k)

    def _check_operands(self, stage: Any, cta_rank: int, warpgroup: int, k: int) -> None:
        op = self.op
        tile, stages = op.tile, op.stage
        if tile.swapped:
            self._check_swapped(stage, cta_rank, warpgroup, k)
            return
        # where its slices of 16 columns begin in a row, every other one
        slices = 32 * warpgroup if tile.alternates else 0
        a_at, b_at = (
            value(offset, warpgroup=warpgroup) - slices for offset in (tile.a_offset, tile.b_offset)
        )
        b_at += stages.b_at
        # the swizzle's period
        assert a_at % 1024 == b_at % 1024 == stages.a_block % 1024 == stages.b_block % 1024 == 0
        for block in range(stages.blocks):
            columns = self.k_begin + self.b.tile[2] * k + COLUMNS * block + np.arange(COLUMNS)
            inside = columns < self.k_end
            for m in range(tile.m64 - (tile.uneven and warpgroup == 1)):
                rows = self.rows(cta_rank, warpgroup) + 64 * m + np.arange(64)
                self._compare(
                    stage,
                    (a_at + block * stages.a_block + m * M64_BYTES) // 128,
                    0,
                    rows,
                    rows < op.rows,
                    columns,
                    inside,
                )
            n = np.arange(tile.columns_of_warpgroup)
            group, column = (
                n // 8 // tile.n8s,
                self.columns(cta_rank, warpgroup) + n // 8 % tile.n8s * 8 + n % 8,
            )
            known = column < op.columns
            self._compare(
                stage,
                (b_at + block * stages.b_block) // 128,
                1,
                group * op.columns + column,
                known,
                columns,
                inside,
            )

    def _check_swapped(self, stage: Any, cta_rank: int, warpgroup: int, k: int) -> None:
        """Weights are the left operand: of each group the warpgroup's columns of the result, 64 at a time;
        activations the right one."""
        op, tile = self.op, self.op.tile
        left, right = value(op.left_offset, warpgroup=warpgroup), value(tile.b_offset, warpgroup=warpgroup)
        right += op.right_at
        assert left % 1024 == right % 1024 == op.left_block % 1024 == op.right_block % 1024 == 0
        of_group = tile.m64 // tile.groups
        for block in range(op.stage.blocks):
            columns = self.k_begin + self.b.tile[2] * k + COLUMNS * block + np.arange(COLUMNS)
            inside = columns < self.k_end
            for m in range(tile.m64):
                group, column = (
                    m // of_group,
                    self.columns(cta_rank, warpgroup) + 64 * (m % of_group) + np.arange(64),
                )
                at = (left + block * op.left_block + m * M64_BYTES) // 128
                self._compare(stage, at, 1, group * op.columns + column, column < op.columns, columns, inside)
            rows = self.rows(cta_rank, warpgroup) + np.arange(tile.columns_of_warpgroup)
            at = (right + block * op.right_block) // 128
            self._compare(stage, at, 0, rows, rows < op.rows, columns, inside)

    def _compare(
        self, stage: Any, at: int, operand: int, rows: Any, known: Any, columns: Any, inside: Any
    ) -> None:
        """Where `known`, the rows of the stage from `at` on are these rows of the operand; what lies beyond K
        is zero."""
        o = self.b.op.operands[operand]
        pitch = math.prod(int(n) for n in self.b.tensors[o.tensor].plan_shape[1:])
        first = o.columns[0] if o.columns else 0
        expected = np.where(inside, rows[:, None] * pitch + first + columns + 1, 0)[known]
        assert np.array_equal(stage[at + np.flatnonzero(known)], expected), (self.names, "AB"[operand], at)

    # --- where sums lie -------------------------------------------------------------------------------------

    def rows(self, cta_rank: int, warpgroup: int) -> int:
        """First row of the result that a warpgroup has sums of."""
        tile = self.op.tile
        shared = cta_rank // tile.cluster.n * tile.cta_rows if tile.cluster.m > 1 else 0
        if tile.swapped:
            halves = tile.cta_columns == 64 and not tile.pingpong
            return self.row + shared + (warpgroup * tile.cta_rows // 2 if halves else 0)
        whole = tile.warpgroups_split_n or tile.pingpong
        return self.row + shared + (0 if whole else warpgroup * 64 * tile.m64)

    def columns(self, cta_rank: int, warpgroup: int) -> int:
        tile = self.op.tile
        shared = cta_rank % tile.cluster.n * tile.cta_columns if tile.cluster.n > 1 else 0
        if tile.swapped:
            halves = tile.cta_columns > 64 and not tile.pingpong
            return self.column + shared + (warpgroup * tile.cta_columns // 2 if halves else 0)
        return (
            self.column
            + shared
            + (warpgroup * 8 * tile.n8s if tile.warpgroups_split_n and not tile.alternates else 0)
        )

    # --- stores ---------------------------------------------------------------------------------------------

    def calls(self, cta_rank: int, warpgroup: int) -> dict[str, tuple[int, int]]:
        """warpgroup_reduce, cluster_reduce, store -> (first n8 fragment, n8 fragments), of the statements
        that this warpgroup runs; of the first: what it keeps."""
        steps = _run(self.op.finish, cta_rank=cta_rank, warpgroup=warpgroup)
        return {s.does: (s.first, s.count) for s in steps if s.does != "cluster_send"}

    def sent(self, cta_rank: int, warpgroup: int) -> dict[int, Step]:
        """CTA rank -> what this warpgroup sends it, in statements of which the last says so."""
        names = {"cta_rank": cta_rank, "warpgroup": warpgroup}
        steps = [s for s in _run(self.op.finish, **names) if s.does == "cluster_send"]
        assert [s.last for s in steps] == [n == len(steps) - 1 for n in range(len(steps))]
        assert len({s.barrier for s in steps}) == len(steps) <= self.op.tile.sends
        return {value(s.to, **names): s for s in steps}

    def check_sums(self, cta_rank: int, warpgroup: int) -> None:
        """What this warpgroup adds and stores is what all other CTAs send it, and it tells each of them that
        it has read it at the barrier that that one waits at; what it does not add nobody sends."""
        adds = [
            s
            for s in _run(self.op.finish, cta_rank=cta_rank, warpgroup=warpgroup)
            if s.does == "cluster_reduce"
        ]
        calls = self.calls(cta_rank, warpgroup)
        assert calls.get("store") == calls.get("cluster_reduce")
        for other in set(range(self.op.cluster)) - {cta_rank}:
            comes = self.sent(other, warpgroup).get(cta_rank)
            assert len(adds) == (comes is not None)
            if comes is not None:
                (add,) = adds
                assert (comes.first, comes.count) == (add.first, add.count)
                told = add.barrier if add.barrier >= 0 else cta_rank - (cta_rank > other)
                assert self.op.cluster == 2 or comes.barrier == told

    def check_stores(self, times: Any) -> None:
        """Count in `times` how often each element of the result is written; each by the thread that has its
        sum."""
        warpgroups = (0,) if self.op.tile.pingpong else (0, 1)
        for cta_rank, warpgroup in product(range(self.op.cluster), warpgroups):
            calls = self.calls(cta_rank, warpgroup)
            if self.op.tile.exchanges:
                self.check_sums(cta_rank, warpgroup)
            if self.op.tile.alternates:
                half = self.op.tile.n8s // 2
                first = warpgroup * half
                assert calls["warpgroup_reduce"] == (first, half), calls
                assert all(first <= f and f + n <= first + half for f, n in calls.values()), calls
            if "store" in calls:
                self._store(times, cta_rank, warpgroup, *calls["store"])

    def _store(self, times: Any, cta_rank: int, warpgroup: int, first: int, n8s: int) -> None:
        op, names = self.op, {**self.names, "cta_rank": cta_rank, "warpgroup": warpgroup}
        store, m64 = op.store, op.tile.m64
        row, column = (
            value(store.row + store.row_of_warpgroup, **names),
            value(store.column + store.column_of_warpgroup, **names),
        )
        down, across = (first, 0) if op.tile.swapped else (0, first)  # n8 fragments lie side by side so
        assert row == self.rows(cta_rank, warpgroup) + 8 * down
        assert column == self.columns(cta_rank, warpgroup) + 8 * across
        if op.tile.swapped:
            height, width = 8 * n8s, 64 * m64 // op.tile.groups
            if store.staged:
                self._check_turned(names, (row, column), n8s)
            times[row : row + height, column : column + width] += 1
            return
        if not store.staged:
            times[row : row + 64 * m64, column : column + 8 * n8s] += 1
            return
        assert n8s == op.tile.finished_n8s and not store.column_of_warpgroup
        maps, corner = {m.name: m for m in op.maps}, value(store.row, **names)
        for m, n in product(range(m64), range(0, n8s, 8)):  # tg_store_rows
            height, width = maps[store.map_name if n + 8 <= n8s else store.rest_name].box
            at = corner + 64 * (m64 * warpgroup + m)
            assert at == row + 64 * m and height == 64 and width == 8 * min(8, n8s - n)
            if op.extras.residual:  # by the same boxes, from where the epilogue would read it
                beside = maps[store.beside_name if n + 8 <= n8s else store.beside_rest_name]
                own, operand = maps[store.map_name if n + 8 <= n8s else store.rest_name], op.extras.residual
                assert (beside.box, beside.swizzle, beside.rows) == (own.box, own.swizzle, own.rows)
                assert (beside.columns, beside.offset, beside.pitch) == (
                    own.columns,
                    operand.first,
                    operand.pitch,
                )
            if op.tile.uneven and warpgroup == 1 and m == m64 - 1:
                continue  # stored beyond the tensor
            times[at : at + height, column + 8 * n : column + 8 * n + width] += 1

    def _check_turned(self, names: dict[str, int], at: tuple[int, int], n8s: int) -> None:
        """The boxes that a warpgroup's results leave in (tg_store_turned) are those of its sums."""
        store, tile, maps = self.op.store, self.op.tile, {m.name: m for m in self.op.maps}
        across, eights, down, right = store.turned
        assert (across, eights) == (tile.m64 // tile.groups, n8s)
        corner = value(store.row, **names), value(store.column, **names)
        assert at == (corner[0] + names["warpgroup"] * down, corner[1] + names["warpgroup"] * right)
        for n in range(0, n8s, 8):
            box = maps[store.map_name if n + 8 <= n8s else store.rest_name]
            assert box.box == (8 * min(8, n8s - n), 64) and box.swizzle


def copies(op: Product) -> list[tuple[int, Copy]]:
    """What a step of any tile brings, and where in the stage its role's copies begin."""
    return [
        (role.at, copy)
        for role in (op.a, op.b)
        for load in role.each
        for what in (load, *load.others)
        for copy in what.copies
    ]


def filling(load: Load, names: dict[str, int]) -> Load | Other:
    """What fills a stage for a tile and CTA: the first of the others whose condition holds."""
    return next((o for o in load.others if value(o.condition.replace("&&", "and"), **names)), load)


def chosen(op: Product, names: dict[str, int]) -> list[tuple[int, Copy]]:
    """What a step brings to this tile and CTA."""
    return [
        (role.at, copy) for role in (op.a, op.b) for load in role.each for copy in filling(load, names).copies
    ]


def _run(steps: Steps, **names: int) -> Iterator[Step]:
    """The statements that a warpgroup runs."""
    for step in steps:
        if isinstance(step, Branch):
            yield from _run(step.then if value(step.condition, **names) else step.otherwise, **names)
        else:
            yield step


def copied(m: Map, memory: Any, row: int, column: int) -> Any:
    """What a bulk tensor copy brings: the box of a map at (row, column), zeros beyond the window."""
    rows, columns = row + np.arange(m.box[0])[:, None], column + np.arange(m.box[1])[None, :]
    at = m.offset + rows * m.pitch + columns
    return np.where((rows < m.rows) & (columns < m.columns), memory[np.minimum(at, len(memory) - 1)], 0)


def memories(op: Product) -> dict[str, Any]:
    """map -> the numbered elements that it looks at, packed where the op takes its weights packed."""
    found = {}
    for m in op.maps:
        shape = op.bound.tensors[m.tensor].plan_shape
        whole = torch.arange(1, math.prod(shape) + 1).reshape(shape)
        found[m.name] = (pack(op, {m.tensor: whole}) if m.packed else whole).reshape(-1).numpy()
    return found


def check(op: Product) -> None:
    """All tiles of an op: every step's loads, and the stores of the whole result."""
    memory, times = memories(op), np.zeros((op.rows, op.columns), dtype=np.int64)
    for tile in Tile.all(op):
        tile.check_loads(memory)
        tile.check_stores(times)
    assert (times == 1).all(), "an element of the result is written never or twice"
