"""A reference that is asked for with the wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tilegen.errors import ArgumentError, SpecError
from tilegen.frontend.loader import sizes_of


@tg.spec
def sum_of(M=2, N=8, dtype="float32"):
    return tg.add(tg.input("x", (M, N), dtype), tg.input("y", (M, N), dtype))


X = torch.ones(2, 8)


@pytest.mark.parametrize(
    "given, named, words",
    [
        ((), {}, r"takes 2 tensors .* 0 were given: missing x, y"),
        ((X, X, X), {}, r"takes 2 tensors .* 3 were given"),
        ((X,), {"z": X}, r"the reference of sum_of has no argument 'z'"),
        (([1.0], X), {}, r"'x': expected a torch tensor \(2, 8\), given list"),
    ],
)
def test_wrong_arguments(given: tuple[Any, ...], named: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        tg.reference(sum_of(), *given, **named)


def test_arguments_by_name() -> None:
    assert torch.equal(tg.reference(sum_of(), X, y=2 * X), 3 * X)


@pytest.mark.parametrize("item", ["M=64,N=256", "M=64,128"])
def test_two_sizes_in_one(item: str) -> None:
    with pytest.raises(SpecError, match=rf"-s {item}: one value for each -s, as in -s M=64 -s H=256"):
        sizes_of(sum_of, [item])
