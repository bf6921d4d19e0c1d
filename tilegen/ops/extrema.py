"""The smaller and the larger of index expressions: SymPy's Min and Max, decided at once for affine ones.

    a - b = c + Σ n·s over symbols s ≥ least(s):   a ≥ b where all n ≥ 0 and c + Σ n·least(s) ≥ 0

SymPy comes to the same by general inequalities, which were two thirds of planning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any

import sympy as sp


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
    """1 where a ≥ b throughout, -1 where a ≤ b, 0 where it depends; None where that takes more than signs."""
    constant, terms = sp.expand(a - b).as_coeff_Add()
    least, signs = constant, set()
    for term in sp.Add.make_args(terms) if terms != 0 else ():
        n, symbol = term.as_coeff_Mul()
        if not (symbol.is_Symbol and symbol.is_integer and symbol.is_nonnegative and n.is_Integer):
            return None
        least += n * int(bool(symbol.is_positive))
        signs.add(1 if n > 0 else -1)
    if not signs:
        signs = {1 if constant >= 0 else -1}
    if len(signs) == 1 and (sign := signs.pop()) * least >= 0:
        return sign
    return 0
