"""Linears by int8 weights on the emulator, and planted faults."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.int8 import INT8, dequantized

FEW = Case("few rows", dequantized, {"M": 7, "K": 1104, "N": 72})
ODD = Case("rows of 77", dequantized, {"M": 7, "K": 77, "N": 72})
FLOATS = Case("float16", dequantized, {"M": 7, "K": 80, "N": 72, "dtype": "float16"})
SINGLE = Case("float32", dequantized, {"M": 7, "K": 80, "N": 72, "dtype": "float32"})
FAULTS = [
    (FEW, "negative numbers lack their sign", "(v & 0xff80ff80u) | 0x80008000u", "0xc300c300u"),
    (FLOATS, "numbers are one too large", "0xe480e480u", "0xe47fe480u"),
    (SINGLE, "numbers are one too large", "8388736.0f", "8388735.0f"),
    (FEW, "lanes take other k of weights", "PART / 4 * (lane % 4)", "PART / 4 * (lane % 4 ^ 1)"),
    (FEW, "columns have another column's scale", "T.columns + column", "T.columns + (column ^ 8)"),
    (FEW, "a part of k is left out", "other < DEEP", "other < DEEP - 1"),
    (FEW, "sums are read too early", "  tg_math_meet();\n  if (part == 0) {", "  if (part == 0) {"),
    (FEW, "all parts store", "if (part == 0 && ", "if ("),
    (ODD, "numbers behind a row are read", "there && k + at + byte < K", "there"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", INT8, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""
