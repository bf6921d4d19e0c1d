"""Rows that threads of a CTA hold, some threads a row: those of softmax, norms and reductions, and of ops of
users' own that ask for them (macro rows of templates/cuda/threads/tile.j2). Thread n of a row has its
eights n, n + threads, …
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tilegen.codegen.epilogue import EpilogueOperand
from tilegen.errors import PlanError
from tilegen.frontend.program import DTYPES, Size
from tilegen.ops.base import OpInstance
from tilegen.ops.norm import NormAttributes, vectors_of
from tilegen.ops.reduce import ReduceAttributes
from tilegen.ops.rows import HELD, THREADS, VECTOR, rows_of_tile, threads_of_row
from tilegen.ops.softmax import SoftmaxAttributes

NEXT = 128  # bytes of its next row that a thread holds, besides
EARLY = 128  # bytes of each of a norm's vectors besides


@dataclass(frozen=True)
class Operand:
    """An operand as CUDA sees it: pointer to its first element, which is column `first` of its tensor's rows
    of `pitch` elements."""

    pointer: str
    first: int
    pitch: int
    shape: tuple[Size, ...]
    type: str


@dataclass(frozen=True)
class HeldRows:
    """rows: those whose vectors are the threads' eights, the result's, or where that is some numbers of each,
    those that they are made of. columns: that they have. anew: whether rows that a CTA cannot hold may be
    read anew. has_ends: whether they begin or end within vectors."""

    bound: OpInstance
    rows: Operand
    columns: int
    anew: bool
    has_ends: bool

    @property
    def threads(self) -> int:
        """That share a row."""
        return threads_of_row(self.columns, rows_of_tile(self.bound), self.has_ends)

    @property
    def vectors(self) -> int:
        """Of a thread. PlanError where a CTA cannot hold a row, and the op's template holds rows."""
        if self.too_wide and not self.anew:
            raise PlanError(f"{self.bound.op.name!r}: {self.too_wide}", self.bound.op.where)
        eights = self.columns // VECTOR if self.has_ends else self.columns / VECTOR
        return max(1, math.ceil(eights / self.threads))

    @property
    def rereads(self) -> bool:
        """Whether rows are read anew for each pass over them, since a CTA cannot hold one."""
        return self.anew and bool(self.too_wide)

    @property
    def too_wide(self) -> str:
        """Why a CTA cannot hold rows of the result, or an empty string."""
        most = THREADS * VECTOR * HELD
        return (
            f"rows of {self.columns} columns; on a GPU a CTA holds rows of at most {most}"
            if self.columns > most
            else ""
        )

    @property
    def ahead(self) -> bool:
        """A norm, a softmax or a reduction: whether a thread's part of its next row is on its way while it
        sums over the one before. Not where a tile has no next row, or registers would not hold it."""
        match self.bound.attributes:
            case NormAttributes() | ReduceAttributes() | SoftmaxAttributes(causal=False):
                held = self.vectors * VECTOR * DTYPES[self.bound.dtype(0)]
                turns = math.ceil(rows_of_tile(self.bound) * self.threads / THREADS)
                return not self.rereads and turns > 1 and held <= NEXT
        return False

    # --- which columns are there ----------------------------------------------------------------------------

    @property
    def even(self) -> bool:
        """Whether all threads of a row hold as many of its columns."""
        return not self.has_ends and self.columns % (self.threads * VECTOR) == 0

    @property
    def sure(self) -> int:
        """Of a thread's eights of a row, how many are there, wherever the row begins."""
        eights = (self.columns - (VECTOR - 1 if self.has_ends else 0)) // VECTOR
        return max(0, eights) // self.threads

    @property
    def inside(self) -> str:
        """Whether a thread's eight columns from `column` on are some of its row, which has no COLUMNS where
        it is not there."""
        if self.has_ends:
            return "column < ends.body"
        return "COLUMNS" if self.even else "column < COLUMNS"

    # --- how rows lie beside vectors ------------------------------------------------------------------------

    @property
    def head(self) -> str:
        """How many columns of a row stand before its first whole vector, as C."""
        first, each = -self.rows.first % VECTOR, -self.rows.pitch % VECTOR
        rows = f"row * {each}" if each > 1 else "row"
        if not each:
            return str(first)
        return f"({first} + {rows}) % {VECTOR}" if first or each > 1 else f"{rows} % {VECTOR}"

    @property
    def lies_as_before(self) -> bool:
        """Whether all rows that a thread has of a tile lie alike beside vectors."""
        return THREADS // self.threads * self.rows.pitch % VECTOR == 0

    def lies_alike(self, operand: Operand | EpilogueOperand) -> bool:
        """Whether columns that are one vector of the rows are one of this, too."""
        rows = self.rows
        if isinstance(operand, EpilogueOperand) and operand.how == "images":  # other rows than the result's
            return operand.first % VECTOR == operand.pitch % VECTOR == rows.pitch % VECTOR == 0
        return (operand.first - rows.first) % VECTOR == 0 and (operand.pitch - rows.pitch) % VECTOR == 0

    # --- what no op writes ----------------------------------------------------------------------------------

    @property
    def given(self) -> bool:
        """Whether no op writes its x."""
        return self.bound.tensors[self.bound.op.operands[0].tensor].constant

    @cached_property
    def constant_vectors(self) -> bool:
        """A norm: whether no op writes its vectors."""
        return all(self.bound.tensors[o.tensor].constant for o in vectors_of(self.bound))

    @property
    def early(self) -> bool:
        """A norm: whether a thread holds its part of the vectors, which no op writes, before a tile
        begins."""
        if not isinstance(self.bound.attributes, NormAttributes) or self.has_ends or self.rereads:
            return False
        vectors = [self.bound.tensors[o.tensor] for o in vectors_of(self.bound)]
        held = self.vectors * VECTOR * max(DTYPES[t.dtype] for t in vectors)
        return held <= EARLY and self.constant_vectors

    @property
    def late(self) -> bool:
        """A norm: whether a thread holds its part of the vectors, which moves with the rows' begins."""
        return isinstance(self.bound.attributes, NormAttributes) and self.has_ends and not self.rereads
