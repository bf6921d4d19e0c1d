"""Linears of float8_e4m3fn on the CPU and the interpreter, beside torch's own conversion."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu.float8 import F8, FLOAT8, scaled
from tests.gpu.gemms import Case
from tilegen.bench.accuracy import error_of
from tilegen.runtime.data import random_arguments
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.packing import packed_once, unpack

TARGETS = ["cpu", "interpret"]


@tg.spec
def decoded(K=256):
    """A row each of K numbers, times the identity."""
    return tg.linear(tg.input("x", (1, K), F8), tg.weight("w", (K, K), F8), dtype="float32", name="y")


def codes() -> tuple[torch.Tensor, torch.Tensor]:
    """Every number that a byte can be but NaN, which no sum of products would keep apart; the identity."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[None]
    kept = torch.where(numbers.float().isnan(), torch.zeros(()), numbers.float()).to(torch.float8_e4m3fn)
    return kept, torch.eye(256).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("target", [*TARGETS, "cuda-emulated"])
def test_every_number_is_what_torch_says(target: str) -> None:
    x, w = codes()
    assert torch.equal(tg.compile(decoded(), target=target)(x, w), x.float())


@pytest.mark.parametrize("target", TARGETS)
def test_a_nan_stays(target: str) -> None:
    x = torch.zeros(2, 32)
    x[1, 5] = float("nan")
    w = torch.ones(16, 32).to(torch.float8_e4m3fn)

    @tg.spec
    def product():
        return tg.linear(tg.input("x", (2, 32), F8), tg.weight("w", (16, 32), F8), name="y")

    y = tg.compile(product(), target=target)(x.to(torch.float8_e4m3fn), w)
    assert y[0].eq(0).all() and y[1].isnan().all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", FLOAT8, ids=lambda c: c.name)
def test_right(case: Case, target: str) -> None:
    program = case.program
    given = random_arguments(program)
    assert error_of(tg.compile(program, target=target)(*given), tg.reference(program, *given)) < 5e-3


@pytest.mark.parametrize("m", [3, 100])
def test_packed_weights_hold_both_numbers_of_a_pair(m: int) -> None:
    """The emulated kernel takes what a GPU's prepare() lays out, and unpack() brings it back."""
    program = scaled(M=m, K=528, N=72)
    named = dict(zip((t.name for t in program.arguments), random_arguments(program), strict=True))
    plan = tg.plan(program, "h200")
    generated = generate(plan, frozenset({"w"}))
    assert [op.packing.tensors for _, op in generated.packed if op.packing] == [("w",)]
    products = dict(generated.packed)
    packed = packed_once(products, {"w": named["w"]}, {})
    back = torch.zeros_like(named["w"])
    unpack(back, "w", products, packed)
    assert torch.equal(back.view(torch.uint8), named["w"].view(torch.uint8))
