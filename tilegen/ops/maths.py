"""The words of pointwise maths, one expression each, and what + - * / ** and unary minus of a tensor
mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilegen.errors import SpecError
from tilegen.frontend.spec import OPERATORS, Value, caller, number
from tilegen.ops.base import need
from tilegen.ops.pointwise import plain, pointwise


def gelu(x: Value, *, approximate: str = "none", name: str | None = None) -> Value:
    """y = x·Φ(x); approximate="tanh": y = ½x(1 + tanh(√(2/π)(x + 0.044715x³))).

    x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: approximate is neither "none" nor "tanh".

    Source: arXiv 1606.08415; torch.nn.functional.gelu.
    """
    where = caller()
    need(
        approximate in ("none", "tanh"),
        f"gelu: approximate is 'none' or 'tanh', given {approximate!r}",
        where,
    )
    return pointwise("gelu_tanh(e0)" if approximate == "tanh" else "gelu_erf(e0)", x, name=name, where=where)


def relu(x: Value, *, name: str | None = None) -> Value:
    """y = max(x, 0). x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("relu(e0)", x, name=name)


def silu(x: Value, *, name: str | None = None) -> Value:
    """y = x / (1 + exp(-x)). x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("silu(e0)", x, name=name)


def sigmoid(x: Value, *, name: str | None = None) -> Value:
    """y = 1 / (1 + exp(-x)). x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("sigmoid(e0)", x, name=name)


def tanh(x: Value, *, name: str | None = None) -> Value:
    """y = tanh(x). x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("tanh(e0)", x, name=name)


def exp(x: Value, *, name: str | None = None) -> Value:
    """y = e^x. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("exp(e0)", x, name=name)


def log(x: Value, *, name: str | None = None) -> Value:
    """y = ln x; NaN where x < 0. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("log(e0)", x, name=name)


def sqrt(x: Value, *, name: str | None = None) -> Value:
    """y = √x; NaN where x < 0. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("sqrt(e0)", x, name=name)


def rsqrt(x: Value, *, name: str | None = None) -> Value:
    """y = 1/√x; NaN where x < 0. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("rsqrt(e0)", x, name=name)


def abs(x: Value, *, name: str | None = None) -> Value:
    """y = |x|. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("abs(e0)", x, name=name)


def softplus(x: Value, *, name: str | None = None) -> Value:
    """y = ln(1 + e^x). x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.
    """
    return pointwise("softplus(e0)", x, name=name)


def hardswish(x: Value, *, name: str | None = None) -> Value:
    """y = x · min(max(x + 3, 0), 6) / 6. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: x is no tensor of this spec, or has one dimension.

    Source: arXiv 1905.02244; torch.nn.functional.hardswish.
    """
    return pointwise("hardswish(e0)", x, name=name)


def leaky_relu(x: Value, slope: float = 0.01, *, name: str | None = None) -> Value:
    """y = x where x ≥ 0, else slope · x. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: slope is no finite number.
    """
    where = caller()
    return pointwise(
        f"leaky_relu(e0, {number('leaky_relu: slope', slope, where)!r})", x, name=name, where=where
    )


def clamp(x: Value, low: float, high: float, *, name: str | None = None) -> Value:
    """y = min(max(x, low), high); a NaN stays. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: low or high is no finite number, or low is above high.
    """
    where = caller()
    ends = number("clamp: low", low, where), number("clamp: high", high, where)
    need(ends[0] <= ends[1], f"clamp: low is at most high, given {low!r} and {high!r}", where)
    return pointwise(f"clamp(e0, {ends[0]!r}, {ends[1]!r})", x, name=name, where=where)


def add(a: Value, b: Value, *, name: str | None = None) -> Value:
    """y = a + b. a (…, N); b of a's shape, or a vector (N,); all of one dtype.

    Raises:
        SpecError: b has another shape or dtype.
    """
    return pointwise("e0 + e1", a, b, name=name)


def sub(a: Value, b: Value, *, name: str | None = None) -> Value:
    """y = a - b. a (…, N); b of a's shape, or a vector (N,); all of one dtype.

    Raises:
        SpecError: b has another shape or dtype.
    """
    return pointwise("e0 - e1", a, b, name=name)


def mul(a: Value, b: Value, *, name: str | None = None) -> Value:
    """y = a · b. a (…, N); b of a's shape, or a vector (N,); all of one dtype.

    Raises:
        SpecError: b has another shape or dtype.
    """
    return pointwise("e0 * e1", a, b, name=name)


def div(a: Value, b: Value, *, name: str | None = None) -> Value:
    """y = a / b. a (…, N); b of a's shape, or a vector (N,); all of one dtype.

    Raises:
        SpecError: b has another shape or dtype.
    """
    return pointwise("e0 / e1", a, b, name=name)


def scale(x: Value, factor: float, *, name: str | None = None) -> Value:
    """y = factor · x. x of at least two dimensions; y of its shape and dtype.

    Raises:
        SpecError: factor is not a finite number.
    """
    where = caller()
    need(
        isinstance(factor, (int, float)) and math.isfinite(factor),
        f"scale: the factor is a finite number, given {factor!r}",
        where,
    )
    return pointwise(f"scale(e0, {float(factor)!r})", x, name=name, where=where)


def batch_norm(
    x: Value, mean: Value, var: Value, w: Value, bias: Value, *, eps: float = 1e-5, name: str | None = None
) -> Value:
    """y = (x - mean) · w / √(var + eps) + bias over the last dimension, the channels; for inference only.

    x (…, C), the others (C,), of one dtype; y of x's shape and dtype.

    Raises:
        SpecError: a vector is not (C,), the dtypes differ, or eps is not positive.

    Source: arXiv 1502.03167; torch.nn.functional.batch_norm with training=False.
    """
    where = caller()
    eps = number("batch_norm: eps", eps, where, positive=True)
    return pointwise(
        f"batch_norm(e0, e1, e2, e3, e4, {eps!r})", x, mean, var, w, bias, name=name, where=where
    )


# --- operators ----------------------------------------------------------------------------------------------


def _arithmetic(sign: str) -> Callable[[Any, Any], Value]:
    """a sign b, of which one may be a number, or a vector beside rows."""

    def of(a: Any, b: Any) -> Value:
        where = caller()
        for value in (a, b):
            expected = "expected a tensor of this spec or a finite number below 2³¹"
            need(isinstance(value, Value) or plain(value), f"a tensor {sign} {value!r}: {expected}", where)
        if plain(a):
            return pointwise(f"{float(a)!r} {sign} e0", b, where=where)
        if plain(b):
            return scale(a, b) if sign == "*" else pointwise(f"e0 {sign} {float(b)!r}", a, where=where)
        if len(a.shape) == 1 < len(b.shape):
            return pointwise(f"e1 {sign} e0", b, a, where=where)
        return pointwise(f"e0 {sign} e1", a, b, where=where)

    return of


def _power(x: Value, n: Any) -> Value:
    where = caller()
    if n not in (2, 3):
        raise SpecError(f"x ** {n!r}: expected a power of 2 or 3", where)
    return pointwise(" * ".join(["e0"] * int(n)), x, where=where)


OPERATORS.update({sign: _arithmetic(sign) for sign in "+-*/"} | {"**": _power})
