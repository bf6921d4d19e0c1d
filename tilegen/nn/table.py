"""The table of what torch's operators are in a spec, one entry an operator, and what entries share.

An entry takes what the operator takes, tensors of the model as views of tensors of the spec (View), and
weights as they are (torch.Tensor), and gives a view. What is known of weights alone is computed on the way:
norms of batches go into the convolution before them, weights are laid out as specs want them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from tilegen.errors import SpecError
from tilegen.frontend.value import Value
from tilegen.nn.strided import Strided
from tilegen.nn.views import View


class Trace(Protocol):
    """What an entry may ask of the spec that is being written (tilegen.nn.importer)."""

    def weight(self, data: torch.Tensor, stem: str = "weight") -> Value:
        """A weight of the spec with this content."""

    def name(self, *what: str) -> str | None:
        """A name for the op that is being written, from where it stands in the model."""

    def copied(self, x: View | Strided, order: Sequence[int] | None = None) -> View:
        """The same elements in a tensor of their own, its dimensions in this order."""


Entry = Callable[..., Any]
TABLE: dict[Any, Entry] = {}
VIEWS: set[Any] = set()  # those of the table that compute nothing


def entry(*operators: Any, view: bool = False) -> Callable[[Entry], Entry]:
    def known(function: Entry) -> Entry:
        TABLE.update(dict.fromkeys(operators, function))
        if view:
            VIEWS.update(operators)
        return function

    return known


def as_rows(t: Trace, x: View) -> View:
    """x, or a copy of it, whose last dimension is that of its tensor, and which is no line of pixels, such as
    a convolution over one dimension gives: what follows is faster of rows."""
    if not isinstance(x, View):
        raise SpecError(f"rows of a weight {tuple(x.shape)}")
    return x if x.rows() is not None and not _is_line(x) else t.copied(x)


def _is_line(x: View) -> bool:
    return len(x.dims) == 3 and is_image(x.value) and x.value.shape[1] == 1


def as_image(t: Trace, x: View) -> View:
    """x, or a copy of it, which is an image (B, C, H, W) of (B, H, W, C)."""
    return x if x.image() is not None or len(x.dims) != 4 else t.copied(x, (0, 2, 3, 1))


def rows_of(x: View) -> Value:
    found = x.rows()
    if found is None:
        raise SpecError(f"a tensor {x.shape} whose last dimension is not that of {x.value}")
    return found


def image_of(x: View) -> Value:
    found = x.image()
    if found is None:
        raise SpecError(f"a tensor {x.shape} that is no image (B, C, H, W) of {x.value}")
    return found


def is_image(value: Value) -> bool:
    """Whether ops see a tensor as images of pixels, not as rows."""
    return not value.flattened and value.builder.tensors[value.tensor].form == "spatial"
