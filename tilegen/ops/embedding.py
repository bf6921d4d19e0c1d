"""embedding: rows of a table, picked by numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.spec import Value, call, caller, declared, tensors
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.softmax import row_tiles


@dataclass(frozen=True)
class EmbeddingAttributes(Attributes):
    """None: the operands say all."""


def embedding(ids: Value, table: Value, *, name: str | None = None) -> Value:
    """y[…, :] = table[ids[…], :].

    ids (…), an int32 input of one to three dimensions; table (V, D); y (…, D) of the table's dtype. The row
    of an id below 0 or of V and more is NaN.

    Raises:
        SpecError: ids is no int32 input, or the table has not two dimensions.

    Source: torch.nn.functional.embedding.
    """
    where = caller()
    declared("embedding", where, ids=ids)
    tensors("embedding", where, table=table)
    need(
        ids.given and ids.dtype == "int32" and ids.columns is None and len(ids.shape) < 4,
        f"embedding: ids are tg.input(name, shape, 'int32'), one to three sizes, given {ids!r} {ids.dtype}",
        where,
    )
    need(
        len(table.shape) == 2,
        f"embedding: the table is (V, D), given {table!r} of {table.dtype}",
        where,
    )
    operands = [ids.operand("list", where), table.operand("rows", where)]
    shape = (*ids.shape, table.shape[1])
    return call("embedding", name, operands, shape, table.dtype, "rows", EmbeddingAttributes(), where)


@register
class Embedding(OpDef):
    """Tile tm rows x tn columns. Which rows of the table it reads, only the ids say: it may be any."""

    name, coords, stem, fusable = "embedding", ("i", "j"), "rows", True
    operands, attributes, width = ("ids", "table"), EmbeddingAttributes, 1

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        rows, columns = self.write(b)
        return (Access(0, (rows,)), Access(1, (whole(b.shape(1)[0]), columns), exact=False))

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=True))

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return [(*t, min(int(b.out[1]), 512)) for t in row_tiles(b.out[0], machine)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        ids, table = operands[:2]
        there = (ids >= 0) & (ids < table.shape[0])
        return [table[ids.long() * there].masked_fill(~there[:, None], math.nan)]
