"""Convolutions in groups by threads, on the emulator: all ways of cutting them, and planted faults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import in_groups


def tile(*sizes: int) -> dict[str, Any]:
    return {"tiles": {"c": sizes}}


STRIDED = Case("strided", in_groups, {"C": 24, "N": 24, "groups": 24, "stride": 2, "B": 1}, tile(1, 2, 3, 16))
ODD = Case("10 channels", in_groups, {"C": 10, "N": 10, "groups": 10, "B": 1}, tile(1, 3, 4, 7))
GROUPS = Case("groups", in_groups, {"C": 32, "N": 24, "groups": 2, "B": 1}, tile(1, 3, 4, 1))
FOURS = Case("groups of 4", in_groups, {"C": 32, "N": 32, "groups": 8, "stride": 2, "B": 1}, tile(1, 3, 3, 4))
SMALL = Case("all lines at once", in_groups, {"C": 16, "N": 16, "groups": 16, "B": 1}, tile(1, 4, 5, 8))
CASES = [
    SMALL,
    STRIDED,
    FOURS,
    ODD,
    GROUPS,
    Case("lines of five pixels", in_groups, {"C": 16, "N": 16, "groups": 16}, tile(2, 1, 5, 8)),
    Case("dilated", in_groups, {"C": 16, "N": 16, "groups": 16, "B": 1, "dilation": 2}, tile(1, 5, 5, 8)),
    Case("9 columns of a filter", in_groups, {"C": 8, "N": 8, "groups": 8, "size": 9, "dilation": 2}),
]
FAULTS = [
    (STRIDED, "a line above the image is read", "tg_max(-top, 0)", "0"),
    (STRIDED, "a line below the image is read", "tg_min(11 - top, 3)", "3"),
    (STRIDED, "the next line is not brought", "r + 1 < end", "false"),
    (SMALL, "a line above the image is read", "h >= 0 && ", ""),
    (SMALL, "a line below the image is read", "h < 11 && ", ""),
    (FOURS, "a line above the image is read", "h < 0 || ", ""),
    (STRIDED, "a pixel behind a line is read", "left + z < 9", "true"),
    (STRIDED, "pixels behind the tile are stored", "q + o < hi2", "true"),
    (STRIDED, "the last four channels have the first ones' filters", "channel + i))", "channel))"),
    (STRIDED, "filters are another tile's", "9 * lo3 + n", "n"),
    (FOURS, "a channel sees its own group's first", "i / 4 * 4 + c", "i / 4 * 4"),
    (FOURS, "filters of a group's channels are mixed up", ") * 4 + c, column", ") * 4 + 3 - c, column"),
    (ODD, "filters lie as the tile's first row", "column - lo3, n3", "column & -8, n3"),
    (GROUPS, "a group sees the first one's channels", "lo3 / 12 * 16", "0"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: Any) -> None:
    assert emulated(case, range(2), replaced(old, new)) != ""
