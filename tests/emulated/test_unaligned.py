"""Rows that are no whole 16-byte units, on the emulator: right results whatever lies beside them, and nothing
of that written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case, added, biased, viewed
from tests.gpu.ops import attended, pools, unaligned

ROWS = Case("rows", unaligned, {"M": 5, "N": 61})
IN_TURNS = Case("rows in turns", unaligned, {"M": 12, "N": 61}, {"tiles": {"r": (6,), "l": (6,)}})
PRODUCT = Case("product", added, {"M": 17, "N": 13, "K": 72})
SUMS = Case("sums of both warpgroups", biased, {"M": 70, "N": 77, "K": 136}, {"tiles": {"y": (64, 64, 64)}})
HEADS = Case("heads", attended, {"D": 40, "S": 33, "B": 1})
CASES = [
    ROWS,
    IN_TURNS,
    Case("rows read anew", unaligned, {"M": 1, "N": 16999}),
    Case("pools", pools, {"HW": 9, "C": 5}),
    PRODUCT,
    SUMS,
    Case("sums of a few columns", biased, {"M": 17, "N": 5, "K": 72}, {"tiles": {"y": (64, 64, 64)}}),
    Case("swapped", biased, {"M": 90, "N": 67, "K": 72}, {"tiles": {"y": (48, 64, 64)}}),
    Case("a view", viewed, {"M": 9, "N": 22}),
    HEADS,
]
INSIDE = "column + i >= begin && column + i < end"
FAULTS = [
    (ROWS, "a column behind a row is stored", f"if ({INSIDE}) tg_put1", "tg_put1"),
    (ROWS, "a whole vector is taken for one that the row ends in", "column < ends.body", "column < COLUMNS"),
    (ROWS, "a number alone is stored by threads that have none", "if (ends.there)", "if (true)"),
    (ROWS, "numbers before the first vector are left out", "lane < tg_min(head, columns)", "false"),
    (IN_TURNS, "a norm's vectors lie as in the row before", "head != held", "false"),
    (ROWS, "a norm's vector is read behind its end", "crosses && whole)", "crosses)"),
    (ROWS, "a norm's vector lacks its end", "crosses && !whole)", "false)"),
    (ROWS, "a column before a row is read", f"left && {INSIDE}", "left"),
    (ROWS, "a vector behind a row is read", "(skew > 0 ? 16 : 8) <= end", "(skew > 0 ? 16 : 8) <= end + 8"),
    (ROWS, "the second vector is left out", "there && skew > 0", "false"),
    (PRODUCT, "half a pair behind a row is stored", "if (column + 1 < end) tg_put1", "tg_put1"),
    (PRODUCT, "half a pair behind an operand is read", "if (inside && both)", "if (inside)"),
    (SUMS, "a bias is read behind its end", "tg_fetch_constant(p, both)", "tg_fetch_constant(p, inside)"),
    (SUMS, "a bias lacks its end", "if (inside && !both)", "if (false)"),
    (SUMS, "what a part begins with is left out", "column < whole || rest <= column", "rest <= column"),
    (SUMS, "what a part ends with is left out", "column < whole || rest <= column", "column < whole"),
    (SUMS, "what a row ends with is left out", "cut || o + i == 0", "o + i == 0"),
    (SUMS, "numbers behind a row are stored", "rest <= column) && column < end", "rest <= column)"),
    (SUMS, "a vector begins before a part", "whole <= column - skew", "true"),
    (SUMS, "a vector ends behind a part", "column - skew < rest", "column - skew < end"),
    (IN_TURNS, "the next row is not brought", "< hi0) bring_row", "< lo0) bring_row"),
    (ROWS, "a vector that is not there is summed", "column < ends.body ? ", "true ? "),
    (HEADS, "columns behind a head are stored", "if (8 * (n8 + o) < Op::COLUMNS)", ""),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: Any) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""
