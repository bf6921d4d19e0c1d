"""A tensor of a traced model as a view of a tensor of a spec: which of its dimensions lie where.

    linear (B, S, 3·h·D)  ─ view(B, S, 3, h, D).permute(2, 0, 3, 1, 4)[0] ─▶  (B, h, S, D) of columns 0 … h·D

A model reshapes, transposes and slices; a spec names rows and heads. Each dimension of the model's tensor is
a run of atoms, pieces of dimensions of the spec's tensor; atoms in the order in which the model's elements
follow each other make a reshape a new grouping, a transpose a new order, a slice a choice of columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import sympy as sp

from tilegen.errors import SpecError
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value


@dataclass(frozen=True)
class Atom:
    """`size` steps along a part of a dimension. place: the dimension of the spec's tensor, and within it from
    its outermost part inwards; empty for a dimension along which all is alike (expand)."""

    place: tuple[int, ...]
    size: Size

    def cut(self, outer: Size) -> tuple[Atom, Atom]:
        """As (outer, size/outer)."""
        inner = _divided(self.size, outer)
        if not self.place:
            return Atom((), outer), Atom((), inner)
        return Atom((*self.place, 0), outer), Atom((*self.place, 1), inner)


Dims = tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True)
class View:
    """A tensor of the model: `dims` of `value`. A dimension of size 1 has no atoms."""

    value: Value
    dims: Dims

    @staticmethod
    def of(value: Value, order: Sequence[int] | None = None) -> View:
        """A tensor of the spec with its dimensions in this order."""
        order = range(len(value.shape)) if order is None else order
        return View(value, tuple(_atoms((d,), value.shape[d]) for d in order))

    @staticmethod
    def of_heads(value: Value, heads: int) -> View:
        """(B, h, S, D) of a tensor (B, S, h·D)."""
        b, s, columns = value.shape
        return View.of(value).reshaped((b, s, heads, _divided(columns, heads))).permuted((0, 2, 1, 3))

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(_product(d) for d in self.dims)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Those of all dimensions."""
        return tuple(a for d in self.dims for a in d)

    # --- what models do with tensors ----------------------------------------------------------------------

    def permuted(self, order: Sequence[int]) -> View:
        return replace(self, dims=tuple(self.dims[d] for d in order))

    def transposed(self, a: int, b: int) -> View:
        order = list(range(len(self.dims)))
        order[a], order[b] = order[b], order[a]
        return self.permuted(order)

    def unsqueezed(self, at: int) -> View:
        at = at % (len(self.dims) + 1)
        return replace(self, dims=(*self.dims[:at], (), *self.dims[at:]))

    def squeezed(self, at: Sequence[int]) -> View:
        gone = {d % len(self.dims) for d in at}
        return replace(self, dims=tuple(d for n, d in enumerate(self.dims) if n not in gone or d))

    def expanded(self, sizes: Sequence[Size]) -> View:
        dims = (((),) * (len(sizes) - len(self.dims))) + self.dims
        made = [d if d or n in (1, -1) else _atoms((), n) for d, n in zip(dims, sizes, strict=True)]
        return replace(self, dims=tuple(made))

    def repeated(self, at: int, times: int) -> View:
        """Each place of a dimension so many times, side by side."""
        at = at % len(self.dims)
        dims = (*self.dims[:at], (*self.dims[at], *_atoms((), times)), *self.dims[at + 1 :])
        return replace(self, dims=dims)

    def reshaped(self, sizes: Sequence[Size]) -> View:
        """Its elements in the same order, grouped anew; one size may be -1.

        Raises:
            SpecError: a piece would have to be cut unevenly.
        """
        return replace(self, dims=regrouped([a for d in self.dims for a in d], self.shape, sizes))

    def sliced(self, at: int, lo: int, hi: int, step: int = 1) -> View:
        """Places lo, lo + step, … below hi of a dimension: columns of the spec's tensor, all of them.

        Raises:
            SpecError: they are none.
        """
        at, atoms = at % len(self.dims), self.dims[at]
        if (lo, hi, step) == (0, _product(atoms), 1):
            return self
        inner, rest = self._columns_below(atoms), _product(atoms[1:])
        if inner is None or step != 1 or not (_splits(lo, rest) and _splits(hi, rest)):
            raise SpecError(f"[{lo}:{hi}] of dimension {at} of {self.shape} takes no columns of {self.value}")
        lo, hi = (int(_divided(n, rest)) for n in (lo, hi))
        widths = [lo * inner, (hi - lo) * inner, self.value.shape[-1] - hi * inner]
        taken = self.value.split([w for w in widths if w])[1 if lo else 0]
        left = (*_atoms(atoms[0].place, hi - lo), *atoms[1:])
        return View(taken, (*self.dims[:at], left, *self.dims[at + 1 :]))

    def _columns_below(self, atoms: tuple[Atom, ...]) -> Size | None:
        """How many columns a step along the first of these goes, which is the outermost of the columns."""
        last = len(self.value.shape) - 1
        columns = sorted((a for d in self.dims for a in d if a.place[:1] == (last,)), key=lambda a: a.place)
        if not columns or _product(columns) != self.value.shape[-1] or atoms[:1] != (columns[0],):
            return None
        return _product(columns[1:])

    # --- what specs take ----------------------------------------------------------------------------------

    def columns(self) -> int | None:
        """Which dimension is the tensor's columns, all of them in order."""
        last = len(self.value.shape) - 1
        for at, atoms in enumerate(self.dims):
            own = all(a.place[:1] == (last,) for a in atoms) and _same(_product(atoms), self.width)
            if atoms and own and list(atoms) == sorted(atoms, key=lambda a: a.place):
                return at
        return None

    def rows(self) -> Value | None:
        """The tensor itself, where the last dimension is its columns, and the others walk its rows, each
        once, in any order."""
        if not self.dims:
            return None
        last = len(self.value.shape) - 1
        columns = [a for a in self.dims[-1] if a.place[:1] == (last,)]
        others = [a for d in self.dims[:-1] for a in d]
        plain = columns == list(self.dims[-1]) == sorted(columns, key=lambda a: a.place)
        walked = all(a.place and a.place[0] != last for a in others)
        whole = math.prod(self.value.shape[:-1])
        return (
            self.value
            if plain and walked and _same(_product(others), whole) and _same(_product(columns), self.width)
            else None
        )

    @property
    def width(self) -> Size:
        """Columns of the tensor."""
        return self.value.shape[-1]

    def of_rows(self, value: Value) -> View:
        """A tensor with the same rows and columns of its own, seen as this one is."""
        last = len(value.shape) - 1
        return View(value, (*self.dims[:-1], _atoms((last,), value.shape[-1])))

    def is_(self, other: View) -> bool:
        """Whether it is the same view of a tensor of the same shape."""
        return self.value.shape == other.value.shape and _ranked(self.dims) == _ranked(other.dims)

    def beside(self, other: View) -> bool:
        """Whether both are rows of their own tensors, and the same places of both walk them."""
        rows = self.rows() is not None and other.rows() is not None
        return rows and _ranked(self.dims[:-1]) == _ranked(other.dims[:-1])

    def heads(self) -> tuple[Value, int] | None:
        """A tensor (B, S, h·D) and h, of which this is (B, h, S, D)."""
        if len(self.dims) != 4 or len(self.value.shape) != 3:
            return None
        heads = self.shape[1]
        if not isinstance(heads, int) or not _splits(self.width, heads):
            return None
        return (self.value, heads) if self.is_(View.of_heads(self.value, heads)) else None

    def image(self) -> Value | None:
        """A tensor (B, H, W, C), of which this is (B, C, H, W)."""
        if len(self.value.shape) != 4 or not self.is_(View.of(self.value, (0, 3, 1, 2))):
            return None
        return self.value

    def of_images(self) -> Value | None:
        """A tensor (B, C), of which this is (B, C, 1, 1)."""
        if len(self.value.shape) != 2 or not self.is_(View.of(self.value).unsqueezed(-1).unsqueezed(-1)):
            return None
        return self.value

    def layout(self) -> tuple[tuple[int, ...] | None, tuple[int, ...], tuple[int, ...]]:
        """How the tensor becomes this view: cut into pieces, which in another order are grouped into its
        dimensions. Sizes that move are -1. (None, (), ()) where it is the view as it is.

        Raises:
            SpecError: two pieces, or two dimensions, move.
        """
        if self.shape == self.value.shape and self.is_(View.of(self.value)):
            return None, (), ()
        atoms = [a for d in self.dims for a in d]
        inside = sorted(atoms, key=lambda a: a.place)
        pieces, shape = (
            tuple(n if isinstance(n, int) else -1 for n in of)
            for of in ([a.size for a in inside], self.shape)
        )
        if pieces.count(-1) > 1 or shape.count(-1) > 1:
            raise SpecError(f"a result {self.shape} of {self.value}: two of its sizes move")
        return pieces, tuple(inside.index(a) for a in atoms), shape


P = TypeVar("P", bound="_Piece")


class _Piece(Protocol):
    """Of a tensor: so many places, which can be cut into two dimensions."""

    @property
    def size(self) -> Size: ...

    def cut(self: P, outer: Size) -> tuple[P, P]: ...


def regrouped(pieces: Sequence[P], shape: Sequence[Size], sizes: Sequence[Size]) -> tuple[tuple[P, ...], ...]:
    """Pieces in their order as dimensions of these sizes, of which one may be -1. shape: what they were.

    Raises:
        SpecError: a piece would have to be cut unevenly.
    """
    whole = _product(pieces)
    if whole == 0 or 0 in sizes:
        raise SpecError(f"a view of {tuple(shape)} as {tuple(sizes)}, which has no elements")
    given = sp.Mul(*(n for n in sizes if n != -1))
    sizes = [_number(_divided(whole, given)) if n == -1 else n for n in sizes]
    left, dims = list(pieces), []
    for size in sizes:
        taken: list[P] = []
        while _product(taken) != size:
            missing = _divided(size, _product(taken))
            if not left:
                raise SpecError(f"a view of {tuple(shape)} as {tuple(sizes)}: it has fewer elements")
            piece = left.pop(0)
            if piece.size == missing or not _splits(piece.size, missing):
                taken.append(piece)
                if not _splits(size, _product(taken)):
                    raise SpecError(f"a view of {tuple(shape)} as {tuple(sizes)} cuts a dimension unevenly")
            else:
                outer, inner = piece.cut(missing)
                taken.append(outer)
                left.insert(0, inner)
        dims.append(tuple(taken))
    return tuple(dims)


def _atoms(place: tuple[int, ...], size: Size) -> tuple[Atom, ...]:
    return () if size == 1 else (Atom(place, size),)


def _product(atoms: Sequence[_Piece]) -> Size:
    return math.prod(a.size for a in atoms)


def _number(n: Size) -> Size:
    return int(n) if isinstance(n, (int, sp.Integer)) else n


def _divided(n: Size, by: Size) -> Size:
    if isinstance(n, int) and isinstance(by, int):
        return n // by
    return _number(sp.cancel(sp.sympify(n) / by))


def _splits(n: Size, by: Size) -> bool:
    """Whether n is a multiple of `by`, whatever the sizes that move are."""
    if isinstance(n, int) and isinstance(by, int):
        return n % by == 0
    return bool(sp.cancel(sp.sympify(n) / by).is_integer)


def _same(a: Size, b: Size) -> bool:
    return bool(sp.simplify(sp.sympify(a) - b) == 0)


def _ranked(dims: Dims) -> list[list[tuple[int, Size]]]:
    """Dimensions with the places of their atoms counted through."""
    places = sorted(a.place for d in dims for a in d)
    return [[(places.index(a.place), a.size) for a in d] for d in dims]
