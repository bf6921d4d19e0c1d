"""What a tensor adds to the scores of an attention: which of its rows, and how they lie."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.codegen.cuda_op import TYPES
from tilegen.errors import AnalysisError
from tilegen.frontend.program import Tensor
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.masks import BiasSizes


@dataclass(frozen=True)
class ScoreBias:
    """Of an attention that has one. Lengths in elements."""

    bound: OpInstance

    @property
    def sizes(self) -> BiasSizes:
        """Of batches, heads and queries; 1 where all have the same."""
        sizes = AttentionAttributes.of(self.bound).bias
        if sizes is None:
            raise AnalysisError(f"op {self.bound.op.name!r} adds nothing to its scores")
        return sizes

    @property
    def of_head(self) -> int:
        """Rows from head to head."""
        _, heads, queries = self.sizes
        return int(queries) if heads != 1 else 0

    @property
    def of_query(self) -> int:
        return int(self.sizes[2] != 1)

    def row(self, head: str, query: str) -> str:
        """That of a head and a query of batch b, all as C."""
        batches, heads, queries = self.sizes
        again = batches != AttentionAttributes.of(self.bound).batch
        terms = [(f"b % {batches}" if again else "b", heads * queries)] if batches != 1 else []
        terms += [(head, self.of_head)] if self.of_head else []
        terms += [(query, 1)] if self.of_query and query != "0" else []
        scaled = (f"({term}) * {by}" if " " in term else f"{term} * {by}" for term, by in terms if by != 1)
        return " + ".join([*scaled, *(term for term, by in terms if by == 1)]) or "0"

    # --- on GPUs --------------------------------------------------------------------------------------------

    @property
    def one_row(self) -> bool:
        """Whether all queries of a tile have one row."""
        return not self.of_query and (not self.of_head or self.bound.tile[2] == 1)

    @property
    def pitch(self) -> int:
        return int(self.bound.pitch(self._index))

    @property
    def pairs(self) -> bool:
        """Whether all rows are of whole pairs, from an even place on."""
        keys = int(AttentionAttributes.of(self.bound).k_len)
        return not (keys % 2 or self.pitch % 2 or int(self.bound.first(self._index)) % 2)

    @property
    def constant(self) -> bool:
        """Whether no op writes it."""
        return self._tensor.constant

    @property
    def type(self) -> str:
        return TYPES[self._tensor.dtype]

    @property
    def pointer(self) -> str:
        first = int(self.bound.first(self._index))
        return f"T.{self._tensor.name}" + (f" + {first}" if first else "")

    @property
    def _index(self) -> int:
        return self.bound.index("bias")

    @property
    def _tensor(self) -> Tensor:
        return self.bound.tensors[self.bound.operand("bias").tensor]
