"""What a layer refuses, in words that name the weight."""

from __future__ import annotations

import pytest
import torch
from test_arguments import given, pair

import tilegen as tg


def test_weights_that_do_not_fit() -> None:
    w1, w2 = (given()[name] for name in ("w1", "w2"))
    for weights, words in (
        ({"w1": w1}, "missing w2"),
        ({"w1": w1, "w22": w2}, r"'w22' is no weight of pair \(nearest: 'w2'\)"),
        ({"w1": w1, "w2": w2, "x": w1}, "'x' is no weight"),
        ({"w1": w1, "w2": 3}, "'w2' is a tensor, given int"),
    ):
        with pytest.raises(tg.ArgumentError, match=words):
            tg.module(pair(), **weights)  # type: ignore[arg-type]
    with pytest.raises(tg.SpecError, match="expected a Program, given the Spec pair"):
        tg.module(pair, w1=w1, w2=w2)  # type: ignore[arg-type]


def test_calls_that_do_not_fit() -> None:
    held = given()
    module = tg.module(pair(), w1=held["w1"], w2=held["w2"])
    with pytest.raises(tg.ArgumentError, match=r"pair takes 1 tensors \(x \(4, 8\)\), 2 were given"):
        module(held["x"], held["x"])
    with pytest.raises(tg.ArgumentError, match="missing x"):
        module()
    with pytest.raises(tg.ArgumentError, match=r"'x': expected shape \(4, 8\), given \(3, 8\)"):
        module(torch.randn(3, 8))
    with pytest.raises(tg.ArgumentError, match="'w1': expected dtype float32, given float16"):
        module.half()(held["x"])
