"""attention on sm_90a: queries beside the ring, keys and values block by block through it
(templates/cuda/sm90/attention.cuh.j2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from tilegen.analysis.regions import to_c
from tilegen.codegen.cuda_op import TYPES, refuse
from tilegen.codegen.op_text import OpText
from tilegen.codegen.score_bias import ScoreBias
from tilegen.frontend.dims import most
from tilegen.frontend.program import Operand, Size
from tilegen.graph.forms import Proxies
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.attention import FEW, AttentionAttributes, counted, halved, over_caches, queries
from tilegen.ops.base import K, spread
from tilegen.ops.extrema import smallest
from tilegen.targets.sm90.code import Needs
from tilegen.targets.sm90.product import MMA_TYPES
from tilegen.targets.sm90.stage import BoxMap, Copy, Load, Loads, Map, SeenKeys, Wait

MOST_KEYS = 128  # of a block


@dataclass(frozen=True)
class Attention(OpText):
    """An attention of a plan. PlanError where its tile does not fit the machine's instructions."""

    form: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        refuse(self.bound, "sm_90a", self._problem())

    def _problem(self) -> str:
        b, a = self.bound, AttentionAttributes.of(self.bound)
        if b.dtype(0) not in MMA_TYPES:
            return f"wgmma takes bfloat16 and float16, {b.op.operands[0].tensor!r} is {b.dtype(0)}"
        if self.columns % 8 or not 8 <= self.columns <= 256:
            return f"heads have {self.columns} columns, expected a multiple of 8 up to 256"
        if self.forwarded and self.padded:
            return f"heads have {self.columns} columns, expected whole sixteens where new keys are forwarded"
        if self.rows > 128:
            return f"a tile has {b.tile[0]} queries of {b.tile[2]} heads, expected at most 128 in all"
        if self.kv_splits > 1 and not self.halved:
            return (
                f"a tile of a split of the keys has {b.tile[0]} queries of {b.tile[2]} heads, expected at"
                f" most {FEW} in all"
            )
        if self.keys % 16 or not 16 <= self.keys <= MOST_KEYS:
            return f"a block has {self.keys} keys, expected a multiple of 16 up to {MOST_KEYS}"
        if not a.scale > 0:
            return f"the scale is {a.scale}, expected a positive number"
        if self.forwarded and (not self.halved or b.tile[0] < a.q_len):
            given = f"a tile has {b.tile[0]} queries of {b.tile[2]} heads"
            return (
                f"{given}, expected all {a.q_len} in at most {FEW} rows where new keys are forwarded;"
                " plan with"
                " appends='awaited'"
            )
        for operand in (b.op.operands[n] for n in self.proxies.reads):
            pitch, first = self._pitch(operand.tensor), (operand.columns or (0, 0))[0]
            if pitch % 8 or first % 8:
                return (
                    f"{operand.tensor!r} has rows of {pitch} elements and is read from column {first}: both"
                    " must be multiples of 8; pad it"
                )
        return ""

    def _pitch(self, tensor: str) -> int:
        return math.prod(int(n) for n in self.bound.tensors[tensor].plan_shape[1:])

    # --- numbers --------------------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """Of a head."""
        return int(AttentionAttributes.of(self.bound).head_dim)

    @property
    def head(self) -> int:
        """Columns of a head as wgmma takes them: in sixteens. TMA fills those that are not there with zeros;
        of the result they are not stored."""
        return math.ceil(self.columns / 16) * 16

    @property
    def padded(self) -> bool:
        return self.head > self.columns

    @property
    def keys(self) -> int:
        return self.bound.tile[1]

    @property
    def blocks(self) -> int:
        """Of 64 columns in a head."""
        return math.ceil(self.head / 64)

    @property
    def heads(self) -> int:
        """Of a tile: row r of it is query r / heads of head r % heads."""
        return self.bound.tile[2]

    @property
    def rows(self) -> int:
        return self.bound.tile[0] * self.heads

    @property
    def halved(self) -> bool:
        """Whether the math warpgroups have the same queries, and half of the blocks of keys each."""
        return halved(self.bound)

    @property
    def row_block(self) -> int:
        """Bytes of 64 columns of the queries; the swizzle repeats after 8 rows."""
        return (math.ceil(self.rows / 8) * 8 if self.halved else 128) * ROW_BYTES

    @property
    def key_block(self) -> int:
        return math.ceil(self.keys / 8) * 8 * ROW_BYTES

    @property
    def stage_bytes(self) -> int:
        """A block's keys; where its values are the same warpgroup's, these behind them."""
        return self.blocks * self.key_block * (2 if self.halved else 1)

    @property
    def new_rows(self) -> int:
        """Keys, and values, that are passed to it beside its queries."""
        a = AttentionAttributes.of(self.bound)
        return int(a.q_len) if self.forwarded else 0

    @property
    def new_at(self) -> int:
        """Bytes from the queries to the new keys, behind which lie the new values."""
        return self.blocks * self.row_block

    @property
    def new_block(self) -> int:
        """Bytes of 64 columns of the new keys."""
        return math.ceil(self.new_rows / 8) * 8 * ROW_BYTES

    @property
    def resident_bytes(self) -> int:
        """Of the queries and new rows; and of what the warpgroups give each other of their sums, which takes
        their place."""
        threads = math.ceil(self.rows / 16) * 32
        sums = (self.head + 4) * threads  # of eight of each 16 rows, and their m and Σ p
        return max(self.new_at + 2 * self.blocks * self.new_block, sums if self.halved else 0)

    @property
    def resident_overrun(self) -> int:
        """Bytes from their start that wgmma may touch: it takes 64 rows, of which those that are no query's
        may hold anything."""
        return (self.blocks - 1) * self.row_block + (FEW if self.halved else 128) * ROW_BYTES

    @property
    def needs(self) -> Needs:
        return Needs(self.stage_bytes, resident=self.resident_bytes, resident_overrun=self.resident_overrun)

    @property
    def looks_early(self) -> bool:
        """Whether the math warps look at arguments before a role tells that these are there: at the
        position, at lengths, at slopes, at what is added to scores."""
        return counted(self.bound) or self.bound.has("slopes") or (self.adds_bias and self.bias.constant)

    @property
    def log2(self) -> float:
        """Of what the softmax is of, to powers of two."""
        return float(AttentionAttributes.of(self.bound).outer * math.log2(math.e))

    @property
    def pitch(self) -> int:
        return int(self.bound.out[-1])

    def _loads(self, name: str) -> bool:
        return self.bound.has(name) and name not in ("lengths", "slopes", "bias", "position")

    @property
    def proxies(self) -> Proxies:
        """Queries, keys, values and new rows come by TMA; results leave from registers."""
        return Proxies(
            tuple(self.bound.index(name) for name in self.bound.kind.operands if self._loads(name))
        )

    # --- loads ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> str:
        return to_c(self.bound.steps)

    @property
    def range(self) -> str:
        return f"const int first = 0, last = {self.steps};"

    @property
    def first_query(self) -> str:
        """The tile's first query in its batch, or an empty string for 0."""
        return f"{self.bound.tile[0]} * i" if self.grid[2] > 1 else ""

    @property
    def seen_keys(self) -> SeenKeys:
        """Which keys a tile sees."""
        b, a, rows = self.bound, AttentionAttributes.of(self.bound), self.bound.write[0]
        one_tile = not (a.causal and self.first_query) and most(a.k_len) <= self.keys
        return SeenKeys(
            position=b.operand("position").tensor if over_caches(b) else "",
            causal=a.causal,
            first_query=self.first_query,
            queries=to_c(spread(rows.hi - rows.lo)),
            before=to_c(a.k_len - a.q_len),
            all=to_c(a.k_len),
            block=self.keys,
            splits=self.kv_splits,
            known=one_tile and not counted(b),  # of queries, with one block of keys
            window=self.window if self.leaves_out else 0,
            prefix=to_c(smallest(a.prefix, a.k_len)) if a.prefix else "",
            lengths=f"T.{b.operand('lengths').tensor} + b" if a.lengths else "",
            taken=self.taken,
        )

    @property
    def own(self) -> str:
        """The place among the keys of the tile's first query, where it is not the last that this sees."""
        a = AttentionAttributes.of(self.bound)
        before = to_c(a.k_len - a.q_len)
        return "limit" if a.causal else f"{self.first_query} + {before}" if self.first_query else before

    @cached_property
    def bias(self) -> ScoreBias:
        return ScoreBias(self.bound)

    @property
    def bias_at(self) -> str:
        """The row of its bias for the tile's first query of its first head."""
        if not self.adds_bias:
            return "0"
        return self.bias.row(f"{self.heads} * h" if self.heads > 1 else "h", self.first_query or "0")

    @property
    def window(self) -> int:
        """How many keys a query sees at most; 0 for all."""
        return AttentionAttributes.of(self.bound).window or 0

    @property
    def caps(self) -> bool:
        """Whether scores are capped."""
        return AttentionAttributes.of(self.bound).cap is not None

    @property
    def leaves_out(self) -> bool:
        """Whether blocks before all windows are not loaded: where no step waits for keys of its own. A block
        mask leaves them out by itself."""
        return bool(self.window) and not self.waiting("step") and not self.taken

    @property
    def begin(self) -> str:
        """The tile's first block of keys; where it begins in the table of a block mask."""
        if self.taken:
            return self.taken.first
        return "from" if self.kv_splits > 1 or self.leaves_out else "0"

    @property
    def a(self) -> Loads:
        given = Load(
            self._query_copies() + self._new_copies(),
            self.blocks * (self.rows + 2 * self.new_rows) * ROW_BYTES,
        )
        return replace(self._in_turn(not self.forwarded), before=given, first=tuple(self.waiting("first")))

    @property
    def b(self) -> Loads:
        """Nothing to load, unless new rows are forwarded: then keys and values are there from the
        beginning, as weights are."""
        return self._in_turn(self.forwarded)

    def _in_turn(self, loads: bool) -> Loads:
        """Keys and values as the math warps use them: a block's in one stage where one warpgroup takes it,
        else values one step behind keys."""
        keys, values = (
            Load(self._key_copies(letter, n), self._key_bytes, self._waits(n)) if loads else Load()
            for letter, n in (("k", 1), ("v", 2))
        )
        if self.halved:
            both = Load(
                keys.copies + values.copies,
                keys.bytes + values.bytes,
                keys.waits + values.waits,
                condition="k < blocks",
            )
            return Loads((both,), keys=self.seen_keys)
        keys = replace(keys, waited="k < last", condition="k < blocks")
        values = replace(values, step="k - 1", waited="k > 0", condition="k > 0 && k <= blocks")
        return Loads((keys, values), keys=self.seen_keys, more=1)

    def _waits(self, operand: int) -> tuple[Wait, ...]:
        return (Wait(operand, "each"),) if operand in self.waiting("step") else ()

    @property
    def _key_bytes(self) -> int:
        return self.blocks * self.keys * ROW_BYTES

    def _query_copies(self) -> tuple[Copy, ...]:
        """Boxes of 64 columns of the tile's heads of its queries: row r of it is head r % heads of query r /
        heads."""
        b = self.bound
        row = to_c(queries(b)[0].lo)
        head = f"{self.heads} * h" if self.heads > 1 else "h"
        return tuple(
            Copy(f"&maps.{self.name}_q", (str(64 * n), head, row), n * self.row_block)
            for n in range(self.blocks)
        )

    def _new_copies(self) -> tuple[Copy, ...]:
        """Boxes of 64 columns of the head's new keys, then of its new values."""
        if not self.forwarded:
            return ()
        rows, columns = self.bound.reads[-1].box
        row, column = to_c(rows.lo), to_c(columns.lo)
        return tuple(
            Copy(
                f"&maps.{self.name}_new_{letter}",
                (f"{column}{f' + {64 * n}' if n else ''}", row),
                self.new_at + (self.blocks * which + n) * self.new_block,
            )
            for which, letter in enumerate("kv")
            for n in range(self.blocks)
        )

    def _key_copies(self, letter: str, operand: int) -> tuple[Copy, ...]:
        rows, columns = self.bound.reads[operand].box
        behind = operand == 2 and not self.halved
        step, at = K - 1 if behind else K, self.blocks * self.key_block if operand == 2 and self.halved else 0
        row, column = to_c(rows.lo.subs(K, step)), to_c(columns.lo)
        if self.kv_splits > 1:  # which blocks these are is not in the plan
            row = f"{row} + {self.keys} * (from + {to_c(step)})"
        elif self.leaves_out:
            row = f"{row} + {self.keys} * from"

        def place(n: int) -> tuple[str, ...]:
            if self.padded:
                return str(64 * n), to_c(columns.lo / self.columns), row
            return f"{column}{f' + {64 * n}' if n else ''}", row

        return tuple(
            Copy(f"&maps.{self.name}_{letter}", place(n), at + n * self.key_block) for n in range(self.blocks)
        )

    def _map_of_heads(
        self, letter: str, operand: Operand, heads: int, rows: Size, box: tuple[int, int]
    ) -> BoxMap:
        """In which a head ends with its last column, beyond which TMA fills in zeros. box: heads and rows."""
        sizes, pitches = (self.columns, heads, rows), (self.columns, self._pitch(operand.tensor))
        first = (operand.columns or (0, 0))[0]
        return BoxMap(f"{self.name}_{letter}", operand.tensor, sizes, pitches, (64, *box), (1, 1, 1), first)

    @property
    def maps(self) -> list[Map | BoxMap]:
        a = AttentionAttributes.of(self.bound)
        b, (q, k, v, *new) = self.bound, (self.bound.op.operands[n] for n in self.proxies.reads)
        tq, _, th = b.tile
        found: list[Map | BoxMap] = [self._map_of_heads("q", q, int(a.heads), a.batch * a.q_len, (th, tq))]
        boxes = [
            ("k", k, self.keys),
            ("v", v, self.keys),
            *(("new_" + letter, operand, self.new_rows) for letter, operand in zip("kv", new, strict=False)),
        ]
        for letter, operand, height in boxes:
            rows, first = b.tensors[operand.tensor].plan_shape[0], (operand.columns or (0, 0))[0]
            if self.padded:
                found.append(self._map_of_heads(letter, operand, int(a.kv_heads), rows, (1, height)))
                continue
            columns = int(a.kv_heads) * self.columns
            found.append(
                Map(
                    f"{self.name}_{letter}",
                    operand.tensor,
                    rows,
                    columns,
                    self._pitch(operand.tensor),
                    first,
                    (height, 64),
                    True,
                )
            )
        return found

    # --- text -----------------------------------------------------------------------------------------------

    @property
    def result_type(self) -> str:
        return TYPES[self.bound.result.dtype]

    @property
    def result_name(self) -> str:
        return self.bound.op.result

    @property
    def type(self) -> str:
        return MMA_TYPES[self.bound.dtype(0)]

    @property
    def element(self) -> str:
        """Of queries, keys and values."""
        return TYPES[self.bound.dtype(0)]

    @property
    def scores(self) -> str:
        """wgmma of queries and keys."""
        return f"{self.type}_n{self.keys}"

    @property
    def values(self) -> str:
        """wgmma of their softmax and values."""
        return f"{self.type}_across_n{self.head}"

    @property
    def width(self) -> int:
        """Columns of a head in the result."""
        return self.columns + self.STATE if self.kv_splits > 1 else self.columns

    @property
    def corner(self) -> str:
        """The arguments of tg_attend that say where the tile's results go: first row, how many, first
        column."""
        rows, columns = self.bound.write
        return f"{to_c(rows.lo)}, {to_c(spread(rows.hi - rows.lo))}, {to_c(columns.lo)}"

    @property
    def cut(self) -> str:
        b = self.bound
        of = f" of {self.heads} heads" if self.heads > 1 else ""
        return (
            f"tile of {b.tile[0]} queries{of}, grid {' x '.join(map(str, self.grid))}; blocks of {self.keys}"
            " keys"
        )
