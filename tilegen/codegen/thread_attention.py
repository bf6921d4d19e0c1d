"""Attention by threads: mma.sync over the keys that are in shared memory, with an online softmax
(templates/cuda/threads/attention.cuh.j2).

A warp has sixteen rows of a tile, queries of heads that share keys. Heads are padded with zeros to whole 32
columns, in shared memory alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.codegen.cuda_op import mma_problem
from tilegen.codegen.score_bias import ScoreBias
from tilegen.codegen.thread_conv import REDUCTIONS, SCRATCH
from tilegen.ops.attention import AttentionAttributes, over_caches, splits, taken
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.block_mask import fitting

WARPS, ROWS = 8, 16  # of a warp, or twice as many where all warps have them
COLUMNS = 32  # that heads are padded to
# of a stage, of heads of up to so many columns: two stages and the queries fit into 99 KiB
KEYS = ((96, 64), (128, 48), (224, 32), (256, 16))
MORE_KEYS = 64  # of heads of up to WIDE columns, where there is room
NARROW = 64  # columns of heads of which registers hold the sums of twice as many rows in any case
WIDE = 128  # columns of a head beyond which shared memory and registers hold fewer rows and keys


@dataclass(frozen=True)
class ThreadAttention:
    """What its text may ask. Lengths in elements of two bytes, places in bytes."""

    bound: OpInstance
    room: int = SCRATCH  # bytes of shared memory

    @property
    def attributes(self) -> AttentionAttributes:
        return AttentionAttributes.of(self.bound)

    @property
    def problem(self) -> str:
        a = self.attributes
        if splits(self.bound) > 1 or a.forwarded:
            return "no template for shares of the keys, or for new keys beside a cache"
        if a.head_dim % 8 or a.head_dim > 256:
            return f"heads have {a.head_dim} columns, expected a multiple of 8 up to 256"
        return mma_problem(self.bound)

    @property
    def heads(self) -> int:
        """Of a tile."""
        return self.bound.tile[2]

    @property
    def queries(self) -> int:
        """Of a tile, of each head."""
        return min(self.bound.tile[0], int(self.attributes.q_len))

    @property
    def padded(self) -> int:
        """Columns of a head in shared memory."""
        return ceil_div(int(self.attributes.head_dim), COLUMNS) * COLUMNS

    @property
    def m(self) -> int:
        """Sixteens of rows of a warp: two, which read each key once, where a tile has so many rows and they
        fit."""
        rows = 2 * WARPS * ROWS
        many = self.heads * self.queries >= rows and holds_twice(self.attributes)
        return 2 if many and self._bytes(MORE_KEYS, rows) <= self.room else 1

    @property
    def rows(self) -> int:
        """That a CTA has at a time."""
        fitting = self.m * WARPS * ROWS if self.padded <= WIDE else WARPS * ROWS // 2
        return min(fitting, ceil_div(self.heads * self.queries, ROWS) * ROWS)

    @property
    def keys(self) -> int:
        """That are in a stage of shared memory."""
        more = self.padded <= WIDE and self._bytes(MORE_KEYS, self.rows) <= self.room
        return MORE_KEYS if more else next(keys for columns, keys in KEYS if self.padded <= columns)

    @property
    def held(self) -> bool:
        """Whether registers hold the queries."""
        return self.m == 1 and self.padded <= WIDE

    @property
    def pitch(self) -> int:
        """Bytes from row to row: an odd number of 16-byte units."""
        return 2 * self.padded + 16

    @property
    def q_at(self) -> int:
        return REDUCTIONS

    @property
    def k_at(self) -> int:
        return self.q_at + self.rows * self.pitch

    @property
    def v_at(self) -> int:
        return self.k_at + self.keys * self.pitch

    @property
    def stage_bytes(self) -> int:
        """Of keys and their values."""
        return 2 * self.keys * self.pitch

    @property
    def bytes(self) -> int:
        return self._bytes(self.keys, self.rows)

    def _bytes(self, keys: int, rows: int) -> int:
        return REDUCTIONS + (rows + 4 * keys) * self.pitch

    @property
    def cached(self) -> bool:
        return over_caches(self.bound)

    @property
    def kv_head(self) -> str:
        """The head of keys that the tile's heads share, as C."""
        group = self.attributes.heads // self.attributes.kv_heads // self.heads
        return f"h / {group}" if group > 1 else "h"

    @property
    def window(self) -> int:
        """How many keys a query sees at most; 0 for all."""
        return self.attributes.window or 0

    @property
    def caps(self) -> bool:
        """Whether scores are capped."""
        return self.attributes.cap is not None

    @property
    def folded(self) -> bool:
        """Whether scores are scaled as their powers are taken, not before."""
        return self.log2 > 0 and not self.caps and not self.attributes.alibi

    @property
    def beside(self) -> bool:
        """Whether there is anything to say of its keys besides."""
        a = self.attributes
        return a.lengths or a.alibi or a.block_mask is not None or a.bias is not None

    @property
    def bias(self) -> ScoreBias | None:
        """What a tensor adds to its scores."""
        return ScoreBias(self.bound) if self.attributes.bias else None

    @property
    def bias_factor(self) -> float:
        """What brings it to what it is added to: products, or capped scores in powers of two."""
        return math.log2(math.e) if self.caps else 1.0 / self.attributes.outer

    @property
    def hides(self) -> bool:
        """Whether a block mask hides keys inside of blocks that its tiles take."""
        blocks = taken(self.bound)
        return blocks is not None and blocks.masks

    def seen(self, keys: str) -> str:
        """So many keys, as C, or those that all queries see."""
        prefix = self.attributes.prefix
        return keys if prefix is None else f"tg_max({keys}, {prefix})"

    @property
    def log2(self) -> float:
        """Of what the softmax is of, to powers of two."""
        return self.attributes.outer * math.log2(math.e)

    @property
    def first_query(self) -> str:
        """Of the tile, in its sequence, as C."""
        return f"{self.bound.tile[0]} * i"


def holds_twice(a: AttentionAttributes) -> bool:
    """Whether a lane's registers hold the sums of twice as many rows: of narrow heads, or of wide ones whose
    scores are products alone, of all keys."""
    return a.head_dim <= NARROW or (a.head_dim <= WIDE and not a.causal and not a.masks)


def attention_tiles(b: OpInstance, sms: int) -> list[tuple[int, ...]]:
    """Tiles of such an attention: heads that share keys fill the rows where queries are few; of many that
    all see as many keys tiles have twice the rows, where all SMs have one."""
    a = AttentionAttributes.of(b)
    q, group = int(a.q_len), a.heads // a.kv_heads
    together = next(n for n in range(group, 0, -1) if group % n == 0 and (n == 1 or n * q <= WARPS * ROWS))
    rows = WARPS * ROWS
    tiles = int(b.out[0]) // q * (a.heads // together) * ceil_div(q, 2 * rows)
    many = not a.causal and holds_twice(a) and tiles >= sms and q % (2 * rows) == 0
    return [(min(q, 2 * rows if many else rows), fitting(a, 64), together)]
