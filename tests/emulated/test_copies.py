"""Elements in another order, by threads, on the emulator, and planted faults."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import lain_otherwise

ODD = Case("heads of 21", lain_otherwise, {"B": 2, "S": 9, "H": 2, "D": 21})
EIGHTS = Case("heads of 16", lain_otherwise, {"B": 2, "S": 16, "H": 2, "D": 16})
CASES = [ODD, EIGHTS, Case("one token", lain_otherwise, {"B": 1, "S": 2, "H": 1, "D": 5, "dtype": "float32"})]

FAULTS = [
    ("threads read beside their elements", "from + i * 32", "from + i * 31"),
    ("heads change their places", "n / 256 % 2 * 16", "(n / 256 % 2 ^ 1) * 16"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(2), target=target) == ""


@pytest.mark.parametrize(("what", "old", "new"), FAULTS, ids=[what for what, _, _ in FAULTS])
def test_a_fault_is_seen(what: str, old: str, new: str) -> None:
    assert emulated(EIGHTS, range(2), replaced(old, new)) != ""
