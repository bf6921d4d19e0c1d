"""How generated text finds the blocks of keys that a tile of attention takes by a block mask, and which of
their keys the mask hides."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.analysis.regions import to_c
from tilegen.ops.attention import AttentionAttributes, taken
from tilegen.ops.base import OpInstance
from tilegen.ops.block_mask import WORD, KeyBlocks


@dataclass(frozen=True)
class TakenKeys:
    bound: OpInstance
    blocks: KeyBlocks

    @property
    def most(self) -> int:
        """Blocks of the tile that takes the most."""
        return self.blocks.most

    @property
    def first(self) -> str:
        """Where the tile's own begin in the tables."""
        return to_c(self.bound.coords[2] * self.most)

    @property
    def steps(self) -> str:
        return to_c(self.bound.steps)

    @property
    def keys(self) -> str:
        """The table of blocks."""
        return self.blocks.keys(self.bound.op.name).name

    @property
    def partial(self) -> str:
        """The table of whether the mask hides any keys inside of them."""
        return self.blocks.parts(self.bound.op.name).name

    @property
    def masks(self) -> bool:
        return self.blocks.masks

    def hides(self, query: str, key: str) -> str:
        """Whether the mask hides a key from a query, both by their names."""
        a, table = AttentionAttributes.of(self.bound), self.blocks.bits(self.bound.op.name).name
        bq, bk = a.block_size or (1, 1)
        words = len(self.blocks.hidden[0])
        row = f"{query} / {bq} * {words}" if words > 1 else f"{query} / {bq}"
        word = f"{table}[{row} + {key} / {bk * WORD}]" if words > 1 else f"{table}[{row}]"
        return f"{word} >> {key} / {bk} % {WORD} & 1" if words > 1 else f"{word} >> {key} / {bk} & 1"


def taken_keys(b: OpInstance) -> TakenKeys | None:
    """Of an attention with a block mask."""
    blocks = taken(b) if isinstance(b.attributes, AttentionAttributes) else None
    return None if blocks is None else TakenKeys(b, blocks)
