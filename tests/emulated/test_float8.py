"""Linears of float8_e4m3fn on the emulator, and planted faults."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.float8 import FLOAT8, scaled
from tests.gpu.gemms import Case

CASE = Case("scaled", scaled, {"M": 70, "K": 144, "N": 72})
FAULTS = [
    ("rows have another row's scale", "T.rows + row", "T.rows + (row ^ 1)"),
    ("products are of bfloat16", "k32.f32.e4m3.e4m3", "k16.f32.bf16.bf16"),
    ("half of K is left out", "8 / Op::SLICES * slice", "0 * slice"),
]


@pytest.mark.parametrize("case", FLOAT8, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize(("what", "old", "new"), FAULTS, ids=[what for what, _, _ in FAULTS])
def test_a_fault_is_seen(what: str, old: str, new: str) -> None:
    def change(text: str) -> str:
        text = replaced(old, new)(text)
        return text.replace("1, 1, 1;", "1, 1, 1, 0, 0;") if "bf16" in new else text

    assert emulated(CASE, range(2), change) != ""
