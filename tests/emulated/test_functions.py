"""Functions of an epilogue, as the text of a GPU's kernel has them, over all numbers that it may be given."""

from __future__ import annotations

import math

import pytest
import torch

import tilegen as tg


@tg.spec
def gelu(N=4096):
    return tg.gelu(tg.input("x", (1, N), "float32"), name="y")


@pytest.mark.parametrize("target", ["cuda-emulated", "cpu"])
def test_gelu_is_right_where_one_minus_erf_would_cancel(target: str) -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e30, -0.0, 0.0, 1e-30, 1e30])])
    x = torch.nn.functional.pad(x, (0, 4096 - len(x)))
    y = tg.compile(gelu(), target)(x[None])[0].double()
    wide = x.double()
    wanted = wide * torch.special.erfc(-wide / math.sqrt(2)) / 2
    assert ((y - wanted).abs() <= 1e-6 + 1e-6 * wanted.abs()).all()
    seen = wanted.abs() > 1e-12
    assert ((y - wanted).abs() <= 5e-4 * wanted.abs())[seen].all()


@pytest.mark.parametrize("target", ["cuda-emulated", "cpu"])
def test_gelu_keeps_what_is_no_number(target: str) -> None:
    x = torch.zeros(1, 4096)
    x[0, :2] = torch.tensor([math.nan, math.inf])
    y = tg.compile(gelu(), target)(x)[0]
    assert y[0].isnan() and y[1] == math.inf and (y[2:] == 0).all()
