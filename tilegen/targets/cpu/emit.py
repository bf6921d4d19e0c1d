"""C++ for the CPU target: one tile function per op, around the shared schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegen.analysis.regions import to_c
from tilegen.codegen.environment import macro_text, render
from tilegen.codegen.expression import to_cpp
from tilegen.codegen.op_text import MacroOp
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.score_bias import ScoreBias
from tilegen.codegen.strided import place
from tilegen.codegen.summary import summary
from tilegen.frontend.dims import most
from tilegen.frontend.program import PAIRED, Operand, Tensor, element_bytes
from tilegen.ops import attention, gemm
from tilegen.ops.append import AppendAttributes
from tilegen.schedule.plan import Plan

C_TYPES = {
    "bfloat16": "tg::bf16",
    "float16": "tg::f16",
    "float32": "float",
    "int32": "int32_t",
    "float8_e4m3fn": "tg::e4m3x2",
    "int8": "int8_t",
}
# in the order in which they need each other
LIBRARIES = ("types", "gemm", "rows", "conv2d", "attention", "pool")


@dataclass(frozen=True)
class View:
    """An operand as C sees it: pointer to its first element, row stride in elements."""

    name: str
    pointer: str
    ld: int
    shape: tuple[int, ...]
    columns: int


@dataclass(frozen=True)
class CpuOp(MacroOp):
    """What a tile template may ask about an op."""

    @property
    def cluster_split(self) -> str:
        return self.bound.op.cluster_split

    @property
    def splits_k(self) -> bool:
        return self.bound.op.cluster_shape.k > 1

    @property
    def steps(self) -> str:
        return to_c(self.bound.steps)

    @property
    def seen(self) -> str:
        """attention: keys that a tile may see."""
        return to_c(attention.seen(self.bound))

    def bias_row(self, head: str, query: str) -> str:
        """attention: the row of its bias for a head and a query of batch b, all as C."""
        return ScoreBias(self.bound).row(head, query)

    @cached_property
    def k_range(self) -> tuple[int, int]:
        lo, hi = gemm.k_range(self.bound)
        return int(lo), int(hi)

    @property
    def k_begin(self) -> str:
        """linear: first column of step k."""
        first = self.k_range[0]
        return f"{first} + {self.tile[2]} * k" if first else f"{self.tile[2]} * k"

    @property
    def place(self) -> str:
        """strided_copy: in x, of element n of the result."""
        return place(self.bound, "n")

    @property
    def left(self) -> str:
        """linear: the rows that a step multiplies, and their stride: the tile's activations, or what a folded
        norm has made of them."""
        return f"rows, {self.tile[2]}" if self.normed else self.factor("x", "lo0")

    def factor(self, name: str, row: str) -> str:
        """linear: rows of an operand from column k0 on, and their stride, in numbers."""
        view = self.operand(name)
        rows = f"{view.pointer} + int64_t({row}) * {view.ld} + k0"
        return f"tg::numbers_of({rows}), {2 * view.ld}" if self.paired else f"{rows}, {view.ld}"

    @property
    def paired(self) -> bool:
        """linear: whether an element of its operands is two numbers."""
        return self.bound.dtype(0) in PAIRED

    @cached_property
    def write(self) -> list[tuple[str, str]]:
        return [(to_c(i.lo), to_c(i.hi)) for i in self.bound.write]

    @cached_property
    def operands(self) -> list[View]:
        return [self._view(o) for o in self.bound.op.operands]

    def operand(self, name: str) -> View:
        return self.operands[self.bound.index(name)]

    @property
    def at(self) -> str:
        """append, rope: the first row's position."""
        if self.has("position"):
            return f"{self.operand('position').pointer}[0]"
        return str(self.attributes.at) if isinstance(self.attributes, AppendAttributes) else "0"

    @cached_property
    def result(self) -> View:
        return self._view(Operand(self.bound.op.result))

    def _view(self, operand: Operand) -> View:
        shape = self.bound.tensors[operand.tensor].plan_shape
        if operand.flatten:
            shape = (shape[0], math.prod(shape[1:]))
        lo, hi = operand.columns or (0, shape[-1])
        pointer = f"T.{operand.tensor}" + (f" + {lo}" if lo else "")
        return View(operand.tensor, f"({pointer})" if lo else pointer, shape[-1], shape, hi - lo)

    # --- epilogue -------------------------------------------------------------------------------------------

    @property
    def expression(self) -> str:
        return to_cpp(self.bound.op.epilogue.expression, "tg::") if self.bound.op.epilogue else "acc0"

    def _epilogue_operands(self, how: str) -> list[dict[str, Any]]:
        epilogue = self.bound.op.epilogue
        found = enumerate(epilogue.operands if epilogue else ())
        return [
            {"name": f"e{n}", "pointer": self.operands[i].pointer, "ld": self.operands[i].ld}
            for n, (i, h) in found
            if h == how
        ]

    @cached_property
    def vectors(self) -> list[dict[str, Any]]:
        return self._epilogue_operands("columns")

    @cached_property
    def elements(self) -> list[dict[str, Any]]:
        return self._epilogue_operands("elements")

    @cached_property
    def of_rows(self) -> list[dict[str, Any]]:
        return self._epilogue_operands("rows")

    @cached_property
    def of_images(self) -> list[dict[str, Any]]:
        return self._epilogue_operands("images")

    @property
    def accumulators(self) -> tuple[str, ...]:
        return self.bound.kind.accumulators(self.bound.attributes)

    @cached_property
    def _names(self) -> list[str]:
        operands = len(self.bound.op.epilogue.operands) if self.bound.op.epilogue else 0
        return [*self.accumulators, *(f"e{n}" for n in range(operands))]

    @property
    def parameters(self) -> str:
        return ", ".join(f"float {name}" for name in self._names)

    def arguments(self, width: int) -> str:
        """The floats of row r, column x."""
        of_rows = {e["name"] for e in self.of_rows}
        return ", ".join(
            f"{name}[int64_t(r) * {width} + x]"
            if name.startswith("acc")
            else name
            if name in of_rows
            else f"{name}[x]"
            for name in self._names
        )

    # --- rows and columns of the result ---------------------------------------------------------------------

    @property
    def _last(self) -> int:
        return len(self.bound.out) - 1

    @property
    def column(self) -> str:
        return f"lo{self._last}"

    @property
    def count(self) -> str:
        return f"n{self._last}"

    @property
    def columns(self) -> int:
        """The most columns a tile has."""
        out = most(self.bound.out[-1])
        width = self.bound.kind.width
        return min(out, self.tile[width]) if width is not None else out

    @property
    def rows(self) -> str:
        return "n0" if self._last == 1 else "n0 * n1 * n2"

    @property
    def first_row(self) -> str:
        """Of a tile of whole rows."""
        if self._last == 1:
            return "lo0"
        _, lines, pixels, _ = self.bound.out
        return f"(int64_t(lo0) * {lines} + lo1) * {pixels}"

    @property
    def most_rows(self) -> int:
        """Of a tile of whole rows."""
        return self.tile[0] if self._last == 1 else self.tile[0] * int(self.bound.out[2])

    @property
    def row(self) -> str:
        """Row r of the tile as a row of the result."""
        if self._last == 1:
            return "lo0 + r"
        _, p, q, _ = self.bound.out
        return f"(int64_t(lo0 + r / (n1 * n2)) * {p} + lo1 + r / n2 % n1) * {q} + lo2 + r % n2"


def tensor_context(plan: Plan, t: Tensor) -> dict[str, Any]:
    n = most(math.prod(t.plan_shape))
    return {
        "name": t.name,
        "type": C_TYPES[t.dtype],
        "comment": f"{t.role} [{', '.join(str(s) for s in t.plan_shape)}]",
        "bytes": n * element_bytes(t.dtype),
        "given": t.role in ("input", "weight", "state"),
        "kept": t.role in ("output", "state"),
    }


def generate(plan: Plan) -> str:
    """The C++ source of a plan."""
    plan.refuse_other("cpu")
    ops = [CpuOp(plan, b) for b in plan.bounds]
    return render(
        "cpu/kernel.cpp.j2",
        plan=plan,
        ops=ops,
        sizes=", ".join(f"{k}={v}" for k, v in plan.sizes),
        summary=[line.rstrip() for line in summary(plan)],
        schedule=schedule_text(plan),
        libraries=[f"cpu/{name}.hpp.j2" for name in LIBRARIES],
        tiles=[macro_text("cpu", "cpp", op) for op in ops],
        tensors=[tensor_context(plan, t) for t in plan.graph.tensors.values()],
    )
