"""An op's epilogue as CUDA text: y = f(acc0, acc1, e0, …) in float32, on pairs of neighbouring columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tilegen.codegen.expression import to_cpp
from tilegen.ops.base import OpInstance


@dataclass(frozen=True)
class EpilogueOperand:
    """e_n, and where in its tensor the elements of (row, column) and (row, column + 1) lie: from column
    `first` on of rows of `pitch` elements. how: "columns", where it is the same for all rows, "rows", for all
    columns, "images", for all of so many `pixels` of an image, or "elements"; constant: no launch writes
    it."""

    name: str
    tensor: str
    dtype: str
    first: int
    pitch: int
    how: str
    constant: bool
    pixels: int = 1

    @property
    def vector(self) -> bool:
        return self.how == "columns"

    @property
    def of_row(self) -> bool:
        return self.how == "rows"

    @property
    def at(self) -> str:
        return self.with_pitch(str(self.pitch))

    def with_pitch(self, pitch: str) -> str:
        """Where its elements lie, the length of rows as C."""
        column = f"{self.first} + column" if self.first else "column"
        return column if self.vector else f"(long long){self._row} * {pitch} + {column}"

    @property
    def _row(self) -> str:
        return f"(row / {self.pixels})" if self.how == "images" else "row"

    @property
    def pointer(self) -> str:
        return f"T.{self.tensor} + {self.at}"

    @property
    def row(self) -> str:
        """Where the elements of the row begin."""
        first = f"T.{self.tensor}" + (f" + {self.first}" if self.first else "")
        row = self._row if self.pitch == 1 else f"(long long){self._row} * {self.pitch}"
        return first if self.vector else f"{first} + {row}"

    @property
    def stays(self) -> bool:
        """Whether L1 may keep it for the rows and tiles to come."""
        return self.vector and self.constant


@dataclass(frozen=True)
class EpilogueText:
    """What a template needs to write an op's epilogue; `row` and `column` are the result's, in scope
    there."""

    bound: OpInstance

    @property
    def by_ones(self) -> bool:
        """Whether any operand is read number by number."""
        return any(map(self.one_by_one, self.operands))

    def one_by_one(self, e: EpilogueOperand) -> bool:
        """Whether its pairs of columns are not aligned, or the last is half a pair."""
        sizes = int(self.bound.out[-1]), e.first, 0 if e.vector else e.pitch
        return not e.of_row and any(n % 2 for n in sizes)

    def halves_last(self, e: EpilogueOperand) -> bool:
        """Whether that is all, of what L1 may keep: the last is half a pair."""
        return self.one_by_one(e) and e.stays and e.first % 2 == 0

    @property
    def expression(self) -> str:
        return to_cpp(self.bound.op.epilogue.expression, "tg_") if self.bound.op.epilogue else "acc0"

    @property
    def accumulators(self) -> tuple[str, ...]:
        return self.bound.kind.accumulators(self.bound.attributes)

    @cached_property
    def operands(self) -> list[EpilogueOperand]:
        found = []
        for n, (index, how) in enumerate(self._read):
            tensor = self.bound.tensors[self.bound.op.operands[index].tensor]
            where = self._first_and_pitch(index)
            pixels = math.prod(map(int, self.bound.out[1:3])) if how == "images" else 1
            read = EpilogueOperand(f"e{n}", tensor.name, tensor.dtype, *where, how, tensor.constant, pixels)
            found.append(read)
        return found

    @property
    def parameters(self) -> str:
        return ", ".join(f"float {name}" for name in self._names)

    @property
    def names(self) -> str:
        """The floats of one number."""
        return ", ".join(self._names)

    def arguments(self, side: str) -> str:
        """The floats of one column of the pair, `x` or `y`."""
        return ", ".join(f"{name}.{side}" for name in self._names)

    def elements(self, index: str) -> str:
        """The floats of one of eight columns."""
        return ", ".join(f"{name}.v[{index}]" for name in self._names)

    @property
    def _names(self) -> list[str]:
        return [*self.accumulators, *(e.name for e in self.operands)]

    @property
    def _read(self) -> tuple[tuple[int, str], ...]:
        return self.bound.op.epilogue.operands if self.bound.op.epilogue else ()

    def _first_and_pitch(self, index: int) -> tuple[int, int]:
        operand = self.bound.op.operands[index]
        return (operand.columns or (0, 0))[0], int(self.bound.tensors[operand.tensor].plan_shape[-1])
