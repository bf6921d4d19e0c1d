"""What pointwise words and operators refuse, and what they say."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest

import tilegen as tg


def refused(make: Callable[[Any, Any], Any], *words: str) -> None:
    @tg.spec
    def program() -> Any:
        return make(tg.input("x", (4, 8), "float32"), tg.input("h", (4, 8), "float16"))

    with pytest.raises(tg.SpecError) as caught:
        program()
    assert "test_maths_failures.py:" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("other", ["y", None, math.inf, True, [1.0]], ids=repr)
@pytest.mark.parametrize(
    "sign", [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.ge, tg.maximum]
)
def test_an_operator_takes_tensors_and_finite_numbers(sign: Any, other: Any) -> None:
    refused(lambda x, h: sign(x, other), repr(other), "a finite number")


def test_dtypes_are_the_same() -> None:
    refused(lambda x, h: x - h, "'h' is float16", "one dtype")


def test_powers_are_two_or_three() -> None:
    refused(lambda x, h: x**0.5, "0.5", "2 or 3")


def test_clamps_ends_are_in_order_and_numbers() -> None:
    refused(lambda x, h: tg.clamp(x, 1.0, -1.0), "at most high", "1.0")
    refused(lambda x, h: tg.clamp(x, -math.inf, 1.0), "clamp: low", "finite")


def test_where_picks_tensors_and_numbers_by_a_tensor() -> None:
    refused(lambda x, h: tg.where(True, x, 0.0), "where of True", "a finite number")
    refused(lambda x, h: tg.where(x < 0, h, 0.0), "'h' is float16", "one dtype")
    refused(lambda x, h: tg.where(1.0, 2.0, 3.0), "where of 1.0, 2.0, 3.0", "expected a tensor")
    refused(lambda x, h: tg.minimum(1.0, 2.0), "minimum of 1.0, 2.0", "expected a tensor")


def test_a_slope_is_a_number() -> None:
    refused(lambda x, h: tg.leaky_relu(x, x), "leaky_relu: slope", "finite")
