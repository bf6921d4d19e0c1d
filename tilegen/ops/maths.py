"""The words of pointwise maths, one expression each, and what + - * / **, unary minus and < <= > >= of a
tensor mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilegen.errors import SpecError
from tilegen.frontend.call import number
from tilegen.frontend.value import OPERATORS, Value, caller
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


def add(a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = a + b. Both (…, N), or one of them a vector (N,), one column (…, 1) or a number; of one dtype, y
    too.

    Raises:
        SpecError: neither is a tensor, one has another shape or dtype, or a number is not finite.
    """
    return _applied("{} + {}", (a, b), "add", name)


def sub(a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = a - b. Both (…, N), or one of them a vector (N,), one column (…, 1) or a number; of one dtype, y
    too.

    Raises:
        SpecError: neither is a tensor, one has another shape or dtype, or a number is not finite.
    """
    return _applied("{} - {}", (a, b), "sub", name)


def mul(a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = a · b. Both (…, N), or one of them a vector (N,), one column (…, 1) or a number; of one dtype, y
    too.

    Raises:
        SpecError: neither is a tensor, one has another shape or dtype, or a number is not finite.
    """
    return _applied("{} * {}", (a, b), "mul", name)


def div(a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = a / b. Both (…, N), or one of them a vector (N,), one column (…, 1) or a number; of one dtype, y
    too.

    Raises:
        SpecError: neither is a tensor, one has another shape or dtype, or a number is not finite.
    """
    return _applied("{} / {}", (a, b), "div", name)


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


def maximum(a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = max(a, b); NaN where either is. Both (…, N), or one of them a vector (N,), one column (…, 1)
    or a number; of one dtype, y too.

    Raises:
        SpecError: neither is a tensor, one has another shape or dtype, or a number is not finite.

    Source: torch.maximum.
    """
    return _applied("maximum({}, {})", (a, b), "maximum", name)


def minimum(a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = min(a, b); NaN where either is. Both (…, N), or one of them a vector (N,), one column (…, 1)
    or a number; of one dtype, y too.

    Raises:
        SpecError: neither is a tensor, one has another shape or dtype, or a number is not finite.

    Source: torch.minimum.
    """
    return _applied("minimum({}, {})", (a, b), "minimum", name)


def where(condition: Value, a: Value | float, b: Value | float, *, name: str | None = None) -> Value:
    """y = a where the condition is not 0, else b.

    condition, as of x < 0, a and b: (…, N), or vectors (N,), columns (…, 1) or numbers beside one of that
    shape; of one dtype, y too.

    Raises:
        SpecError: none is a tensor of two dimensions, one has another shape or dtype, or a number is not
            finite.

    Source: torch.where.
    """
    return _applied("where({}, {}, {})", (condition, a, b), "where", name)


# --- operators ----------------------------------------------------------------------------------------------


def _applied(text: str, given: Sequence[Any], what: str, name: str | None = None) -> Value:
    """An expression of what is given: tensors, vectors and numbers, whichever stands first."""
    at = caller()
    for value in given:
        need(
            isinstance(value, Value) or plain(value),
            f"{what} of {value!r}: operands are tensors of this spec, or one is a finite number below 2³¹",
            at,
        )
    order = [n for n, value in enumerate(given) if isinstance(value, Value)]
    need(bool(order), f"{what} of {', '.join(map(repr, given))}: expected a tensor of this spec", at)
    order.sort(key=lambda n: (-len(given[n].shape), given[n].shape[-1] == 1))
    shown = (f"e{order.index(n)}" if n in order else repr(float(v)) for n, v in enumerate(given))
    return pointwise(text.format(*shown), *(given[n] for n in order), name=name, where=at)


def _operator(sign: str, text: str) -> Callable[[Any, Any], Value]:
    return lambda a, b: _applied(text, (a, b), f"a {sign} b")


def _product(a: Any, b: Any) -> Value:
    """Of a tensor and a number behind it a scale, which a linear before or behind may take over."""
    if isinstance(a, Value) and plain(b):
        return scale(a, b)
    return _applied("{} * {}", (a, b), "a * b")


def _power(x: Value, n: Any) -> Value:
    where = caller()
    if n not in (2, 3):
        raise SpecError(f"x ** {n!r}: expected a power of 2 or 3", where)
    return pointwise(" * ".join(["e0"] * int(n)), x, where=where)


OPERATORS.update({sign: _operator(sign, f"{{}} {sign} {{}}") for sign in "+-/"})
OPERATORS.update({"<": _operator("<", "less({}, {})"), "<=": _operator("<=", "less_equal({}, {})")})
OPERATORS.update({"*": _product, "**": _power})
