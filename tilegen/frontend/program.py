"""What a user wrote, as data: tensors, and the calls of ops on them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilegen.errors import SpecError
from tilegen.frontend.attributes import Attributes

# bytes of a number
DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "float8_e4m3fn": 1, "int8": 1}
# An element of a plan is two of these numbers: tensor cores, bulk copies and the ring take both as one of two
# bytes.
PAIRED = frozenset({"float8_e4m3fn"})
ONE_BYTE = frozenset(dtype for dtype, size in DTYPES.items() if size == 1)  # which linears alone read
INT8 = "int8"  # weights of a linear beside rows of another type
UNIT = 16  # bytes: of what bulk copies take of a row
Size = Any  # int, or a SymPy expression of open sizes


def numbers_of(dtype: str) -> int:
    """In an element of a plan."""
    return 2 if dtype in PAIRED else 1


def element_bytes(dtype: str) -> int:
    """Of an element of a plan."""
    return numbers_of(dtype) * DTYPES[dtype]


def listed(items: Sequence[str], most: int = 8) -> str:
    """The items with commas between; of many the first, and how many more there are."""
    more = [f"… {len(items) - most} more"] if len(items) > most else []
    return ", ".join([*items[:most], *more])


@dataclass(frozen=True)
class Tensor:
    """A named array. `form` says how a plan sees its shape (see `plan_shape`); it is settled by the first op
    that reads it."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    role: str
    where: str = field(default="", compare=False)
    form: str = ""

    @property
    def constant(self) -> bool:
        """Whether no op writes it."""
        return self.role in ("input", "weight")

    @property
    def plan_shape(self) -> tuple[Size, ...]:
        """rows: (product of leading, last); heads: (B·S, H·D); spatial, filter: as they are; filter rows: (N,
        R·S·C); vector: (n,); list: (product of all,). Where numbers come in pairs, the last is half of it."""
        *lines, last = self.seen_shape
        return (*lines, last // 2) if self.dtype in PAIRED else (*lines, last)

    @property
    def seen_shape(self) -> tuple[Size, ...]:
        """The same, in numbers."""
        if self.form == "heads":
            return (math.prod(self.shape[:2]), math.prod(self.shape[2:]))
        if self.form == "list":
            return (math.prod(self.shape),)
        if self.form in ("spatial", "filter", "vector"):
            return self.shape
        if self.form == "filter rows":
            return (self.shape[0], math.prod(self.shape[1:]))
        return (math.prod(self.shape[:-1]), self.shape[-1])

    @property
    def as_rows(self) -> Tensor:
        """An image as the rows of its pixels, filters as a row each; another tensor as it is."""
        form = {"spatial": "rows", "filter": "filter rows"}.get(self.form, self.form)
        return replace(self, form=form)


@dataclass(frozen=True)
class Operand:
    """A tensor as an op sees it: whole, a view of its columns (last dimension), or flattened to (B,
    H·W·C)."""

    tensor: str
    columns: tuple[Size, Size] | None = None
    flatten: bool = False

    def to_json(self) -> Any:
        if self.columns is not None:
            return {"tensor": self.tensor, "columns": list(self.columns)}
        return {"tensor": self.tensor, "flatten": True} if self.flatten else self.tensor

    @staticmethod
    def from_json(data: Any) -> Operand:
        if isinstance(data, str):
            return Operand(data)
        columns = data.get("columns")
        return Operand(data["tensor"], tuple(columns) if columns else None, bool(data.get("flatten", False)))


@dataclass(frozen=True)
class Call:
    """One op as the user wrote it."""

    kind: str
    name: str
    operands: tuple[Operand, ...]
    result: str
    attributes: Attributes = Attributes()
    where: str = field(default="", compare=False)
    named: bool = True  # False: the name was made up


@dataclass(frozen=True)
class Program:
    """Tensors, ops in the order written, and the tensors returned. Frozen: the content is the first half of
    the cache key."""

    name: str
    sizes: tuple[tuple[str, Any], ...]
    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    doc: str = ""

    def __repr__(self) -> str:
        sizes = listed([f"{name}={value}" for name, value in self.sizes])
        arguments = listed([f"{t.name} {t.shape}" for t in self.arguments])
        ops = listed([f"{c.name}: {c.kind}" if c.kind != c.name else c.name for c in self.calls])
        return (
            f"<Program {self.name}({sizes}): takes {arguments}; ops {ops}; gives"
            f" {listed(self.outputs) or 'nothing'}>"
        )

    def tensor(self, name: str) -> Tensor:
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The tensors a kernel is called with, in declaration order."""
        return tuple(t for t in self.tensors if t.role in ("input", "weight", "state"))

    @functools.cached_property
    def empty(self) -> bool:
        """Whether its tensors have no rows, so that there is nothing to compute."""
        return any(n == 0 for t in self.tensors for n in t.shape)

    @property
    def symbolic(self) -> bool:
        return any(not isinstance(n, int) for t in self.tensors for n in t.shape)


def check_rows(program: Program) -> None:
    """Where any tensor has no rows, no result has any, and nothing is appended."""
    if not program.empty:
        return
    if program.symbolic:
        raise SpecError(f"{program.name}: a size is 0 beside sizes that are open or move")
    lacking = next(t for t in program.tensors if 0 in t.shape)
    written = {c.operands[1].tensor: c.name for c in program.calls if c.kind == "append"}
    results = {**dict(zip(program.outputs, program.outputs, strict=True)), **written}
    for name, what in results.items():
        if 0 not in program.tensor(name).shape:
            raise SpecError(
                f"{lacking.name!r} {lacking.shape} has no rows, {what!r} has: {program.tensor(name).shape};"
                " where any tensor of a program has none, no result may have any",
                program.tensor(name).where,
            )


def check_acyclic(program: Program) -> None:
    """Every op reads only tensors that are given or made by an op before it."""
    made = {t.name for t in program.arguments}
    for c in program.calls:
        for operand in c.operands:
            if operand.tensor not in made:
                raise SpecError(
                    f"cycle: {c.name!r} reads {operand.tensor!r}, which no op before it makes", c.where
                )
        made.add(c.result)
