"""Norms of the Hopper kernel where rounding shows."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg


@tg.spec
def normed(M=8, H=1000, dtype="bfloat16"):
    x, w, bias = tg.input("x", (M, H), dtype), tg.weight("w", (H,), dtype), tg.weight("bias", (H,), dtype)
    return tg.layer_norm(x, w, bias, eps=1e-5, name="y")


@pytest.mark.parametrize("columns", [1000, 896, 768])
def test_a_row_of_equal_numbers_is_normalised_to_the_bias(columns: int) -> None:
    """Its mean is that number, whatever a reciprocal of the columns rounds to."""
    w, bias = torch.randn(2, columns).bfloat16()
    x = torch.tensor([322.0, 41216.0, 1.0, -2.25, 0.0, 7.0, 0.375, 96.0]).bfloat16()[:, None]
    kernel = tg.compile(normed(H=columns), target="cuda-emulated")
    assert torch.equal(kernel(x.expand(8, columns).contiguous(), w, bias), bias.expand(8, columns))
