"""An expression as C++: names that C++ has are prefixed, numbers beside operands are floats; all else stays
as it is."""

from __future__ import annotations

import pytest

from tilegen.codegen.expression import to_cpp


@pytest.mark.parametrize(
    "same",
    ["acc0", "silu((acc0 + e0))", "2 * e0 - 3", "batch_norm(e0, e1, e2, e3, e4, 1e-05)", "scale(e0, -0.5)"],
)
def test_what_cpp_reads_alike_stays_as_it_is(same: str) -> None:
    assert to_cpp(same, "tg_") == same


@pytest.mark.parametrize(
    ("expression", "cpp"),
    [
        ("exp(e0) / (1.0 + exp(e0))", "tg_exp(e0) / (1.0f + tg_exp(e0))"),
        ("e0 + -0.5", "e0 + -0.5f"),
        ("1e-07 * log(abs(acc0))", "1e-07f * tg_log(tg_abs(acc0))"),
        ("relu(e0 - 1.5)", "relu(e0 - 1.5f)"),
    ],
)
def test_what_it_reads_otherwise_is_told_otherwise(expression: str, cpp: str) -> None:
    assert to_cpp(expression, "tg_") == cpp
