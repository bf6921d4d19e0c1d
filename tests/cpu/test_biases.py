"""What is added to the scores of attention, on the CPU and interpreted."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.ops import BIASES
from tilegen.runtime.data import random_arguments

SMALL = [c for c in BIASES if c.program.tensor("y").shape[1] < 100]


@pytest.mark.parametrize("case", BIASES, ids=lambda c: c.name)
def test_right_on_the_cpu(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_POISON", "1")
    arguments = random_arguments(case.program)
    found = tg.compile(case.program, "cpu", on=4)(*arguments)
    torch.testing.assert_close(found.float(), tg.reference(case.program, *arguments), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_what_another_op_makes_is_there_when_it_is_read(case: Case) -> None:
    """By clocks of all tiles, for each element."""
    arguments = random_arguments(case.program)
    found = tg.compile(case.program, "interpret", on=4)(*arguments)
    torch.testing.assert_close(found.float(), tg.reference(case.program, *arguments), rtol=1e-2, atol=1e-2)
