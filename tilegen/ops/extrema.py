"""The smaller and the larger of index expressions: SymPy's Min and Max, decided at once for affine ones.

    a - b = c + Σ n·s over symbols least(s) ≤ s ≤ most(s):   a ≥ b where c + Σ n·(least(s) or most(s)) ≥ 0

SymPy comes to the same by general inequalities, which were two thirds of planning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any

import sympy as sp

from tilegen.frontend.dims import Dim


def smallest(*args: Any) -> Any:
    """min(…): an expression, or an int where all are."""
    return reduce(partial(_decided, sp.Min, min), args)


def largest(*args: Any) -> Any:
    """max(…): an expression, or an int where all are."""
    return reduce(partial(_decided, sp.Max, max), args)


def like(e: sp.Expr, *args: Any) -> Any:
    """Of the kind of e, which is a Min or a Max."""
    return smallest(*args) if isinstance(e, sp.Min) else largest(*args)


def _decided(kind: Any, of_ints: Callable[[int, int], int], a: Any, b: Any) -> Any:
    """kind(a, b), which is a or b where their order is known."""
    if isinstance(a, int) and isinstance(b, int):
        return of_ints(a, b)
    a, b = sp.sympify(a), sp.sympify(b)
    sign = _sign(a, b)
    if not sign:
        return kind(a, b, evaluate=sign is None)
    return a if (sign > 0) == (kind is sp.Max) else b


@lru_cache(maxsize=4096)
def _sign(a: Any, b: Any) -> int | None:
    """1 where a ≥ b throughout, -1 where a ≤ b, 0 where it depends; None where bounds do not say."""
    constant, terms = sp.expand(a - b).as_coeff_Add()
    low = high = constant
    for term in sp.Add.make_args(terms) if terms != 0 else ():
        n, of = term.as_coeff_Mul()
        bounds = _bounds(of)
        if bounds is None or not n.is_Integer:
            return None
        least, most = bounds if n > 0 else bounds[::-1]
        low, high = low + n * least, high + n * most
    return 1 if low >= 0 else -1 if high <= 0 else 0


def _bounds(e: Any) -> tuple[Any, Any] | None:
    """The least and the largest value of a symbol, or of a size that moves divided and rounded."""
    if e.is_Symbol:
        if not (e.is_integer and e.is_nonnegative):
            return None
        return sp.Integer(bool(e.is_positive)), sp.Integer(e.most) if isinstance(e, Dim) else sp.oo
    return ends(e) if isinstance(e, (sp.ceiling, sp.floor)) else None


def ends(e: Any) -> tuple[Any, Any] | None:
    """The least and the largest value of an expression that rises with a size that moves; None where it is
    not of one size alone, or where anything in it falls as the size rises."""
    free = e.free_symbols
    if any(n.is_number and n < 0 for term in e.atoms(sp.Mul) if term.free_symbols for n in term.args):
        return None
    if len(free) != 1 or not isinstance(dim := next(iter(free)), Dim):
        return None
    low, high = (e.xreplace({dim: sp.Integer(n)}) for n in (1, dim.most))
    return (low, high) if low <= high else None
