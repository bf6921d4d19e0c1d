"""Linears by int8 weights on the CPU, the interpreter and the emulator, and from PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.int8 import INT8, dequantized, int8_mlp
from tilegen.bench.accuracy import error_of
from tilegen.bench.baselines import eager
from tilegen.runtime.data import random_arguments

TARGETS = ["cpu", "interpret"]
SMALL = [c for c in INT8 if c.sizes.get("M", 64) < 500]
DTYPES = ["bfloat16", "float16", "float32"]


@tg.spec
def decoded(K=256, dtype="bfloat16"):
    """The identity times weights."""
    return tg.linear(tg.input("x", (K, K), dtype), tg.weight("w", (2, K), "int8"), name="y")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", [*TARGETS, "cuda-emulated"])
def test_every_number_is_exact(target: str, dtype: str) -> None:
    numbers = torch.arange(-128, 128, dtype=torch.int8)
    w, x = (
        torch.stack([numbers, numbers.flip(0)]),
        torch.eye(256).to(getattr(torch, dtype)),
    )
    assert torch.equal(tg.compile(decoded(dtype=dtype), target=target)(x, w), w.T.to(x.dtype))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_right(case: Case, target: str) -> None:
    program = case.program
    given = random_arguments(program)
    assert error_of(tg.compile(program, target=target)(*given), tg.reference(program, *given)) < 5e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_size_that_moves(dtype: str) -> None:
    kernel = tg.compile(dequantized(M=tg.dim("M", max=70), K=80, N=40, dtype=dtype), target="cpu")
    for m in (1, 17, 70):
        program = dequantized(M=m, K=80, N=40, dtype=dtype)
        given = random_arguments(program)
        assert error_of(kernel(*given), tg.reference(program, *given)) < 5e-3


@pytest.mark.parametrize("program", [dequantized(), int8_mlp()], ids=lambda p: p.name)
def test_what_a_user_of_torch_would_write_is_right(program: tg.Program) -> None:
    given = random_arguments(program)
    assert error_of(eager(program, given)(*given), tg.reference(program, *given)) < 2e-2


class Int8Linear(torch.nn.Module):
    """As gpt-fast has it: y = x wᵀ · scales."""

    def __init__(self, k: int, n: int):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (n, k), dtype=torch.int8))
        self.register_buffer("scales", (torch.rand(n) * 0.01).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(dtype=x.dtype)) * self.scales


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            Int8Linear(72, 96),
            Int8Linear(72, 96),
            Int8Linear(96, 72),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def test_from_torch_keeps_its_bytes_and_scales_in_epilogues() -> None:
    block, x = Mlp().eval(), torch.randn(2, 5, 72).bfloat16()
    layer = tg.module.from_torch(block, x)
    assert error_of(layer(x), block(x)) < 1e-2
    assert sum(p.dtype is torch.int8 for p in layer.parameters()) == 3
    assert [op.kind for op in tg.plan(layer.program, "h200").graph.ops] == ["matmul"] * 3


def test_from_torch_computes_what_others_read() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 128, (40, 72), dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight.to(x.dtype) * 0.01)

    block, x = Scaled().eval(), torch.randn(3, 72)
    layer = tg.module.from_torch(block, x)
    assert error_of(layer(x), block(x)) < 1e-5 and [p.dtype for p in layer.parameters()] == [torch.float32]
