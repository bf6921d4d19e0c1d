"""embedding: rows of a table, picked by numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, declared, tensors
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, Interval, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.softmax import row_tiles


@dataclass(frozen=True)
class EmbeddingAttributes(Attributes):
    """None: the operands say all."""


def embedding(ids: Value, table: Value, *, name: str | None = None) -> Value:
    """y[…, :] = table[ids[…], :].

    ids (…), an int32 input of one to three dimensions, or the columns of a `topk` or an `argmax`, (…, k) of
    two or three; table (V, D); y (…, D) of the table's dtype. The row of an id below 0 or of V and more is
    NaN. A step of greedy decoding:

        next_token = tg.embedding(tg.argmax(logits), table)

    Raises:
        SpecError: ids are not int32, or not of one to three dimensions, the table has not two, or ids are
            columns of more numbers than the table has rows.

    Source: torch.nn.functional.embedding.
    """
    where = caller()
    declared("embedding", where, ids=ids)
    tensors("embedding", where, table=table)
    need(
        ids.dtype == "int32" and ids.columns is None and len(ids.shape) < 4,
        f"embedding: ids are tg.input(name, shape, 'int32') or those of a topk, of one to three sizes, given"
        f" {ids!r} {ids.dtype}",
        where,
    )
    need(
        len(table.shape) == 2,
        f"embedding: the table is (V, D), given {table!r} of {table.dtype}",
        where,
    )
    if not ids.given:
        numbers = columns_of(ids)
        need(
            numbers <= table.shape[0],
            f"embedding: {ids!r} are columns of {numbers} numbers, more than the {table.shape[0]} rows of"
            f" {table!r}",
            where,
        )
    operands = [ids.operand("list" if ids.given else "rows", where), table.operand("rows", where)]
    shape = (*ids.shape, table.shape[1])
    return call("embedding", name, operands, shape, table.dtype, "rows", EmbeddingAttributes(), where)


def columns_of(ids: Value) -> Size:
    """Of how many numbers the ids of a topk are columns."""
    made = next(c for c in ids.builder.calls if c.result == ids.tensor)
    (x,) = made.operands
    width = ids.builder.tensors[x.tensor].shape[-1]
    return width if x.columns is None else x.columns[1] - x.columns[0]


@register
class Embedding(OpDef):
    """Tile tm rows x tn columns. Which rows of the table it reads, only the ids say: it may be any. Ids that
    another op makes are k of each of its rows: a tile reads those rows whole that any of its ids is of."""

    name, coords, stem, fusable = "embedding", ("i", "j"), "rows", True
    operands, attributes, width, picked = ("ids", "table"), EmbeddingAttributes, 1, ("table",)

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        rows, columns = self.write(b)
        table = Access(1, (whole(b.shape(1)[0]), columns), exact=False)
        if len(b.shape(0)) == 1:
            return (Access(0, (rows,)), table)
        k = b.shape(0)[1]
        own = rows if k == 1 else Interval(ceil_div(rows.lo - k + 1, k), sp.sympify(ceil_div(rows.hi, k)))
        return (Access(0, (own, whole(k)), exact=k == 1), table)

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=True))

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return [(*t, min(int(b.out[1]), 512)) for t in row_tiles(b.out[0], machine)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        ids, table = operands[0].reshape(-1), operands[1]
        there = (ids >= 0) & (ids < table.shape[0])
        return [table[ids.long() * there].masked_fill(~there[:, None], math.nan)]
