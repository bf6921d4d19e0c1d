"""Plans whose norms are fused into linears, made for the H200, run by the CPU target and by the interpreter:
both know the op."""

from __future__ import annotations

import pytest

import tilegen as tg
from benchmarks.workloads import example
from tests.gpu.gemms import Case
from tests.gpu.ops import NORMED
from tilegen.bench.accuracy import error_of
from tilegen.bench.compare import outcome
from tilegen.ops.gemm import normed
from tilegen.runtime.data import random_arguments


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("case", NORMED[::2], ids=lambda c: c.name)
def test_against_float32(case: Case, target: str) -> None:
    arguments = random_arguments(case.program)
    kernel = tg.compile(case.program, target, on="h200", **case.options)
    assert sum(normed(b) for b in kernel.plan.bounds) == 2
    assert error_of(kernel(*arguments), tg.reference(case.program, *arguments)) < 5e-3


def test_a_layer() -> None:
    program = example("llama_layer", B=3, S_max=200, H=256, heads=4, kv_heads=2, D=64, I=512)
    arguments, given = random_arguments(program), random_arguments(program)
    kernel = tg.compile(program, "cpu", on="h200")
    assert sum(normed(b) for b in kernel.plan.bounds) == 2
    found = outcome(program, kernel(*arguments), arguments)
    assert error_of(found, outcome(program, tg.reference(program, *given), given)) < 5e-3
