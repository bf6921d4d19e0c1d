"""A tensor of a traced model that no map of a tensor of a spec says: where each of its elements lies in one.

    x[:, 1:, ::2].transpose(1, 2)   →   places of x by strides, which tg.strided_copy brings into a tensor

Views of views stay one Strided, so that however many a model takes, what reads them reads one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilegen.errors import SpecError
from tilegen.frontend.program import Size
from tilegen.frontend.value import Value
from tilegen.nn.views import View, regrouped
from tilegen.ops.strided_copy import Piece, merged, pieces_of, strided_copy


@dataclass(frozen=True)
class Strided:
    """Each dimension a run of pieces of value's tensor; a dimension of size 1 may have none."""

    value: Value
    dims: tuple[tuple[Piece, ...], ...]
    offset: int

    @staticmethod
    def of(view: View) -> Strided:
        """The same elements as a view."""
        whole, offset = pieces_of(view.value)
        strides: dict[tuple[int, ...], Size] = {(): 0}  # of what is the same at all places
        for d, piece in enumerate(whole):
            stride = piece.stride
            inside = sorted(
                (a for dim in view.dims for a in dim if a.place[:1] == (d,)), key=lambda a: a.place
            )
            for atom in reversed(inside):
                strides[atom.place] = stride
                stride = stride * atom.size
        dims = (tuple(Piece(a.size, strides[a.place]) for a in dim) for dim in view.dims)
        return Strided(view.value, tuple(dims), offset)

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(math.prod(p.size for p in d) for d in self.dims)

    def permuted(self, order: Sequence[int]) -> Strided:
        return replace(self, dims=tuple(self.dims[d] for d in order))

    def transposed(self, a: int, b: int) -> Strided:
        order = list(range(len(self.dims)))
        order[a], order[b] = order[b], order[a]
        return self.permuted(order)

    def unsqueezed(self, at: int) -> Strided:
        at = at % (len(self.dims) + 1)
        return replace(self, dims=(*self.dims[:at], (), *self.dims[at:]))

    def squeezed(self, at: Sequence[int]) -> Strided:
        gone = {d % len(self.dims) for d in at if self.shape[d] == 1}
        return replace(self, dims=tuple(d for n, d in enumerate(self.dims) if n not in gone))

    def expanded(self, sizes: Sequence[Size]) -> Strided:
        dims = (((),) * (len(sizes) - len(self.dims))) + self.dims
        pairs = zip(dims, sizes, strict=True)
        made = [d if math.prod(p.size for p in d) != 1 or n in (1, -1) else (Piece(n, 0),) for d, n in pairs]
        return replace(self, dims=tuple(made))

    def repeated(self, at: int, times: int) -> Strided:
        at = at % len(self.dims)
        return replace(self, dims=(*self.dims[:at], (*self.dims[at], Piece(times, 0)), *self.dims[at + 1 :]))

    def reshaped(self, sizes: Sequence[Size]) -> Strided:
        """Its elements in the same order, grouped anew; one size may be -1.

        Raises:
            SpecError: a piece would have to be cut unevenly.
        """
        pieces = [p for p in merged([p for d in self.dims for p in d]) if p.size != 1]
        return replace(self, dims=regrouped(pieces, self.shape, sizes))

    def sliced(self, at: int, lo: int, hi: int, step: int = 1) -> Strided:
        """Places lo, lo + step, … below hi of a dimension.

        Raises:
            SpecError: no one stride walks it.
        """
        at = at % len(self.dims)
        pieces = merged(self.dims[at])
        if len(pieces) > 1:
            raise SpecError(f"[{lo}:{hi}] of dimension {at} of {self.shape}, which no one stride walks")
        stride = pieces[0].stride
        taken = (Piece(-(-(hi - lo) // step), stride * step),)
        dims = (*self.dims[:at], taken, *self.dims[at + 1 :])
        return replace(self, dims=dims, offset=self.offset + lo * stride)

    def copied(self, name: str | None) -> View:
        """As a tensor of its own; of more than four dimensions as rows.

        Raises:
            SpecError: a size moves that is not the first.
        """
        shape = self.shape
        rows = (math.prod(shape[:-1]), shape[-1] if shape else 1)
        known = shape if 2 <= len(shape) <= 4 else rows
        made = strided_copy("a copy", self.value, [p for d in self.dims for p in d], self.offset, known, name)
        return View.of(made).reshaped(shape)
