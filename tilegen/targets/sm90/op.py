"""What a Hopper kernel needs to know of an op until its sums are there: waits, loads, tensor maps as C text, around its tile's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilegen.analysis.regions import Array, to_c
from tilegen.codegen.cuda_op import TYPES
from tilegen.ops.base import Access
from tilegen.targets.sm90.stage import Load, Loads, Map, Wait
from tilegen.targets.sm90.sums import HopperSums
from tilegen.targets.sm90.tile import BOX, ROW_BYTES

MMA_TYPES = {"bfloat16": "bf16", "float16": "f16"}
MOST_BLOCKS = 8  # of 64 columns in a step
NORMED_STEP = 256
SLICE = 32  # bytes of the 16 columns that one wgmma sums over
FEW_EIGHTS = 128  # of columns in a step, in all rows: two warps add up their squares while the products run
SUMS = 192  # accumulators a math thread can hold beside everything else


@dataclass(frozen=True)
class HopperOp(HopperSums):
    """A linear of a plan on sm_90a. PlanError where its tile does not fit the machine's instructions."""

    may_pack: frozenset[str] = frozenset()  # tensors that may come packed tile by tile

    form = "product"  # how the math warps compute a tile: templates/cuda/kernel.cu.j2

    def _problem(self) -> str:
        b = self.bound
        if b.op.kind != "linear":
            return f"no template for {b.op.kind} yet; only linear runs there"
        problem = self._types_problem()
        if problem:
            return problem
        for n in (0, 1):
            for what, size in (("columns", int(b.shape(n)[1])), ("first column", (b.op.operands[n].columns or (0, 0))[0])):
                if size % 8:
                    padded = math.ceil(size / 8) * 8
                    return f"{b.op.operands[n].tensor!r} has {what} {size}: rows must be whole 16-byte units; pad it to {padded}"
        if int(b.out[1]) % 8:
            return f"{b.op.result!r} has {b.out[1]} columns: rows must be whole 16-byte units; pad to {math.ceil(int(b.out[1]) / 8) * 8}"
        problem = self._tile_problem()
        if problem:
            return problem
        lo, hi = b.kind.k_range(b)  # type: ignore[attr-defined]
        if self.normed and (self.rows > 64 or self.rows_of_part != 64 or self.parts > 1 or self.waiting("first")):
            return "a norm is folded into products of up to 64 rows, a CTA a tile, whose weights no op writes"
        if self.normed and self.tile[2] > NORMED_STEP:
            return f"steps are {self.tile[2]} wide, expected at most {NORMED_STEP} where a norm is folded in: threads hold their share of a step"
        if hi < b.shape(0)[1] and (hi - lo) % b.tile[2]:
            return f"its share of the sum ends at column {hi}, inside a step of {b.tile[2]}, which would bring the next share's columns too"
        return self.epilogue.problem

    def _types_problem(self) -> str:
        b = self.bound
        if b.dtype(0) not in MMA_TYPES:
            return f"wgmma takes bfloat16 and float16, {b.op.operands[0].tensor!r} is {b.dtype(0)}"
        if b.result.dtype not in (b.dtype(0), "float32"):
            return f"the result is {b.result.dtype}, expected {b.dtype(0)} or float32"
        return ""

    def _tile_problem(self) -> str:
        if self.tile[2] % 64 or self.tile[2] > 64 * MOST_BLOCKS:
            return f"steps are {self.tile[2]} wide, expected a multiple of 64 up to {64 * MOST_BLOCKS}"
        if self.parts > 2:
            return f"a gang of {self.parts}: pairs are the most that share a tile"
        if self.rows_of_part not in (64, 128, 256):
            return f"a CTA computes 64, 128 or 256 rows, not {self.rows_of_part}"
        halves = 2 if self.splits_columns or (self.shares("steps")) else 1
        if self.columns_of_part % (8 * halves):
            return f"a CTA's {self.columns_of_part} columns do not split into {halves} times eight"
        if self.columns_of_warpgroup > 256 or self.m64 * self.columns_of_warpgroup // 2 > SUMS:
            return f"a math warpgroup would hold {self.m64 * 64} x {self.columns_of_warpgroup} sums, which do not fit its registers"
        if self.shares("steps") and self.steps_of_tile < self.parts:
            return f"its {self.steps_of_tile} steps cannot be shared by {self.parts} CTAs"
        return ""

    # --- steps, waits -----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> str:
        return str(self.steps_of_tile)

    @property
    def range(self) -> str:
        if self.shares("steps"):
            return f"const int first = part * {self.steps} / 2, last = (part + 1) * {self.steps} / 2;  // this CTA's share of the steps"
        return f"const int first = 0, last = {self.steps};"

    @property
    def a_waits(self) -> list[Wait]:
        steps = [Wait(n, "each") for n in self.waiting("step") if n == 0]
        if self.epilogue_is_older:
            return [*(Wait(n, "first") for n in self.waiting("epilogue")), *steps]
        return [*steps, *(Wait(n, "last") for n in self.waiting("epilogue"))]

    @property
    def b_waits(self) -> list[Wait]:
        return [Wait(n, "each") for n in self.waiting("step") if n == 1]

    @property
    def a(self) -> Loads:
        """What the activations' role does."""
        return Loads((Load(tuple(self.a_loads), self.a_bytes, tuple(self.a_waits)),), positions=self.positions)

    @property
    def b(self) -> Loads:
        """What the weights' role does."""
        return Loads((Load(tuple(self.b_loads), self.b_bytes, tuple(self.b_waits)),), positions=self.positions)

    @property
    def norm(self) -> dict[str, Any]:
        """What the math warps need to norm rows themselves: how many threads look at activations, how many of them at a row (a power of two), and how
        many eights of columns of a step each of these has."""
        lookers = 64 if self.packed and 8 * self.rows * self.blocks <= FEW_EIGHTS else 256
        of_row = lookers >> (self.rows - 1).bit_length()
        return {
            "weight": self.bound.op.operands[2].tensor,
            "type": TYPES[self.bound.dtype(2)],
            "depth": int(self.bound.shape(0)[1]),
            "eps": self.bound.norm_eps,
            "lookers": lookers,
            "of_row": of_row,
            "each": math.ceil(8 * self.blocks / of_row),
        }

    @property
    def scratch_bytes(self) -> int:
        """A sum of squares for each row, or each warp that has a row of its own; sums that the two math warpgroups swap."""
        return max(256 if self.normed else 0, 4096 * self.finished_octets if self.alternates else 0)

    # --- loads ------------------------------------------------------------------------------------------------------------

    def _access(self, operand: int) -> list[Access]:
        return [a for a in self.bound.reads if a.operand == operand and a.when == "step"]

    @property
    def a_policy(self) -> str:
        return "evict_last" if self.weights_once else ""

    @property
    def b_policy(self) -> str:
        return "evict_first" if self.weights_once else ""

    @property
    def a_loads(self) -> list[str]:
        rows, columns = self._access(0)[0].box
        row = to_c(rows.lo) + (f" + part * {self.rows_of_part}" if self.shares("rows") else "")
        out = []
        for block in range(self.blocks):
            column = to_c(columns.lo) + (f" + {64 * block}" if block else "")
            at = block * self.a_block
            if self.multicast == "activations":
                half = self.a_rows // 2
                out.append(self._load(at, "a", column, f"{row} + part * {half}", f"part * {half * ROW_BYTES}"))
            else:
                out.append(self._load(at, "a", column, row))
        return out

    def _load(self, at: int, operand: str, column: str, row: str, at_part: str = "") -> str:
        """One bulk tensor copy to `at` bytes (+ a share of the part's) into the stage; shared ones go to both CTAs."""
        to = " + ".join(["to", *([str(at)] if at else []), *([at_part] if at_part else [])])
        policy = self.a_policy if operand == "a" else self.b_policy
        tensor_map = self.map_address(f"{self.name}_{operand}")
        return f"tg_load{'_pair' if at_part else ''}({to}, {tensor_map}, {column}, {row}, bar{', ' + policy if policy else ''});"

    @property
    def _packed_box(self) -> int:
        """Rows of one copy from packed weights: all blocks of a step in as few copies as possible."""
        total = self.b_rows * self.blocks // (2 if self.multicast == "weights" else 1)
        count = next(n for n in range(1, total // 8 + 1) if total % (8 * n) == 0 and total // n <= BOX)
        return total // count

    @property
    def _piece_rows(self) -> int:
        """Rows of one copy from weights as they are."""
        rows = self.b_pieces[0][3]
        return rows // 2 if self.multicast == "weights" else rows

    @property
    def b_loads(self) -> list[str]:
        return self._packed_loads() if self.packed else self._plain_loads()

    def _packed_loads(self) -> list[str]:
        j = to_c(self.bound.coords[1])
        tile = f"({j} * 2 + part)" if self.shares("columns") else j
        rows = self.b_rows * self.blocks
        row = f"({tile} * {self.steps} + k) * {rows}"
        if self.multicast == "weights":
            own = rows // 2
            starts = range(0, own, self._packed_box)
            return [self._load(n * ROW_BYTES, "b", "0", f"{row} + part * {own} + {n}", f"part * {own * ROW_BYTES}") for n in starts]
        return [self._load(n * ROW_BYTES, "b", "0", f"{row} + {n}" if n else row) for n in range(0, rows, self._packed_box)]

    def _plain_loads(self) -> list[str]:
        accesses, out = self._access(1), []
        for block in range(self.blocks):
            for group, first, at, rows in self.b_pieces:
                box = accesses[group].box
                column = to_c(box[1].lo) + (f" + {64 * block}" if block else "")
                row = to_c(box[0].lo) + (f" + {first}" if first else "")
                row += f" + part * {self.columns_of_part}" if self.shares("columns") else ""
                to = block * self.b_block + at * ROW_BYTES
                if self.multicast == "weights":
                    half = rows // 2
                    out.append(self._load(to, "b", column, f"{row} + part * {half}", f"part * {half * ROW_BYTES}"))
                else:
                    out.append(self._load(to, "b", column, row))
        return out

    def packed_rows(self) -> Array:
        """(tiles, rows): which row of the weight lies in each row of a packed tile's block; -1 where there is none."""
        n, width = int(self.bound.out[1]), self.columns_of_part
        tiles = math.ceil(n / self.bound.tile[1]) * (2 if self.shares("columns") else 1)
        out = np.full((tiles, self.b_rows), -1, dtype=np.int64)
        for group, first, at, rows in self.b_pieces:
            column = np.arange(tiles)[:, None] * width + first + np.arange(rows)[None, :]
            out[:, at : at + rows] = np.where(column < n, group * n + column, -1)
        return out

    @property
    def packed(self) -> bool:
        """Packing pays where weights stream through once. Those of normed rows are multiplied by the norm's on the way."""
        return self.weights_once and self.may_pack.issuperset(self.packs)

    @property
    def packs(self) -> tuple[str, ...]:
        """The tensors that packed weights are made of."""
        return tuple(o.tensor for o in self.bound.op.operands[1 : 3 if self.normed else 2])

    # --- maps -------------------------------------------------------------------------------------------------------------

    @cached_property
    def maps(self) -> list[Map]:
        a_box = self.a_rows // 2 if self.multicast == "activations" else self.a_rows
        found = [self._operand_map("a", 0, a_box)]
        if self.packed:
            rows = len(self.packed_rows()) * self.steps_of_tile * self.b_rows * self.blocks
            found.append(Map(f"{self.name}_b", self.bound.op.operands[1].tensor, rows, 64, 64, 0, (self._packed_box, 64), True, True))
        else:
            found.append(self._operand_map("b", 1, self._piece_rows))
        if self.staged:
            rows, columns = self.rows, self.columns
            if self.finished_octets >= 8:
                found.append(Map(self.store_map, self.bound.op.result, rows, columns, columns, 0, (64, 64), True))
            if self.finished_octets % 8:
                box = (64, 8 * (self.finished_octets % 8))
                found.append(Map(self.rest_map, self.bound.op.result, rows, columns, columns, 0, box, False))
        return found

    def _operand_map(self, suffix: str, n: int, box_rows: int) -> Map:
        operand = self.bound.op.operands[n]
        shape = self.bound.tensors[operand.tensor].plan_shape
        pitch = math.prod(int(s) for s in shape[1:])
        first = operand.columns[0] if operand.columns else 0
        rows, columns = (int(s) for s in self.bound.shape(n))
        return Map(f"{self.name}_{suffix}", operand.tensor, rows, columns, pitch, first, (box_rows, 64), True)

    @property
    def positions(self) -> int:
        """Stages of a step."""
        return 1

    # --- text -------------------------------------------------------------------------------------------------------------

    @property
    def tile_text(self) -> str:
        return " x ".join(map(str, self.bound.tile))

    @property
    def gang_text(self) -> str:
        return f", by pairs that share its {self.bound.op.share}" if self.parts > 1 else ""

    @property
    def a_offset(self) -> str:
        if self.alternates:
            return f"warpgroup * {SLICE}"
        return "0" if self.splits_columns else f"warpgroup * {self.m64 * 64 * ROW_BYTES}"

    @property
    def b_offset(self) -> str:
        if self.alternates:
            return f"warpgroup * {SLICE}"
        return f"warpgroup * {self.columns_of_warpgroup * ROW_BYTES}" if self.splits_columns else "0"

    @property
    def slices(self) -> int:
        """Of 16 columns of K in a block of 64, that a warpgroup multiplies."""
        return 2 if self.alternates else 4

    @property
    def mma(self) -> str:
        return f"{MMA_TYPES[self.bound.dtype(0)]}_n{self.columns_of_warpgroup}"
