"""How a Hopper kernel cuts a product's tile, in numbers: between the CTAs of a gang, their math warpgroups, and the stages of the ring."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from tilegen.codegen.cuda_op import CudaOp
from tilegen.codegen.op_text import equation
from tilegen.codegen.schedule import enum

ROW_BYTES = 128  # 64 two-byte columns: a row of a swizzled block
ALTERNATING = 64  # columns of a CTA's tile of 64 rows up to which wgmma takes longer to read activations than to multiply them
BOX = 256  # the most rows of one bulk tensor copy


@dataclass(frozen=True)
class HopperTile(CudaOp):
    """A linear's tile on sm_90a."""

    twins: tuple[str, ...] = field(default=(), kw_only=True)  # the ops that share this one's code, itself first (codegen.twins); none: it has its own

    # --- one code for several ops -------------------------------------------------------------------------------------------

    @property
    def served(self) -> tuple[str, ...]:
        return self.twins or super().served

    @property
    def equations(self) -> list[str]:
        return [equation(self.plan.graph.bound(self.plan.graph.op(name))) for name in self.served]

    @property
    def locals(self) -> str:
        """The tile's coordinates, and which of the twins the tile is of: their numbers rise in even steps."""
        if not self.twins:
            return super().locals
        numbers = [[op.name for op in self.plan.graph.ops].index(name) for name in self.twins[:2]]
        step = numbers[1] - numbers[0]
        twin = f"t.op - {self.enum}" if step == 1 else f"(t.op - {self.enum}) / {step}"
        return f"{super().locals.removesuffix(';')}, twin = {twin};"

    @property
    def seen(self) -> str:
        """Its tensors, where the kernel's are T."""
        return f"T.tg_of_{self.name}[twin]" if self.twins else "T"

    @property
    def tensors_type(self) -> str:
        return f"tg_tensors_of_{self.name}" if self.twins else "tg_tensors"

    def map_address(self, name: str) -> str:
        """The tensor map of the leader's name, as C."""
        return f"&maps.{name}{'[twin]' if self.twins else ''}"

    @property
    def waits_function(self) -> str:
        """The function that makes its waits: where it has twins, one for these alone."""
        return f"tg_shared_waits_{self.name}" if self.waits_of else super().waits_function

    @property
    def waits_of(self) -> list[tuple[str, str]]:
        """That of each of the twins that waits for anything."""
        return [(enum(name), f"tg_waits_{name}") for name in self.twins if self.plan.waits_of(name)]

    @property
    def posts_function(self) -> str:
        return f"tg_shared_posts_{self.name}" if self.posts_of else super().posts_function

    @property
    def posts_of(self) -> list[tuple[str, str]]:
        return [(enum(name), f"tg_posts_{name}") for name in self.twins if self.plan.posts_of(name)]

    # --- numbers ------------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        return int(self.bound.out[0])

    @property
    def columns(self) -> int:
        return int(self.bound.out[-1])

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows and columns of the result, and columns of a step."""
        tm, tn, tk = self.bound.tile
        return tm, tn, tk

    def shares(self, what: str) -> bool:
        return self.parts > 1 and self.bound.op.share == what

    @property
    def groups(self) -> int:
        return int(self.bound.groups)

    @property
    def rows_of_part(self) -> int:
        return self.tile[0] // (self.parts if self.shares("rows") else 1)

    @property
    def columns_of_part(self) -> int:
        return self.tile[1] // (self.parts if self.shares("columns") else 1)

    @property
    def splits_columns(self) -> bool:
        """The two math warpgroups finish half the columns each where a tile has 64 rows, else half the rows."""
        return self.rows_of_part == 64

    @property
    def alternates(self) -> bool:
        """Whether they get there by every other slice of K each, for all columns, and swap sums at the end: activations are read once."""
        return self.splits_columns and self.groups == 1 and self.columns_of_part <= ALTERNATING

    @property
    def m64(self) -> int:
        return max(1, self.rows_of_part // 128)

    @property
    def octets(self) -> int:
        """Eights of columns of one group that a math warpgroup has."""
        return self.columns_of_part // (16 if self.splits_columns and not self.alternates else 8)

    @property
    def columns_of_warpgroup(self) -> int:
        return 8 * self.groups * self.octets

    @property
    def registers(self) -> int:
        return self.columns_of_warpgroup // 2

    @property
    def blocks(self) -> int:
        return self.tile[2] // 64

    @property
    def a_rows(self) -> int:
        """Rows of activations that are loaded: what lies beyond the tensor's last row may hold anything."""
        need = math.ceil(int(self.bound.out[0]) / 8) * 8
        return min(self.rows_of_part, need)

    @property
    def a_block(self) -> int:
        return self.a_rows * ROW_BYTES

    @property
    def b_rows(self) -> int:
        return self.groups * self.columns_of_part

    @property
    def b_block(self) -> int:
        return self.b_rows * ROW_BYTES

    @property
    def b_at(self) -> int:
        return self.a_block * self.blocks

    @property
    def stage_bytes(self) -> int:
        return self.b_at + self.b_block * self.blocks

    @property
    def overrun(self) -> int:
        """Bytes that wgmma may touch beyond the activations that are loaded, counted from the start of a stage."""
        return (self.blocks - 1) * self.a_block + max(64, self.rows_of_part) * ROW_BYTES

    @property
    def multicast(self) -> str:
        """What a pair of CTAs loads together: activations, weights, or nothing."""
        if self.shares("rows") and self.columns_of_part % 16 == 0:
            return "weights"
        return "activations" if self.shares("columns") and self.a_rows >= 64 else ""

    @property
    def a_bytes(self) -> int:
        return self.a_block * self.blocks

    @property
    def b_bytes(self) -> int:
        return self.b_block * self.blocks

    @cached_property
    def b_pieces(self) -> list[tuple[int, int, int, int]]:
        """(group, warpgroup's first column, first row in a block, rows): how the weights of one 64-column block lie in shared memory."""
        if not self.splits_columns or self.alternates:
            return [(g, 0, g * self.columns_of_part, self.columns_of_part) for g in range(self.groups)]
        half = self.columns_of_part // 2
        if self.groups == 1:  # in one copy where it may move so many rows
            return [(0, 0, 0, self.columns_of_part)] if self.columns_of_part <= BOX else [(0, w * half, w * half, half) for w in (0, 1)]
        return [(g, w * half, (w * self.groups + g) * half, half) for w in (0, 1) for g in range(self.groups)]

    @property
    def weights_once(self) -> bool:
        """Whether each weight is used by one or two rows of tiles only, so that it need not stay in L2."""
        stored = self.plan.graph.tensors[self.bound.op.operands[1].tensor].role in ("weight", "input")
        return stored and math.ceil(int(self.bound.out[0]) / self.bound.tile[0]) <= 2

    # --- steps, and sums that are exchanged ------------------------------------------------------------------------------

    @cached_property
    def steps_of_tile(self) -> int:
        return int(self.bound.steps)

    @property
    def exchanges(self) -> bool:
        return self.shares("steps")

    @property
    def finished_octets(self) -> int:
        """Eights of columns that a math warpgroup finishes."""
        return self.octets // 2 if self.alternates or (self.exchanges and not self.splits_columns) else self.octets

    @property
    def sums_bytes(self) -> int:
        """Bytes of sums that a math warpgroup is sent."""
        return self.m64 * self.groups * self.finished_octets * 2048 if self.exchanges else 0
