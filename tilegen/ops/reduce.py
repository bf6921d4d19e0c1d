"""A number for each row: the sum, the mean, the largest, the least of its numbers, the logarithm of the sum
of their powers of e."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tilegen.errors import AnalysisError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.softmax import row_tiles

Reduction = Literal["sum", "mean", "max", "min", "logsumexp"]


@dataclass(frozen=True)
class ReduceAttributes(Attributes):
    """how: which number of a row."""

    how: Reduction

    def __post_init__(self) -> None:
        if self.how not in get_args(Reduction):
            raise AnalysisError(
                f"reduce: how is {self.how!r}, expected one of {', '.join(get_args(Reduction))}"
            )


def sum(x: Value, *, name: str | None = None) -> Value:
    """y[…, 0] = Σ x[…, n] over the last dimension, in float32.

    x (…, N) of at least two dimensions; y (…, 1) of x's dtype, as torch.sum with keepdim=True.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return _reduced("sum", x, name)


def mean(x: Value, *, name: str | None = None) -> Value:
    """y[…, 0] = Σ x[…, n] / N over the last dimension, in float32.

    x (…, N) of at least two dimensions; y (…, 1) of x's dtype, as torch.mean with keepdim=True.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return _reduced("mean", x, name)


def max(x: Value, *, name: str | None = None) -> Value:
    """y[…, 0] = the largest of x[…, n] over the last dimension; NaN where one is.

    x (…, N) of at least two dimensions; y (…, 1) of x's dtype, as torch.amax with keepdim=True.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return _reduced("max", x, name)


def min(x: Value, *, name: str | None = None) -> Value:
    """y[…, 0] = the least of x[…, n] over the last dimension; NaN where one is.

    x (…, N) of at least two dimensions; y (…, 1) of x's dtype, as torch.amin with keepdim=True.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return _reduced("min", x, name)


def logsumexp(x: Value, *, name: str | None = None) -> Value:
    """y[…, 0] = ln Σ e^(x[…, n]) over the last dimension, in float32, the largest taken out first.

    x (…, N) of at least two dimensions; y (…, 1) of x's dtype, as torch.logsumexp with keepdim=True.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return _reduced("logsumexp", x, name)


def _reduced(how: Reduction, x: Value, name: str | None) -> Value:
    where = caller()
    tensors(how, where, x=x)
    need(len(x.shape) > 1, f"{how}: x has at least two dimensions, given {x.shape}", where)
    shape = (*x.shape[:-1], 1)
    operands = [x.operand("rows", where)]
    return call("reduce", name, operands, shape, x.dtype, "rows", ReduceAttributes(how), where)


@register
class Reduce(OpDef):
    """A tile is tm whole rows of x, and as many numbers."""

    name, coords, stem, fusable = "reduce", ("i",), "rows", True
    operands, attributes = ("x",), ReduceAttributes

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return (ceil_div(b.out[0], b.tile[0]),)

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        return (Access(0, (self.write(b)[0], whole(b.shape(0)[1]))),)

    def write(self, b: OpInstance) -> Box:
        return (blocks(b.coords[0], b.tile[0], b.out[0]), whole(1))

    def flops(self, b: OpInstance) -> float:
        return 2.0 * b.tile[0] * b.shape(0)[1]

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return row_tiles(b.out[0], machine)

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        ways = {"sum": x.sum, "mean": x.mean, "max": x.amax, "min": x.amin, "logsumexp": x.logsumexp}
        return [ways[ReduceAttributes.of(b).how](-1, keepdim=True)]
