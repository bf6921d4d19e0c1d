"""Sums over images by threads, on the emulator: group_norm, and the mean of each channel."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import grouped, weighed

TENS = Case("groups of 10 channels", grouped, {"groups": 4, "B": 1})
EIGHTS = Case("groups of 8 channels", grouped, {"B": 1})
MEANS = Case("means", weighed, {"H": 9, "W": 7, "C": 24, "B": 2})
CASES = [
    TENS,
    EIGHTS,
    MEANS,
    Case("groups of one channel", grouped, {"groups": 8, "C": 8, "B": 1}),
    Case("a group of each parity", grouped, {"groups": 2, "C": 18, "B": 1, "dtype": "float16"}),
    Case("read anew", grouped, {"H": 57, "W": 57, "groups": 2, "B": 1}),
    Case("means of 21 channels", weighed, {"C": 21, "B": 1, "H": 40, "W": 3}),
]
FAULTS = [
    (TENS, "numbers behind a group are read", "n < COUNT);", "true);"),
    (TENS, "numbers behind a group are counted", "if (thread + 256 * h < count) f(", "f("),
    (EIGHTS, "weights are another group's", "T.g + group + c", "T.g + c"),
    (
        EIGHTS,
        "weights are written while they are read",
        "    tg_math_meet();  // what lay there has been read",
        "",
    ),
    (MEANS, "lines are summed twice", "line += PARTS", "line += PARTS - 1"),
    (MEANS, "sums are read before they are there", "sum.v[i]);\n    tg_math_meet();", "sum.v[i]);"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""
