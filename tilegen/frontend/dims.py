"""Sizes that move: a dimension of a program that is not the same at every call.

    tg.dim("M", max=4096)   stands for each of 1 … 4096, in shapes of inputs, states and results

A program with one is planned once, at its largest size; its kernel is told the size when it is called. Sizes
that follow from it, such as 3·M rows, are linear in it.
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from tilegen.errors import SpecError
from tilegen.frontend.program import Program, Size
from tilegen.frontend.rebuilt import rebuilt

MOST = 1 << 24


class Dim(sp.Symbol):
    """A size that moves: 1 … most."""

    most: int
    __slots__ = ("most",)

    def __new__(cls, name: str, most: int) -> Dim:
        made = sp.Symbol.__xnew__(cls, name, integer=True, positive=True)
        made.most = most
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str, int], dict[str, Any]]:
        return (self.name, self.most), {}

    def _hashable_content(self) -> tuple[Any, ...]:
        return (self.name, self.most)


def dim(name: str, max: int) -> Any:
    """A size that moves from call to call: one kernel serves every value from 1 to `max`.

    It stands for rows: of inputs, states and what follows from them; or for a batch. A weight has none.

    Raises:
        SpecError: the name is no identifier, or max no int of at least 1.
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise SpecError(f"dim: a name is an ASCII identifier, given {name!r}")
    if not isinstance(max, int) or isinstance(max, bool) or not 1 <= max <= MOST:
        raise SpecError(f"dim {name}: max is an int from 1 to {MOST}, given {max!r}")
    return Dim(name, max)


def dims_of(value: Any) -> set[Dim]:
    """Those in a size, or anywhere in a program, a graph, a plan."""
    found: set[Dim] = set()

    def look(size: sp.Expr) -> sp.Expr:
        found.update(s for s in size.free_symbols if isinstance(s, Dim))
        return size

    rebuilt(value, look)
    return found


def the_dim(program: Program) -> Dim | None:
    """The size that moves in a program, or None.

    Raises SpecError where there are several, or other sizes are open too.
    """
    found = sorted(dims_of(program), key=lambda d: d.name)
    if not found:
        return None
    if len(found) > 1:
        raise SpecError(
            f"{program.name}: {' and '.join(d.name for d in found)} move; one size of a program may"
        )
    for t in program.tensors:
        if t.role == "weight" and any(not isinstance(n, int) for n in t.shape):
            raise SpecError(f"weight {t.name!r} has shape {t.shape}: a weight does not move", t.where)
    return found[0]


def filled(value: Any, dim: Dim, size: int) -> Any:
    """A size, or anything made of sizes, where the dimension is `size`: formulas that are then numbers become
    ints."""

    def fill(e: sp.Expr) -> Any:
        if dim not in e.free_symbols:
            return e
        at = e.xreplace({dim: sp.Integer(size)})
        return int(at) if at.is_Integer else at

    return rebuilt(value, fill)


def limited(program: Program, dim: Dim, most: int) -> Program:
    """The program with a smaller largest value of what moves."""
    less = Dim(dim.name, most)
    made: Program = rebuilt(program, lambda e: e.xreplace({dim: less}))
    return made


def most(size: Size) -> int:
    """The largest that a size gets; it rises with what moves."""
    if isinstance(size, int):
        return size
    return int(sp.sympify(size).xreplace({d: sp.Integer(d.most) for d in dims_of(size)}))
