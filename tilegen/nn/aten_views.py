"""Operators that compute nothing: views of a model's tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from tilegen.errors import SpecError
from tilegen.nn import patterns
from tilegen.nn.table import Trace, entry
from tilegen.nn.views import View

aten = torch.ops.aten


@entry(*patterns.COPIES, view=True)
def _same(t: Trace, x: View, *_: Any, **__: Any) -> View:
    return x


@entry(aten.dropout.default, aten.native_dropout.default, view=True)
def _dropout(t: Trace, x: View, p: float, train: bool) -> View:
    if train and p:
        raise SpecError(f"dropout of {p}: the module is in training; call .eval()")
    return x


@entry(aten.view.default, aten.reshape.default, aten._unsafe_view.default, view=True)
def _view(t: Trace, x: View, shape: Sequence[Any]) -> View:
    return x.reshaped(shape)


@entry(aten.flatten.using_ints, view=True)
def _flatten(t: Trace, x: View, first: int = 0, last: int = -1) -> View:
    first, last = first % len(x.dims), last % len(x.dims)
    return x.reshaped((*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@entry(aten.transpose.int, view=True)
def _transpose(t: Trace, x: View, a: int, b: int) -> View:
    return x.transposed(a, b)


@entry(aten.permute.default, view=True)
def _permute(t: Trace, x: View, order: Sequence[int]) -> View:
    return x.permuted(order)


@entry(aten.unsqueeze.default, view=True)
def _unsqueeze(t: Trace, x: View, at: int) -> View:
    return x.unsqueezed(at)


@entry(aten.squeeze.dim, aten.squeeze.dims, view=True)
def _squeeze(t: Trace, x: View, at: Any) -> View:
    return x.squeezed([at] if isinstance(at, int) else at)


@entry(aten.expand.default, view=True)
def _expand(t: Trace, x: View, sizes: Sequence[Any]) -> View:
    return x.expanded(sizes)


@entry(aten.slice.Tensor, view=True)
def _slice(t: Trace, x: View, at: int = 0, lo: int = 0, hi: int | None = None, step: int = 1) -> View:
    size = x.shape[at]
    if step != 1:
        raise SpecError(f"a slice with step {step}")
    if not isinstance(size, int):
        if (lo, hi is None or hi > 1 << 60) == (0, True):
            return x
        raise SpecError(f"a slice of the {size} places of a dimension that moves")
    ends = [n + size if n < 0 else min(n, size) for n in (lo or 0, size if hi is None else hi)]
    return x.sliced(at, *ends)


@entry(aten.select.int, view=True)
def _select(t: Trace, x: View, at: int, n: int) -> View:
    return x.sliced(at, n % x.shape[at], n % x.shape[at] + 1).squeezed([at])


@entry(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, view=True)
def _split(t: Trace, x: View, sizes: Any, at: int = 0) -> list[View]:
    size = x.shape[at]
    if isinstance(sizes, int):
        sizes = [min(sizes, size - n) for n in range(0, size, sizes)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [x.sliced(at, end - n, end) for n, end in zip(sizes, ends, strict=True)]


@entry(aten.unbind.int, view=True)
def _unbind(t: Trace, x: View, at: int = 0) -> list[View]:
    return [_select(t, x, at, n) for n in range(x.shape[at])]


@entry(aten.repeat_interleave.self_int, view=True)
def _repeat_interleave(
    t: Trace, x: View, times: int, at: int | None = None, *, output_size: int | None = None
) -> View:
    if at is None:
        raise SpecError("repeat_interleave of no dimension")
    return x.repeated(at, times)


@entry(operator.getitem, view=True)
def _getitem(t: Trace, x: Sequence[View], n: int) -> View:
    return x[n]
