"""attention on sm_90a: queries in registers, keys and values block by block through the ring (templates/cuda/attention.cuh.j2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilegen.analysis.regions import to_c
from tilegen.codegen.cuda_op import CudaOp
from tilegen.codegen.hopper_op import MMA_TYPES
from tilegen.codegen.hopper_stage import Load, Loads, Map, Wait
from tilegen.codegen.hopper_tile import BOX, ROW_BYTES
from tilegen.ops.base import K

MOST_KEYS = 128  # of a block
HELD = 148  # registers of a thread for products, p and sums, beside everything else


@dataclass(frozen=True)
class HopperAttention(CudaOp):
    """An attention of a plan. PlanError where its tile does not fit the machine's instructions."""

    form = "attention"
    sums_bytes = b_at = 0
    staged = exchanges = splits_columns = packed = weights_once = False
    multicast = a_policy = b_policy = ""

    def _problem(self) -> str:
        b = self.bound
        if b.dtype(0) not in MMA_TYPES:
            return f"wgmma takes bfloat16 and float16, {b.op.operands[0].tensor!r} is {b.dtype(0)}"
        if self.head % 16 or not 16 <= self.head <= 128:
            return f"heads have {self.head} columns, expected a multiple of 16 up to 128"
        if b.tile[0] > 128:
            return f"a tile has {b.tile[0]} queries, expected at most 128"
        if self.keys % 16 or not 16 <= self.keys <= MOST_KEYS:
            return f"a block has {self.keys} keys, expected a multiple of 16 up to {MOST_KEYS}"
        if self.keys // 2 + self.keys // 4 + self.head // 2 > HELD:
            return f"a thread would hold the products with {self.keys} keys and {self.head} columns of sums; at most {HELD} registers: choose fewer keys"
        if not b.scale > 0:
            return f"the scale is {b.scale}, expected a positive number"
        for operand in b.op.operands[:3]:
            pitch, first = self._pitch(operand.tensor), (operand.columns or (0, 0))[0]
            if pitch % 8 or first % 8:
                return f"{operand.tensor!r} has rows of {pitch} elements and is read from column {first}: both must be multiples of 8; pad it"
        return ""

    def _pitch(self, tensor: str) -> int:
        return math.prod(int(n) for n in self.bound.tensors[tensor].plan_shape[1:])

    # --- numbers ------------------------------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        return int(self.bound.head_dim)

    @property
    def keys(self) -> int:
        return self.bound.tile[1]

    @property
    def blocks(self) -> int:
        """Of 64 columns in a head."""
        return math.ceil(self.head / 64)

    @property
    def queries(self) -> int:
        """Rows of q that are loaded."""
        return 64 if self.halved else 128

    @property
    def halved(self) -> bool:
        """Whether the math warpgroups have the same queries, and half of the blocks of keys each."""
        return self.bound.tile[0] <= 64

    @property
    def row_block(self) -> int:
        return self.queries * ROW_BYTES

    @property
    def key_block(self) -> int:
        return math.ceil(self.keys / 8) * 8 * ROW_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.blocks * self.key_block

    @property
    def queries_bytes(self) -> int:
        """Of the queries; and of one warpgroup's sums, which take their place."""
        return max(self.blocks * self.row_block, 256 * self.head + 2048 if self.halved else 0)

    @property
    def overrun(self) -> int:
        return 0

    @property
    def log2(self) -> float:
        return float(self.bound.scale * math.log2(math.e))

    @property
    def pitch(self) -> int:
        return int(self.bound.out[-1])

    # --- loads --------------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> str:
        return to_c(self.bound.steps)

    @property
    def range(self) -> str:
        return f"const int first = 0, last = {self.steps};"

    @property
    def position(self) -> str:
        """The device's word on how far the caches are filled, or an empty string."""
        return f"tg_position(T.{self.bound.op.operands[3].tensor})" if len(self.bound.op.operands) > 3 else ""

    @property
    def first_query(self) -> str:
        """The tile's first query in its batch."""
        return f"{self.bound.tile[0]} * i" if int(self.grid[2]) > 1 else "0"

    @property
    def setup(self) -> tuple[str, ...]:
        """What the roles find out about a tile: `seen` keys, the last one that its first query sees, and how many blocks these are."""
        b, rows = self.bound, self.bound.write[0]
        count = f"{to_c(rows.hi)} - ({to_c(rows.lo)})"
        if self.position:
            limit = f"{self.position} + {self.first_query}"
            seen = f"tg_min(limit + {count}, {b.k_len})"
        elif b.causal:
            limit = f"{self.first_query} + {b.k_len - b.q_len}"
            seen = f"tg_min(limit + {count}, {b.k_len})"
        else:
            limit, seen = str(b.k_len), str(b.k_len)
        blocks = f"const int blocks = (seen + {self.keys - 1}) / {self.keys};"
        return (f"[[maybe_unused]] const int limit = {limit}, seen = {seen};", blocks)

    @property
    def a(self) -> Loads:
        keys, values = (Load(self._copies(letter, n), self._key_bytes, self._waits(n)) for letter, n in (("k", 1), ("v", 2)))
        queries = Load(self._copies("q", 0), self.blocks * self.row_block)
        return Loads(self._in_turn(keys, values), queries, tuple(self.waiting("first")), setup=self.setup, more=1)

    @property
    def b(self) -> Loads:
        return Loads(self._in_turn(Load(), Load()), setup=self.setup, more=1)

    def _in_turn(self, keys: Load, values: Load) -> tuple[Load, Load]:
        """The order in which the math warps use them: values one step behind keys."""
        return (
            replace(keys, waited="k < last", condition="k < blocks"),
            replace(values, step="k - 1", waited="k > 0", condition="k > 0 && k <= blocks"),
        )

    def _waits(self, operand: int) -> tuple[Wait, ...]:
        return (Wait(operand, False),) if operand in self.waiting("step") else ()

    @property
    def _key_bytes(self) -> int:
        return self.blocks * self.keys * ROW_BYTES

    def _copies(self, letter: str, operand: int) -> tuple[str, ...]:
        rows, columns = (self.bound.write if operand == 0 else self.bound.reads[operand].box)[:2]
        first = rows.lo.subs(K, K - 1) if operand == 2 else rows.lo
        row, column, size = to_c(first), to_c(columns.lo), self.row_block if operand == 0 else self.key_block
        return tuple(
            f"tg_load(to{f' + {n * size}' if n else ''}, &maps.{self.name}_{letter}, {column}{f' + {64 * n}' if n else ''}, {row}, bar);"
            for n in range(self.blocks)
        )

    @property
    def maps(self) -> list[Map]:
        found = []
        for n, (letter, height) in enumerate((("q", self.queries), ("k", self.keys), ("v", self.keys))):
            operand = self.bound.op.operands[n]
            first, rows = (operand.columns or (0, 0))[0], int(self.bound.tensors[operand.tensor].plan_shape[0])
            columns = int(self.bound.heads if n == 0 else self.bound.kv_heads) * self.head
            found.append(Map(f"{self.name}_{letter}", operand.tensor, rows, columns, self._pitch(operand.tensor), first, (min(height, BOX), 64), True))
        return found

    # --- text ---------------------------------------------------------------------------------------------------------------

    @property
    def type(self) -> str:
        return MMA_TYPES[self.bound.dtype(0)]

    @property
    def scores(self) -> str:
        """wgmma of queries and keys."""
        return f"{self.type}_n{self.keys}"

    @property
    def values(self) -> str:
        """wgmma of their softmax and values."""
        return f"{self.type}_across_n{self.head}"

    @property
    def corner(self) -> str:
        """The arguments of tg_attend that say where the tile's results go: first row, how many, first column."""
        rows, columns = self.bound.write
        return f"{to_c(rows.lo)}, {to_c(rows.hi)} - ({to_c(rows.lo)}), {to_c(columns.lo)}"

    @property
    def cut(self) -> str:
        b = self.bound
        return f"tile of {b.tile[0]} queries, grid {' x '.join(map(str, self.grid))}; blocks of {self.keys} keys"
