"""The smaller and the larger of index expressions are what SymPy makes of them."""

from __future__ import annotations

import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegen.frontend.inputs import symbol
from tilegen.ops.base import K, coord
from tilegen.ops.extrema import largest, smallest

SYMBOLS = (coord("i"), coord("j"), K, symbol("M"))
NUMBERS = st.integers(-300, 300)
AFFINE = st.builds(
    lambda constant, factors: constant + sum(n * s for n, s in zip(factors, SYMBOLS, strict=True)),
    NUMBERS,
    st.tuples(*[st.sampled_from([0, 0, 1, -1, 64, -64, 96])] * len(SYMBOLS)),
)
ROUNDED = st.builds(lambda e, n: sp.floor(sp.sympify(e) / n), AFFINE, st.sampled_from([2, 8, 64]))
VALUES = st.tuples(NUMBERS.filter(lambda n: n >= 0), *[st.integers(0, 9)] * 2, st.integers(1, 400))


@settings(max_examples=50)
@given(AFFINE, AFFINE)
def test_affine_ones_that_sympy_decides_are_decided_the_same(a: sp.Expr, b: sp.Expr) -> None:
    for found, by_sympy in ((smallest(a, b), sp.Min(a, b)), (largest(a, b), sp.Max(a, b))):
        assert found == by_sympy or (found in (a, b) and isinstance(by_sympy, (sp.Min, sp.Max)))


@settings(max_examples=50)
@given(st.lists(st.one_of(AFFINE, ROUNDED), min_size=1, max_size=4), VALUES)
def test_their_value_is_that_of_the_least_and_the_greatest(
    args: list[sp.Expr], values: tuple[int, ...]
) -> None:
    where = dict(zip(SYMBOLS, values, strict=True))
    at = [sp.sympify(a).subs(where) for a in args]
    assert sp.sympify(smallest(*args)).subs(where) == min(at)
    assert sp.sympify(largest(*args)).subs(where) == max(at)


def test_ints_stay_ints() -> None:
    assert type(smallest(3, 2)) is type(largest(3, 2)) is int
