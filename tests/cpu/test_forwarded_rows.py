"""Plans whose attentions are forwarded new rows, made for the H200, run by the CPU target and by the
interpreter: both know the op."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.ops import PASSED
from tests.shares import share
from tilegen.bench.accuracy import error_of
from tilegen.bench.compare import outcome
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.data import free_rows, random_arguments
from tilegen.targets.cpu.library import Library
from tilegen.targets.interpret.interpreter import STRATEGIES, Interpreter


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("case", share(PASSED, 2))
def test_against_float32(case: Case, target: str) -> None:
    """At the first, a middle and the last position; what the caches hold from there on is NaN."""
    program, plan = case.program, replace(case.plan(target=target), scheduling="dynamic")
    library = Library(plan) if target == "cpu" else None
    for n, position in enumerate((0, free_rows(program, "pos") // 2, free_rows(program, "pos"))):
        arguments, given = random_arguments(program), random_arguments(program)
        for t, a, b in zip(program.arguments, arguments, given, strict=True):
            if t.dtype == "int32":
                a.fill_(position), b.fill_(position)
            if t.role == "state":
                a[:, position:] = torch.nan
                b[:, position:] = 0.0
        kernel = Kernel(plan, tg.verify(plan), library or Interpreter(plan, STRATEGIES[n], n), 3)
        found = outcome(
            program,
            kernel(*arguments),
            [
                a.nan_to_num(0.0) if t.role == "state" else a
                for t, a in zip(program.arguments, arguments, strict=True)
            ],
        )
        assert error_of(found, outcome(program, tg.reference(program, *given), given)) < 5e-3
