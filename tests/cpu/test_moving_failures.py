"""What a size that moves refuses, and in which words."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tilegen.errors import ArgumentError, PlanError, SpecError, TilegenError


@tg.spec
def two(M=8, K=32, N=32):
    x = tg.input("x", (M, K))
    return tg.linear(tg.linear(x, tg.weight("w1", (N, K)), name="up"), tg.weight("w2", (K, N)), name="down")


@pytest.fixture(scope="module")
def kernel():
    return tg.compile(two(M=tg.dim("M", max=100)), "cpu")


W = torch.zeros(32, 32, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "largest", "said"),
    [
        ("2M", 4, "ASCII identifier"),
        ("M", 0, "from 1 to"),
        ("M", 2.0, "given 2.0"),
        ("M", True, "given True"),
    ],
)
def test_a_dimension_has_a_name_and_a_largest_value(name, largest, said) -> None:
    with pytest.raises(SpecError, match=said):
        tg.dim(name, max=largest)


def test_one_size_moves() -> None:
    @tg.spec
    def pair(M, S):
        x = tg.input("x", (M, 32))
        y = tg.input("y", (S, 32))
        w = tg.weight("w", (32, 32))
        return tg.linear(x, w), tg.linear(y, w)

    with pytest.raises(SpecError, match="M and S move; one size of a program may"):
        tg.compile(pair(tg.dim("M", max=4), tg.dim("S", max=4)), "cpu")


def test_weights_do_not_move() -> None:
    with pytest.raises(SpecError, match="'w1' has shape .* a weight does not move"):
        tg.compile(two(N=tg.dim("N", max=64)), "cpu")


@pytest.mark.parametrize("rows", [101, 5000])
def test_a_size_beyond_the_largest_is_refused(kernel, rows) -> None:
    with pytest.raises(ArgumentError, match=rf"0 ≤ M ≤ 100, given \({rows}, 32\)"):
        kernel(torch.zeros(rows, 32, dtype=torch.bfloat16), W, W)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            torch.zeros(4, 4, 32, dtype=torch.bfloat16),
            r"'x': expected a tensor \(M, 32\), given \(4, 4, 32\)",
        ),
        (3, "given int"),
        (torch.zeros(4, 31, dtype=torch.bfloat16), r"'x': expected shape \(4, 32\), given \(4, 31\)"),
        (torch.zeros(4, 32), "expected dtype bfloat16"),
    ],
)
def test_what_does_not_fit_is_named(kernel, given, said) -> None:
    with pytest.raises(ArgumentError, match=said):
        kernel(given, W, W)


def test_arguments_are_counted(kernel) -> None:
    with pytest.raises(ArgumentError, match="missing w2"):
        kernel(torch.zeros(4, 32, dtype=torch.bfloat16), W)


def test_what_moves_cannot_be_fixed(kernel) -> None:
    with pytest.raises(ArgumentError, match=r"'x' \(M, 32\) has a size that moves"):
        kernel.prepare(x=torch.zeros(4, 32, dtype=torch.bfloat16))


@pytest.mark.parametrize("size", [0, 101, 2.0])
def test_there_is_a_plan_for_each_size_and_no_other(kernel, size) -> None:
    with pytest.raises(PlanError, match=r"expected 1 … 100"):
        kernel.plan.at(size)


def test_single_launches_do_not_follow() -> None:
    with pytest.raises(TilegenError):
        tg.compile(two(M=tg.dim("M", max=100)), "cpu", lowering="multi_launch")


def test_a_dimension_of_many_values_in_one_shape_is_solved_or_refused() -> None:
    @tg.spec
    def doubled(B=2):
        x = tg.input("x", (2 * B, 32))
        return tg.linear(x, tg.weight("w", (32, 32)), name="y")

    kernel = tg.compile(doubled(B=tg.dim("B", max=9)), "cpu")
    assert kernel(torch.zeros(6, 32, dtype=torch.bfloat16), W).shape == (6, 32)
    with pytest.raises(ArgumentError, match=r"expected shape \(2\*B, 32\)"):
        kernel(torch.zeros(5, 32, dtype=torch.bfloat16), W)
