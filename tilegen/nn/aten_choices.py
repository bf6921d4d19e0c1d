"""Comparisons, and what is chosen by them.

    where(x > 0, x, y)   →   where(less(0, x), x, y), where a comparison is a tensor of 1 and 0

A comparison that anything else reads has no word: to torch it is of torch.bool.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from tilegen.errors import SpecError
from tilegen.frontend.value import Value
from tilegen.graph.fuse_epilogues import renumber
from tilegen.nn.aten_maths import alike, each, of_columns
from tilegen.nn.table import TABLE, Entry, Trace, entry
from tilegen.nn.views import View
from tilegen.ops.pointwise import pointwise

aten = torch.ops.aten


def _compares(expression: str) -> Entry:
    """1 where it holds, else 0."""

    def made(t: Trace, a: Any, b: Any) -> View:
        if isinstance(a, View):
            return each(t, expression, a, _rounded(b, a))
        return each(t, renumber(expression, {"e0": "e1", "e1": "e0"}), b, _rounded(a, b))

    return made


def _rounded(n: Any, beside: View) -> Any:
    """A number, as torch rounds it to compare it with a tensor."""
    dtype = getattr(torch, beside.value.dtype)
    if isinstance(n, (int, float)):
        return torch.tensor(n, dtype=dtype).item()
    return n.to(dtype) if isinstance(n, torch.Tensor) and not n.dim() else n


COMPARISONS = {
    operator: _compares(expression)
    for operators, expression in (
        (aten.lt, "less(e0, e1)"),
        (aten.gt, "less(e1, e0)"),
        (aten.le, "less_equal(e0, e1)"),
        (aten.ge, "less_equal(e1, e0)"),
        (aten.eq, "less_equal(e0, e1) * less_equal(e1, e0)"),
        (aten.ne, "1.0 - less_equal(e0, e1) * less_equal(e1, e0)"),
    )
    for operator in (operators.Scalar, operators.Tensor)
}
TABLE |= COMPARISONS
CHOICES = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)


def chooses(node: Node) -> bool:
    """Whether a node is a comparison that choices alone read: what it gives are numbers in a spec, not
    torch.bool."""
    choices = all(u.target in CHOICES and node not in u.args[1:] for u in node.users)
    return node.target in COMPARISONS and choices


@entry(*CHOICES)
def _where(t: Trace, condition: Any, a: Any, b: Any) -> View:
    """All alike, but for numbers, columns, and weights of columns."""
    given = (condition, a, b)
    views = [v for v in given if isinstance(v, View)]
    base = next((v for v in views if v.width != 1), views[0])
    values, shown = [base.value], []
    for v in given:
        if isinstance(v, (int, float)):
            shown.append(repr(float(v)))
            continue
        value = _beside(t, base, v)
        if value not in values:
            values.append(value)
        shown.append(f"e{values.index(value)}")
    return View(pointwise(f"where({', '.join(shown)})", *values), base.dims)


def _beside(t: Trace, base: View, v: Any) -> Value:
    """A view or a weight as an operand beside a view."""
    if isinstance(v, torch.Tensor):
        if (columns := of_columns(base, v)) is not None:
            return t.weight(columns)
    elif v.is_(base) or (v.width == 1 and v.beside(base)):
        return v.value
    elif v.shape == base.shape and all(atom.place for atom in base.atoms):
        return alike(t, base, v)[1].value
    raise SpecError(f"a choice of a tensor {tuple(v.shape)} beside one {base.shape}")
