"""Convolutions whose tiles slide over the whole filter, on the emulator: right whatever comes in between. A
filter position that reads other rows is seen, and so are pixels that are not loaded."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.ops import SLIDING

BY_NAME = {c.name: c for c in SLIDING}
PLAIN = BY_NAME["sliding, 96 channels, residual"]
DILATED = BY_NAME["sliding, 40 channels, dilation 2"]
FAULTS = [
    (PLAIN, "a filter line reads the line before", "A_LINE = 1408", "A_LINE = 1344"),
    (PLAIN, "filter positions read the pixel beside", "A_BLOCK = 64", "A_BLOCK = 128"),
    (DILATED, "a dilated filter reads its neighbours", "A_BLOCK = 128", "A_BLOCK = 64"),
    (PLAIN, "the lines above are not loaded", "5 * p - 1", "5 * p"),
    (PLAIN, "channels of the next step", "maps.conv_b, 32 * k", "maps.conv_b, 32 * k + 32"),
    (PLAIN, "the swizzle of wider rows", "128ull / ROW << 62", "1ull << 62"),
    (PLAIN, "groups of eight rows as far apart as wider ones", "8ull * ROW >> 4", "64ull"),
]


@pytest.mark.parametrize("case", SLIDING, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(2), replaced(old, new)) != ""
