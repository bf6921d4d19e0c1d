"""Operators element by element."""

from __future__ import annotations

import itertools
from typing import Any

import sympy as sp
import torch
from torch._subclasses import FakeTensor

from tilegen.errors import SpecError
from tilegen.graph.fuse_epilogues import renumber
from tilegen.nn import patterns
from tilegen.nn.aten_views import seen
from tilegen.nn.strided import Strided
from tilegen.nn.table import TABLE, Entry, Trace, entry
from tilegen.nn.views import View
from tilegen.ops.maths import clamp, gelu, leaky_relu, maximum, minimum, softplus
from tilegen.ops.pointwise import pointwise

aten = torch.ops.aten


@entry(aten.gelu.default)
def _gelu(t: Trace, x: View, *, approximate: str = "none") -> View:
    return View(gelu(x.value, approximate=approximate), x.dims)


@entry(patterns.gelu_tanh)
def _gelu_tanh(t: Trace, x: View) -> View:
    return View(gelu(x.value, approximate="tanh"), x.dims)


def _maps(expression: str) -> Entry:
    return lambda t, x: View(pointwise(expression, x.value), x.dims)


TABLE |= {
    aten.relu.default: _maps("relu(e0)"),
    aten.silu.default: _maps("silu(e0)"),
    aten.sigmoid.default: _maps("sigmoid(e0)"),
    aten.neg.default: _maps("scale(e0, -1.0)"),
    aten.tanh.default: _maps("tanh(e0)"),
    aten.exp.default: _maps("exp(e0)"),
    aten.log.default: _maps("log(e0)"),
    aten.sqrt.default: _maps("sqrt(e0)"),
    aten.rsqrt.default: _maps("rsqrt(e0)"),
    aten.abs.default: _maps("abs(e0)"),
    aten.reciprocal.default: _maps("1.0 / e0"),
    aten.hardswish.default: _maps("hardswish(e0)"),
    aten.hardsigmoid.default: _maps(f"clamp(scale(e0 + 3.0, {1 / 6!r}), 0.0, 1.0)"),
}


@entry(aten.softplus.default)
def _softplus(t: Trace, x: View, beta: float = 1.0, threshold: float = 20.0) -> View:
    if beta != 1 or threshold < 20:
        raise SpecError(f"softplus with beta = {beta} and threshold = {threshold}; expected 1 and 20")
    return View(softplus(x.value), x.dims)


@entry(aten.leaky_relu.default)
def _leaky_relu(t: Trace, x: View, slope: float = 0.01) -> View:
    return View(leaky_relu(x.value, slope), x.dims)


@entry(aten.hardtanh.default)
def _hardtanh(t: Trace, x: View, low: float = -1.0, high: float = 1.0) -> View:
    return View(clamp(x.value, low, high), x.dims)


@entry(aten.clamp.default)
def _clamp(t: Trace, x: View, low: float | None = None, high: float | None = None) -> View:
    if low is not None and high is not None:
        return View(clamp(x.value, low, high), x.dims)
    if low is not None:
        return View(maximum(x.value, low), x.dims)
    if high is not None:
        return View(minimum(x.value, high), x.dims)
    raise SpecError("clamp with no end")


@entry(aten.clamp_min.default)
def _clamp_min(t: Trace, x: View, low: float) -> View:
    return _clamp(t, x, low)


@entry(aten.clamp_max.default)
def _clamp_max(t: Trace, x: View, high: float) -> View:
    return _clamp(t, x, None, high)


@entry(aten.maximum.default)
def _maximum(t: Trace, a: Any, b: Any) -> View:
    return each(t, "maximum(e0, e1)", a, b) if isinstance(a, View) else each(t, "maximum(e0, e1)", b, a)


@entry(aten.minimum.default)
def _minimum(t: Trace, a: Any, b: Any) -> View:
    return each(t, "minimum(e0, e1)", a, b) if isinstance(a, View) else each(t, "minimum(e0, e1)", b, a)


ROOTS: dict[float, str] = {0.5: "sqrt(e0)", -0.5: "rsqrt(e0)", -1: "1.0 / e0"}


@entry(aten.pow.Tensor_Scalar)
def _pow(t: Trace, x: View, n: float) -> View:
    if n in ROOTS:
        return View(pointwise(ROOTS[n], x.value), x.dims)
    if n not in (2, 3, 4):
        raise SpecError(f"a power of {n}; expected 2, 3, 4, or one of {', '.join(map(str, ROOTS))}")
    return View(pointwise(" * ".join(["e0"] * int(n)), x.value), x.dims)


def each(t: Trace, expression: str, a: View, b: Any) -> View:
    """An expression over e0 = a and e1 = b: a number, a weight of a's columns or that spreads to a, a tensor
    like a, or one column of one of them, or a number for each channel of an image."""
    if isinstance(b, sp.Expr):
        raise SpecError(f"a tensor and the number {b}, a size that moves")
    if isinstance(b, torch.Tensor):
        for _ in range(b.dim() - len(a.dims)):
            a = a.unsqueezed(0)
        if b.numel() == 1 and type(b) is not FakeTensor:
            b = b.item()
    if isinstance(b, (int, float)):
        return View(pointwise(expression.replace("e1", repr(float(b))), a.value), a.dims)
    if isinstance(b, torch.Tensor):
        if (columns := of_columns(a, b)) is not None:
            return View(pointwise(expression, a.value, t.weight(columns)), a.dims)
        frozen = all(isinstance(n, int) for n in a.shape)
        if not frozen or torch.broadcast_shapes(b.shape, a.shape) != a.shape:  # type: ignore[no-untyped-call]
            raise SpecError(f"a tensor {a.shape} and a weight {tuple(b.shape)} element by element")
        a = a if a.is_(View.of(a.value)) else t.copied(a)
        return View(pointwise(expression, a.value, t.weight(b.expand(a.shape))), a.dims)
    if a.beside(b) and 1 in (a.width, b.width) and a.width != b.width:
        wide, column = (a, b) if b.width == 1 else (b, a)
        names = {"e0": "e0", "e1": "e1"} if wide is a else {"e0": "e1", "e1": "e0"}
        return View(pointwise(renumber(expression, names), wide.value, column.value), wide.dims)
    turned = {"e0": "e1", "e1": "e0"}
    for images, vectors, names in ((a, b, {}), (b, a, turned)):
        pixels, each = images.image(), vectors.of_images()
        if pixels is not None and each is not None and (pixels.shape[0], pixels.shape[3]) == each.shape:
            return View(pointwise(renumber(expression, names), pixels, each), images.dims)
    if not a.is_(b):
        a, b = alike(t, a, b)
    return View(pointwise(expression, a.value, b.value), a.dims)


def of_columns(a: View, b: torch.Tensor) -> torch.Tensor | None:
    """A weight as a number for each column of a's tensor: one of (C, 1, 1) beside images (B, C, H, W)."""
    if not isinstance(a.width, int):
        return None
    if b.numel() == 1:
        return b.reshape(1).expand(a.width)
    at = a.columns()
    if at is None or b.numel() != a.width or b.dim() > len(a.dims):
        return None
    sizes = (*(1 for _ in a.dims[b.dim() :]), *b.shape)
    return b.reshape(a.width) if sizes[at] == a.width else None


def alike(t: Trace, a: View, b: View) -> tuple[View, View]:
    """Both as tensors that lie alike: b as a does where that is of their shape, else copies of both."""
    pairs = itertools.zip_longest(reversed(a.shape), reversed(b.shape), fillvalue=1)
    shape = tuple(m if n == 1 else n for m, n in pairs)[::-1]
    x, y = Strided.of(a).expanded(shape), Strided.of(b).expanded(shape)
    if x.shape != y.shape:
        raise SpecError(f"{a.shape} of {a.value} and {b.shape} of {b.value} element by element")
    inside = [d for d, _ in sorted(enumerate(a.atoms), key=lambda n: n[1].place)]
    if shape != a.shape or any(not atom.place for atom in a.atoms):
        return t.copied(x), t.copied(y)
    pieces = seen(t, y, lambda v: v.reshaped([atom.size for atom in a.atoms])).permuted(inside)
    made = t.copied(seen(t, pieces, lambda v: v.reshaped(a.value.shape)))
    return a, View(made.value, a.dims)


@entry(aten.add.Tensor)
def _add(t: Trace, a: Any, b: Any, *, alpha: float = 1) -> View:
    if alpha != 1:
        raise SpecError(f"a sum with alpha = {alpha}")
    return each(t, "e0 + e1", a, b) if isinstance(a, View) else each(t, "e0 + e1", b, a)


@entry(aten.sub.Tensor)
def _sub(t: Trace, a: Any, b: Any, *, alpha: float = 1) -> View:
    if alpha != 1:
        raise SpecError(f"a difference with alpha = {alpha}")
    return each(t, "e0 - e1", a, b) if isinstance(a, View) else each(t, "e1 - e0", b, a)


@entry(aten.addcmul.default)
def _addcmul(t: Trace, a: Any, b: Any, c: Any, *, value: float = 1) -> View:
    if isinstance(b, torch.Tensor) and isinstance(c, torch.Tensor):
        return _add(t, a, b * c * value)
    product = _mul(t, b, c)
    return _add(t, a, product if value == 1 else _mul(t, product, value))


@entry(aten.rsub.Scalar)
def _rsub(t: Trace, a: View, b: float, alpha: float = 1) -> View:
    return _sub(t, b, a, alpha=alpha)


@entry(aten.mul.Tensor)
def _mul(t: Trace, a: Any, b: Any) -> View:
    return each(t, "e0 * e1", a, b) if isinstance(a, View) else each(t, "e0 * e1", b, a)


@entry(aten.div.Tensor)
def _div(t: Trace, a: Any, b: Any) -> View:
    if isinstance(a, View) and isinstance(b, View):
        return each(t, "e0 / e1", a, b)
    if isinstance(b, (int, float)) and not b:
        raise SpecError("a division by zero")
    return each(t, "e0 * e1", a, 1 / b) if isinstance(a, View) else each(t, "e1 / e0", b, a)
