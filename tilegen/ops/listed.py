"""Tables in index expressions: which blocks a tile takes where no formula says it.

    entry(t, n) = t.values[n], for an expression n

Generated text has the table as a constant of its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp


class Numbers(sp.AtomicExpr):
    """A table of whole numbers, none negative, under the name that it has in generated text."""

    name: str
    values: tuple[int, ...]
    is_number = False
    __slots__ = ("name", "values")

    def __new__(cls, name: str, values: Sequence[int]) -> Numbers:
        made = sp.AtomicExpr.__new__(cls)
        made.name, made.values = name, tuple(values)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.name, self.values

    def _hashable_content(self) -> tuple[Any, ...]:
        return self.name, self.values

    def sort_key(self, order: Any = None) -> Any:
        return self.class_key(), (1, (self.name,)), sp.S.One.sort_key(), sp.S.One

    def _sympystr(self, printer: Any) -> str:
        return self.name


class Entry(sp.Function):
    """The number at a place of a table."""

    nargs = 2
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, table: Numbers, place: Any) -> Any:
        return sp.Integer(table.values[int(place)]) if place.is_Integer else None


def entry(table: Numbers, place: Any) -> Any:
    """The number at a place of a table; a number where it is the same everywhere."""
    return sp.Integer(table.values[0]) if len(set(table.values)) == 1 else Entry(table, sp.sympify(place))


def tables_of(e: Any) -> tuple[Numbers, ...]:
    """The tables in an expression, by name."""
    return tuple(sorted(sp.sympify(e).atoms(Numbers), key=lambda t: t.name))
