"""Words and operators of pointwise maths mean what torch's do, whatever stands on either side."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilegen as tg

M, N = 5, 12
WORDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (tg.tanh, torch.tanh),
    "exp": (tg.exp, torch.exp),
    "log": (lambda x: tg.log(tg.abs(x)), lambda x: x.abs().log()),
    "sqrt": (lambda x: tg.sqrt(tg.abs(x)), lambda x: x.abs().sqrt()),
    "rsqrt": (lambda x: tg.rsqrt(tg.abs(x)), lambda x: x.abs().rsqrt()),
    "abs": (tg.abs, torch.abs),
    "softplus": (tg.softplus, F.softplus),
    "hardswish": (tg.hardswish, F.hardswish),
    "leaky_relu": (lambda x: tg.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "clamp": (lambda x: tg.clamp(x, -0.5, 1.5), lambda x: x.clamp(-0.5, 1.5)),
    "unary minus": (operator.neg, operator.neg),
    "a power": (lambda x: x**3, lambda x: x**3),
    "where, of numbers": (lambda x: tg.where(x < 0, -2, 0.5), lambda x: torch.where(x < 0, -2.0, 0.5)),
    "maximum of a number": (lambda x: tg.maximum(x, 0.25), lambda x: x.clamp(min=0.25)),
    "minimum of a number, which stands first": (lambda x: tg.minimum(0.25, x), lambda x: x.clamp(max=0.25)),
}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
EXTREMA = {"maximum": (tg.maximum, torch.maximum), "minimum": (tg.minimum, torch.minimum)}
SIDES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "tensors": lambda of, x, y, v: of(x, y),
    "a vector on the right": lambda of, x, y, v: of(x, v),
    "a vector on the left": lambda of, x, y, v: of(v, x),
    "a number on the right": lambda of, x, y, v: of(x, 1.5),
    "a whole number on the left": lambda of, x, y, v: of(3, x),
}


def found_and_wanted(make: Any, want: Any, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """By the reference of a program, and by torch in float64."""

    @tg.spec
    def program() -> Any:
        x, y = (tg.input(n, (M, N), "float32") for n in "xy")
        return make(x, y, tg.weight("v", (N,), "float32"))

    torch.manual_seed(0)
    given = [scale * torch.randn(t.shape) for t in program().arguments]
    result = tg.reference(program(), *(a.clone() for a in given))
    assert isinstance(result, torch.Tensor)
    return result.double(), want(*(a.double() for a in given))


@pytest.mark.parametrize("word", WORDS)
def test_a_word_means_what_torch_means(word: str) -> None:
    ours, theirs = WORDS[word]
    found, wanted = found_and_wanted(lambda x, y, v: ours(x) * y + v, lambda x, y, v: theirs(x) * y + v)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("sign", SIGNS)
def test_an_operator_means_what_torch_means(sign: str, sides: str) -> None:
    def of(x: Any, y: Any, v: Any) -> Any:
        return SIDES[sides](SIGNS[sign], x, y, v)

    def ours(x: Any, y: Any, v: Any) -> Any:
        return of(x, y, v) + tg.scale(tg.add(y, v), 0.0)  # so that all are read

    found, wanted = found_and_wanted(ours, of)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("function", "sign"), [(tg.sub, "-"), (tg.div, "/")])
def test_functions_mean_what_operators_mean(function: Any, sign: str) -> None:
    found, wanted = found_and_wanted(
        lambda x, y, v: function(x, v) + y, lambda x, y, v: SIGNS[sign](x, v) + y
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("sign", COMPARED)
def test_a_comparison_is_one_where_torch_says_true(sign: str, sides: str) -> None:
    """Of whole numbers, so that some are equal."""

    def of(x: Any, y: Any, v: Any) -> Any:
        return SIDES[sides](COMPARED[sign], x, y, v)

    @tg.spec
    def program() -> Any:
        x, y = (tg.input(n, (M, N), "float32") for n in "xy")
        v = tg.weight("v", (N,), "float32")
        return of(x, y, v), y + v  # so that all are read

    torch.manual_seed(0)
    given = [torch.randint(-2, 6, t.shape).float() for t in program().arguments]
    found, _ = tg.reference(program(), *given)
    assert torch.equal(found, of(*given).float()) and 0 < found.sum() < M * N


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("word", EXTREMA)
def test_the_larger_and_the_smaller_are_torchs_and_nan_stays(word: str, sides: str) -> None:
    ours, theirs = EXTREMA[word]

    def tensors(a: Any, b: Any) -> Any:
        return theirs(torch.as_tensor(a, dtype=torch.float32), torch.as_tensor(b, dtype=torch.float32))

    @tg.spec
    def program() -> Any:
        x, y = (tg.input(n, (M, N), "float32") for n in "xy")
        v = tg.weight("v", (N,), "float32")
        return SIDES[sides](ours, x, y, v), y + v

    torch.manual_seed(0)
    x, y, v = torch.randn(M, N), torch.randn(M, N), torch.randn(N)
    x[0, 0] = y[1, 1] = v[2] = float("nan")
    given = [{"x": x, "y": y, "v": v}[t.name].clone() for t in program().arguments]
    found, _ = tg.reference(program(), *given)
    torch.testing.assert_close(found, SIDES[sides](tensors, x, y, v), equal_nan=True, rtol=0, atol=0)


WHERE = {
    "three tensors": lambda of, less, x, y, v: of(less(x, y), x, y),
    "a vector and a number": lambda of, less, x, y, v: of(less(v, x), v, 2.0),
    "a number and a tensor": lambda of, less, x, y, v: of(less(y, 0.5), -1.0, x),
    "a vector that decides": lambda of, less, x, y, v: of(v, x, y),
}


@pytest.mark.parametrize("how", WHERE)
def test_where_takes_what_the_condition_says(how: str) -> None:
    @tg.spec
    def program() -> Any:
        x, y = (tg.input(n, (M, N), "float32") for n in "xy")
        v = tg.weight("v", (N,), "float32")
        return WHERE[how](tg.where, operator.lt, x, y, v), x + y + v

    torch.manual_seed(0)
    x, y, v = torch.randn(M, N), torch.randn(M, N), torch.randint(0, 2, (N,)).float()
    given = [{"x": x, "y": y, "v": v}[t.name].clone() for t in program().arguments]

    def picked(c: Any, a: Any, b: Any) -> torch.Tensor:
        return torch.where(torch.as_tensor(c != 0), torch.as_tensor(a), torch.as_tensor(b)).expand(M, N)

    found, _ = tg.reference(program(), *given)
    assert torch.equal(found, WHERE[how](picked, operator.lt, x, y, v))
