"""Operators on images: convolutions, pools, norms of batches and groups, upsampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilegen.errors import SpecError
from tilegen.frontend.value import Value
from tilegen.nn.aten_rows import numbers
from tilegen.nn.table import TABLE, Trace, as_image, entry, image_of
from tilegen.nn.views import View
from tilegen.ops import reduce
from tilegen.ops.conv2d import conv2d
from tilegen.ops.conv_transpose2d import conv_transpose2d
from tilegen.ops.gemm import linear
from tilegen.ops.group_norm import group_norm
from tilegen.ops.pointwise import pointwise
from tilegen.ops.pool import avg_pool2d, global_avg_pool, max_pool2d
from tilegen.ops.upsample import upsample

aten = torch.ops.aten
Norm = tuple[torch.Tensor, torch.Tensor]  # y·factor + shift of each channel


def _of_weights(
    t: Trace, w: Any, bias: torch.Tensor | None, norm: Norm | None, filters: int
) -> tuple[torch.Tensor, Value | None]:
    """A convolution's weight, whose dimension `filters` counts them, and its bias; a norm that follows in
    them."""
    if not isinstance(w, torch.Tensor):
        raise SpecError("a convolution by what is no weight")
    if norm is not None:
        factor, shift = norm
        shift = shift if bias is None else shift + bias.float() * factor
        along = [-1 if d == filters else 1 for d in range(w.dim())]
        w, bias = (w.float() * factor.view(along)).to(w.dtype), shift.to(w.dtype)
    return w, None if bias is None else t.weight(bias, "bias")


def convolved(
    t: Trace,
    x: View,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
    norm: Norm | None = None,
) -> View:
    """A convolution, and y·factor + shift for each of its channels where that follows it."""
    w, given = _of_weights(t, w, bias, norm, 0)
    each = x.of_images()
    if each is not None and groups == 1 and (*w.shape[2:], *_two(padding)) == (1, 1, 0, 0):  # of one pixel
        made = linear(each, t.weight(w.flatten(1), "weight"), given, name=t.name())
        return View.of(made).unsqueezed(-1).unsqueezed(-1)
    x = as_image(t, x)
    filters = t.weight(w.permute(0, 2, 3, 1), "weight")
    made = conv2d(
        image_of(x),
        filters,
        given,
        stride=_two(stride),
        padding=_two(padding),
        dilation=_two(dilation),
        groups=groups,
        name=t.name(),
    )
    return View.of(made, (0, 3, 1, 2))


def convolved_along(
    t: Trace,
    x: View,
    w: Any,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
    norm: Norm | None = None,
) -> View:
    """A convolution over one dimension, (B, C, T): one of images that are one pixel high."""
    if len(x.dims) != 3 or not isinstance(w, torch.Tensor):
        raise SpecError(f"a convolution of {x.shape}; expected (B, C, T), by a weight")
    across = ((1, *stride), (0, *padding), (1, *dilation))
    return convolved(t, x.unsqueezed(2), w.unsqueeze(2), bias, *across, groups, norm).squeezed([2])


def transposed(
    t: Trace,
    x: View,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    output_padding: Any = (0, 0),
    groups: int = 1,
    dilation: Any = (1, 1),
    norm: Norm | None = None,
) -> View:
    """A transposed convolution, likewise."""
    if groups != 1:
        raise SpecError(f"a transposed convolution in {groups} groups")
    w, given = _of_weights(t, w, bias, norm, 1)
    made = conv_transpose2d(
        image_of(x),
        t.weight(w.permute(1, 2, 3, 0), "weight"),
        given,
        stride=_two(stride),
        padding=_two(padding),
        output_padding=_two(output_padding),
        dilation=_two(dilation),
        name=t.name(),
    )
    return View.of(made, (0, 3, 1, 2))


TABLE[aten.conv1d.default] = convolved_along
TABLE[aten.conv2d.default] = convolved
TABLE[aten.conv_transpose2d.input] = transposed


def factors(
    w: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, var: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch norm as y = x·factor + shift, for each channel, in float32."""
    factor = (var.float() + eps).rsqrt() * (1.0 if w is None else w.float())
    return factor, (0.0 if bias is None else bias.float()) - mean.float() * factor


@entry(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    t: Trace, x: View, w: Any, bias: Any, mean: torch.Tensor, var: torch.Tensor, momentum: float, eps: float
) -> list[View]:
    if any(isinstance(v, View) for v in (w, bias, mean, var)):
        raise SpecError("a norm of batches by what are no weights")
    if len(x.dims) == 4:
        x = as_image(t, x)
        image_of(x)  # or it is refused
    elif x.columns() != 1:  # of rows (B, C), or (B, C, T)
        x = t.copied(x, (0, *range(2, len(x.dims)), 1))
    value = x.value
    given = [t.weight(v.float()) for v in factors(w, bias, mean, var, eps)]
    return [View(pointwise("e0 * e1 + e2", value, *given), x.dims)]


def _pooled(
    t: Trace, of: Callable[..., Value], x: View, window: Any, stride: Any, padding: Any, **how: Any
) -> View:
    windows = {"stride": _two(stride) if stride else None, "padding": _two(padding)}
    return View.of(of(image_of(as_image(t, x)), _two(window), **windows, **how, name=t.name()), (0, 3, 1, 2))


@entry(aten.max_pool2d.default)
def _max_pool(
    t: Trace, x: View, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> View:
    if any(n != 1 for n in (dilation if isinstance(dilation, (list, tuple)) else [dilation])):
        raise SpecError(f"max_pool2d with dilation {dilation}; expected 1")
    _refuse_more_windows(x, window, stride, padding, ceil)
    return _pooled(t, max_pool2d, x, window, stride, padding)


@entry(aten.avg_pool2d.default)
def _avg_pool(
    t: Trace,
    x: View,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    counted: bool = True,
    divisor: int | None = None,
) -> View:
    if divisor is not None:
        raise SpecError("avg_pool2d with divisor_override")
    _refuse_more_windows(x, window, stride, padding, ceil)
    return _pooled(t, avg_pool2d, x, window, stride, padding, count_include_pad=counted)


def _refuse_more_windows(x: View, window: Any, stride: Any, padding: Any, ceil: bool) -> None:
    """ceil_mode, where a window more comes of it, which hangs over the image."""
    for n, w, s, p in zip(x.shape[-2:], _two(window), _two(stride or window), _two(padding), strict=True):
        more = ceil and (n + 2 * p - w) % s  # whether so many pixels more than all windows have
        if more and ((n + 2 * p - w) // s + 1) * s < n + p:
            raise SpecError(f"a pool of {tuple(x.shape[-2:])} with ceil_mode, whose last window hangs over")


@entry(aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default)
def _upsample(t: Trace, x: View, size: Sequence[int] | None, *scales: Any) -> View:
    value = image_of(as_image(t, x))
    given = next((s for s in scales if isinstance(s, (list, tuple))), scales)
    wanted = tuple(size) if size else tuple(n * s for n, s in zip(x.shape[2:], given, strict=True))
    factor = [n / m for n, m in zip(wanted, x.shape[2:], strict=True)]
    if any(f != int(f) or f < 1 for f in factor):
        raise SpecError(f"an upsampling of {x.shape[2:]} to {wanted}; expected whole factors")
    return View.of(upsample(value, [int(f) for f in factor], name=t.name()), (0, 3, 1, 2))


@entry(aten.group_norm.default)
def _group_norm(
    t: Trace, x: View, groups: int, w: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> View:
    if len(x.dims) == 3:  # (B, C, T), one pixel high
        return _group_norm(t, x.unsqueezed(2), groups, w, bias, eps).squeezed([2])
    value = image_of(as_image(t, x))
    ones = torch.ones(value.shape[3], dtype=getattr(torch, value.dtype))
    given = (ones if w is None else w, torch.zeros_like(ones) if bias is None else bias)
    made = group_norm(value, groups, *map(t.weight, given, ("weight", "bias")), eps=eps, name=t.name())
    return View.of(made, (0, 3, 1, 2))


@entry(aten.adaptive_avg_pool2d.default)
def _adaptive_avg_pool(t: Trace, x: View, size: Sequence[int]) -> View:
    if tuple(size) != (1, 1):
        if tuple(size) == x.shape[2:]:
            return x
        each = list(zip(x.shape[2:], size, strict=True))
        if any(n % m for n, m in each):
            raise SpecError(f"an average pool of {x.shape[2:]} to {tuple(size)}; expected parts of one size")
        return _pooled(t, avg_pool2d, x, [n // m for n, m in each], (), 0)
    return _mean_of_image(t, as_image(t, x), True)


@entry(aten.mean.dim)
def _mean(
    t: Trace, x: View, over: Sequence[int] | None, keep: bool = False, *, dtype: torch.dtype | None = None
) -> View:
    if x.image() is not None and sorted(d % 4 for d in over or ()) == [2, 3]:
        return _mean_of_image(t, x, keep)
    return numbers(reduce.mean)(t, x, over, keep)


def _mean_of_image(t: Trace, x: View, keep: bool) -> View:
    view = View.of(global_avg_pool(image_of(x), name=t.name()))
    return view.unsqueezed(-1).unsqueezed(-1) if keep else view


def _two(given: Any) -> tuple[int, int]:
    both = (given, given) if isinstance(given, int) else tuple(given)
    return (both[0], both[0]) if len(both) == 1 else both
