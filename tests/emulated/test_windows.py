"""Attention with windows and soft caps, on the emulator, and planted faults."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.ops import WINDOWS, cached, windowed

WINDOW = Case("a window", windowed, {"B": 1, "S": 300, "window": 70})
CAP = Case("a cap", windowed, {"B": 1, "S": 70, "window": 0, "cap": 1.0})
CACHES = Case("caches", cached, {"B": 1, "S": 3, "window": 90})
FAULTS = [
    ("sm_90a", WINDOW, "a query sees the key before its window", "% 2 <= before[", "% 2 < before["),
    (
        "sm_90a",
        WINDOW,
        "a window's first block is left out",
        "tg_max(limit - 69, 0) / 128",
        "tg_max(limit + 59, 0) / 128",
    ),
    ("sm_90a", WINDOW, "the blocks of another window are loaded", " + 128 * from", ""),
    ("sm_90a", CACHES, "a query sees the key before its window", "% 2 <= before[", "% 2 < before["),
    ("sm_90a", CAP, "scores are not capped", "if constexpr (Op::CAPPED)", "if constexpr (false)"),
    (
        "sm_80",
        WINDOW,
        "a query sees the key before its window",
        "limit[m][half] - P::WINDOW)",
        "limit[m][half] - P::WINDOW - 1)",
    ),
    ("sm_80", WINDOW, "a window's first block is left out", "1 - P::WINDOW, 0)", "64 - P::WINDOW, 0)"),
    ("sm_80", CAP, "scores are not capped", "if constexpr (P::CAPPED)", "if constexpr (false)"),
]


@pytest.mark.parametrize("case", WINDOWS, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize(
    ("target", "case", "what", "old", "new"), FAULTS, ids=[f"{f[0]} {f[1].name}, {f[2]}" for f in FAULTS]
)
def test_a_fault_is_seen(target: str, case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(3), replaced(old, new), target=target) != ""
