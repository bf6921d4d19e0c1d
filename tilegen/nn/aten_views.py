"""Operators that compute nothing: views of a model's tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilegen.errors import SpecError
from tilegen.nn import patterns
from tilegen.nn.strided import Strided
from tilegen.nn.table import Trace, entry
from tilegen.nn.views import View

aten = torch.ops.aten


Seen = View | Strided


def seen(t: Trace, x: Seen, of: Callable[[Any], Seen]) -> Seen:
    """of(x), said by a map of a tensor where one can, else by strides, else of a copy."""
    for way in (x, Strided.of(x)) if isinstance(x, View) else (x,):
        try:
            return of(way)
        except SpecError:
            continue  # the next way can say more
    return of(Strided.of(t.copied(x)))


@entry(*patterns.COPIES, view=True)
def _same(t: Trace, x: Seen, *_: Any, **__: Any) -> Seen:
    return x


@entry(aten.dropout.default, aten.native_dropout.default, view=True)
def _dropout(t: Trace, x: Seen, p: float, train: bool) -> Seen:
    if train and p:
        raise SpecError(f"dropout of {p}: the module is in training; call .eval()")
    return x


@entry(aten.view.default, aten.reshape.default, aten._unsafe_view.default, view=True)
def _view(t: Trace, x: Seen, shape: Sequence[Any]) -> Seen:
    return seen(t, x, lambda v: v.reshaped(shape))


@entry(aten.flatten.using_ints, view=True)
def _flatten(t: Trace, x: Seen, first: int = 0, last: int = -1) -> Seen:
    first, last = first % len(x.dims), last % len(x.dims)
    shape = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    return seen(t, x, lambda v: v.reshaped(shape))


@entry(aten.transpose.int, view=True)
def _transpose(t: Trace, x: Seen, a: int, b: int) -> Seen:
    return x.transposed(a, b)


@entry(aten.permute.default, view=True)
def _permute(t: Trace, x: Seen, order: Sequence[int]) -> Seen:
    return x.permuted(order)


@entry(aten.t.default, view=True)
def _turned(t: Trace, x: Seen) -> Seen:
    return x.transposed(0, 1) if len(x.dims) == 2 else x


@entry(aten.pixel_shuffle.default, view=True)
def _pixel_shuffle(t: Trace, x: Seen, by: int) -> Seen:
    *lead, c, h, w = x.shape
    n, apart = len(lead), (*lead, c // by**2, by, by, h, w)
    order = (*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return _view(t, _view(t, x, apart).permuted(order), (*lead, c // by**2, h * by, w * by))


@entry(aten.pixel_unshuffle.default, view=True)
def _pixel_unshuffle(t: Trace, x: Seen, by: int) -> Seen:
    *lead, c, h, w = x.shape
    n, apart = len(lead), (*lead, c, h // by, by, w // by, by)
    order = (*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return _view(t, _view(t, x, apart).permuted(order), (*lead, c * by**2, h // by, w // by))


@entry(aten.channel_shuffle.default, view=True)
def _channel_shuffle(t: Trace, x: Seen, groups: int) -> Seen:
    b, c, *pixels = x.shape
    return _view(t, _view(t, x, (b, groups, c // groups, *pixels)).transposed(1, 2), x.shape)


@entry(aten.unsqueeze.default, view=True)
def _unsqueeze(t: Trace, x: Seen, at: int) -> Seen:
    return x.unsqueezed(at)


@entry(aten.squeeze.dim, aten.squeeze.dims, view=True)
def _squeeze(t: Trace, x: Seen, at: Any) -> Seen:
    return x.squeezed([at] if isinstance(at, int) else at)


@entry(aten.expand.default, view=True)
def _expand(t: Trace, x: Seen, sizes: Sequence[Any], *, implicit: bool = False) -> Seen:
    return x.expanded(sizes)


@entry(aten.slice.Tensor, view=True)
def _slice(t: Trace, x: Seen, at: int = 0, lo: int = 0, hi: int | None = None, step: int = 1) -> Seen:
    size = x.shape[at]
    if not all(isinstance(n, int) for n in (size, lo or 0, hi or 0)):
        whole = hi is None or hi == size or (isinstance(hi, int) and hi > 1 << 60)
        if (lo or 0) == 0 and whole and step == 1:
            return x
        raise SpecError(f"[{lo}:{hi}] of the {size} places of a dimension that moves")
    lo, hi = (max(n + size, 0) if n < 0 else min(n, size) for n in (lo or 0, size if hi is None else hi))
    if lo >= hi:
        raise SpecError(f"a slice of no places of {x.shape}")
    return seen(t, x, lambda v: v.sliced(at, lo, hi, step))


@entry(aten.select.int, view=True)
def _select(t: Trace, x: Seen, at: int, n: int) -> Seen:
    size = x.shape[at]
    if not isinstance(size, int) and n < 0:
        raise SpecError(f"[{n}] of the {size} places of a dimension that moves")
    n = n % size if isinstance(size, int) else n
    return seen(t, x, lambda v: v.sliced(at, n, n + 1).squeezed([at]))


@entry(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, view=True)
def _split(t: Trace, x: Seen, sizes: Any, at: int = 0) -> list[Seen]:
    size = x.shape[at]
    if not isinstance(size, int):
        raise SpecError(f"parts of the {size} places of a dimension that moves")
    if isinstance(sizes, int):
        sizes = [min(sizes, size - n) for n in range(0, size, sizes)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [_slice(t, x, at, end - n, end) for n, end in zip(sizes, ends, strict=True)]


@entry(aten.unbind.int, view=True)
def _unbind(t: Trace, x: Seen, at: int = 0) -> list[Seen]:
    size = x.shape[at]
    if not isinstance(size, int):
        raise SpecError(f"each of the {size} places of a dimension that moves")
    return [_select(t, x, at, n) for n in range(size)]


@entry(aten.repeat_interleave.self_int, view=True)
def _repeat_interleave(
    t: Trace, x: Seen, times: int, at: int | None = None, *, output_size: int | None = None
) -> Seen:
    if at is None:
        raise SpecError("repeat_interleave of no dimension")
    return x.repeated(at, times)


@entry(operator.getitem, view=True)
def _getitem(t: Trace, x: Sequence[Seen], n: int) -> Seen:
    return x[n]
