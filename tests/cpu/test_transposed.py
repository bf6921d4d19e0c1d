"""Transposed convolutions on the CPU target: those of the GPU suite, and images of lines and of columns."""

from __future__ import annotations

import pytest

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.language import LANGUAGE, transposed
from tilegen.bench.accuracy import error_of
from tilegen.runtime.data import random_arguments

LEAST, MOST = 1e-6, 5e-3  # relative Frobenius error in float32, and in two bytes
CASES = [
    *(c for c in LANGUAGE if c.spec is transposed),
    Case("a line of 1000", transposed, {"B": 1, "H": 1, "W": 1000, "C": 17, "N": 1, "dtype": "float32"}),
    Case("a column of 17", transposed, {"W": 1, "H": 17, "C": 1, "N": 17, "size": 3, "padding": 1}),
    Case("tiles of few pixels", transposed, {"size": 4, "padding": 1}, {"tiles": {"c": (1, 3, 2, 7)}}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right(case: Case) -> None:
    given = random_arguments(case.program)
    found = tg.compile(case.program, "cpu", **case.options)(*given)
    wanted = tg.reference(case.program, *given)
    assert error_of((found,), (wanted,)) < (LEAST if found.element_size() == 4 else MOST)
