"""How threads of a GPU copy rows and put zeros behind them (templates/cuda/threads/rows.cu.j2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilegen.ops.base import OpInstance
from tilegen.ops.rows import VECTOR


@dataclass(frozen=True)
class Padding:
    """Vectors of the result whose numbers lie within two whole vectors of x, wherever its row begins; then
    those at the ends of rows, of which some numbers are the neighbouring rows' or zeros."""

    LOADS: ClassVar[int] = 4  # vectors of the result that a thread has on their way: two loads each

    bound: OpInstance

    @property
    def whole(self) -> int:
        """How many of a row's vectors are such, from the second on. Vector j is made of numbers 8·j - 7 to
        8·j + 14 of the row at most, wherever that begins."""
        return max(0, (int(self.bound.shape(0)[1]) - 2 * VECTOR + 1) // VECTOR)

    @property
    def ends(self) -> int:
        return int(self.bound.out[1]) // VECTOR - self.whole

    @property
    def stays(self) -> bool:
        """Whether nobody writes x while the kernel runs."""
        return self.bound.tensors[self.bound.op.operands[0].tensor].constant
