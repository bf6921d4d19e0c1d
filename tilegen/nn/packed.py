"""Columns of a linear that lie head by head, and are taken apart within each head.

    linear (B, S, h·3·D)  ─ view(B, S, h, 3·D)[…, D:2·D] ─▶  (B, S, h, D), D columns of every 3·D

With the rows of the weight in another order, (3, h, D), such a piece is columns side by side, and nothing is
copied. GPT-NeoX, BLOOM and Persimmon keep queries, keys and values so.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from tilegen.errors import SpecError
from tilegen.frontend.value import Value
from tilegen.nn.patterns import COPIES
from tilegen.nn.views import Atom, View

aten = torch.ops.aten
Cut = tuple[int, int]  # pieces of each head, columns of a piece
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)


def cut_of(node: Node) -> Cut | None:
    """How heads of a linear's columns are taken apart, by all that reads them; None where they are not, or
    where pieces lie side by side as it is."""
    shape = node.meta["val"].shape
    if not all(isinstance(n, int) for n in shape):
        return None
    rows = tuple((Atom((d,), n),) if n > 1 else () for d, n in enumerate(shape[:-1]))
    whole: Any = None  # a tensor of the spec, which no view below asks for
    try:
        found = _cuts(node, View(whole, (*rows, (Atom((len(shape) - 1,), shape[-1]),))), len(shape) - 1)
    except SpecError:
        return None
    if found is None or len(found) != 1:
        return None
    (count, width), *_ = found
    return (count, width) if count * width < shape[-1] else None


def _cuts(node: Node, view: View, last: int) -> set[Cut] | None:
    """Of all that reads a node; None where anything else does."""
    found: set[Cut] = set()
    for user in node.users:
        if user.op != "call_function":
            return None
        if user.target in (*SPLITS, aten.slice.Tensor, aten.select.int):
            new = _taken(user, view, last)
        else:
            seen = _seen(user, view)
            new = None if seen is None else _cuts(user, seen, last)
        if new is None:
            return None
        found |= new
    return found or None


def _seen(user: Node, view: View) -> View | None:
    """A view of all that a view has."""
    how: Any = user.args[1:]
    if user.target in COPIES:
        return view
    if user.target in RESHAPES:
        return view.reshaped(how[0])
    if user.target is aten.permute.default:
        return view.permuted(how[0])
    if user.target is aten.transpose.int:
        return view.transposed(*how)
    return None


def _taken(user: Node, view: View, last: int) -> set[Cut] | None:
    """Pieces of one dimension, which are columns."""
    args: Any = user.args
    place = 2 if user.target in SPLITS[:2] else 1  # of the dimension among the arguments; the first without
    at = (args[place] if len(args) > place else 0) % len(view.dims)
    size, atoms = math.prod(a.size for a in view.dims[at]), view.dims[at]
    if not atoms or any(a.place[:1] != (last,) for a in atoms):
        return None
    if user.target in SPLITS and any(u.target is not operator.getitem for u in user.users):
        return None
    width = math.gcd(size, *_ends(user, args, size))
    columns = sorted((a for d in view.dims for a in d if a.place[:1] == (last,)), key=lambda a: a.place)
    at_first = columns.index(atoms[0])
    if list(atoms) != columns[at_first : at_first + len(atoms)]:
        return None
    below = math.prod(a.size for a in columns[at_first + len(atoms) :])
    return {(int(size // width), int(width * below))}


def _ends(user: Node, args: Any, size: int) -> Sequence[int]:
    """Where its pieces end, and begin."""
    if user.target is aten.slice.Tensor:
        lo, hi = (args[n] if len(args) > n else None for n in (2, 3))
        if len(args) > 4 and args[4] != 1:
            raise SpecError("a slice with a step")
        return [max(n + size, 0) if n < 0 else min(n, size) for n in (lo or 0, size if hi is None else hi)]
    if user.target is aten.split_with_sizes.default:
        return [int(n) for n in args[1]]
    return [int(args[1])] if user.target is aten.split.Tensor else [1]


def side_by_side(w: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Rows of a weight, or numbers of a bias, (h, pieces, width) → (pieces, h, width)."""
    count, width = cut
    return w.reshape(-1, count, width, *w.shape[1:]).transpose(0, 1).reshape(w.shape)


def as_packed(x: View, made: Value, cut: Cut) -> View:
    """What a linear of x's rows gives, its columns as the model's weight has them."""
    count, width = cut
    last = len(made.shape) - 1
    heads = made.shape[-1] // (count * width)
    sizes = ((1, heads), (0, count), (2, width))
    return View(made, (*x.dims[:-1], tuple(Atom((last, place), n) for place, n in sizes if n > 1)))
