"""The columns of a row's largest numbers, the largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.errors import AnalysisError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, may_go_unused, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.softmax import row_tiles
from tilegen.ops.take_along import take_along


@dataclass(frozen=True)
class TopkAttributes(Attributes):
    """k: so many of each row."""

    k: int

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise AnalysisError(f"topk: k is {self.k!r}, expected a whole number of at least 1")


def topk(x: Value, k: int, *, name: str | None = None) -> tuple[Value, Value]:
    """values[…, j] = x[…, ids[…, j]], ids[…, j] = the column of the j-th largest of x[…, :].

    x (…, N) of at least two dimensions, 1 ≤ k ≤ N; values (…, k) of x's dtype, ids (…, k) of int32. Of equal
    numbers the lower column comes first; a NaN counts as +∞. The name is that of ids; values are a
    `take_along`, which is left out where nobody uses them. The router of a mixture of experts:

        shares, experts = tg.topk(tg.softmax(x @ router), 2)

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension, or k is no number of its columns.

    Source: torch.topk.
    """
    ids = _largest("topk", x, k, name)
    values = take_along(x, ids, name=None if name is None else f"{name}_values")
    return may_go_unused(values), ids


def argmax(x: Value, *, name: str | None = None) -> Value:
    """y[…, 0] = the column of the largest of x[…, :]; of equal numbers the lower; a NaN counts as +∞.

    x (…, N) of at least two dimensions; y (…, 1) of int32, as torch.argmax with keepdim=True.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return _largest("argmax", x, 1, name)


def _largest(word: str, x: Value, k: int, name: str | None) -> Value:
    where = caller()
    tensors(word, where, x=x)
    need(len(x.shape) > 1, f"{word}: x has at least two dimensions, given {x.shape}", where)
    columns = x.shape[-1]
    there = type(k) is int and k >= 1 and (not isinstance(columns, int) or k <= columns)
    need(there, f"{word}: k is a number of the {columns} columns of {x.tensor!r}, given {k!r}", where)
    operands = [x.operand("rows", where)]
    return call("topk", name, operands, (*x.shape[:-1], k), "int32", "rows", TopkAttributes(k), where)


@register
class Topk(OpDef):
    """A tile is tm whole rows of x, and k columns of each."""

    name, coords, stem = "topk", ("i",), "rows"
    operands, attributes = ("x",), TopkAttributes

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return (ceil_div(b.out[0], b.tile[0]),)

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        return (Access(0, (self.write(b)[0], whole(b.shape(0)[1]))),)

    def write(self, b: OpInstance) -> Box:
        return (blocks(b.coords[0], b.tile[0], b.out[0]), whole(b.out[1]))

    def flops(self, b: OpInstance) -> float:
        return 4.0 * b.tile[0] * b.shape(0)[1] * b.out[1]  # a look at the row for each number

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return row_tiles(b.out[0], machine)

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        numbers = x.masked_fill(x.isnan(), float("inf"))
        # torch.topk takes any of equal numbers
        order = numbers.sort(dim=-1, descending=True, stable=True).indices
        return [order[:, : TopkAttributes.of(b).k].int()]
