"""Linears whose rows begin anywhere, on the emulator: every eighth row is loaded at a time, and each result
is where it belongs."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case, added, biased, eighths
from tests.gpu.language import any_width
from tests.moving import right
from tilegen.ops.gemm import LinearAttributes

FEW = Case("fewer rows than maps", added, {"M": 5, "N": 10, "K": 135})
ROWS = Case("rows of 64", eighths, {"M": 70, "N": 77, "K": 135}, {"tiles": {"y": (64, 64, 64)}})
WIDE = Case("rows of 256", added, {"M": 300, "N": 72, "K": 71}, {"tiles": {"y": (256, 64, 64)}})
MEMBERS = Case("a pair that shares k", added, {"M": 130, "N": 200, "K": 301}, {
    "tiles": {"y": (128, 128, 64)}, "cluster": {"y": "2:k"}
})  # fmt: skip
NARROW = Case("32 columns", eighths, {"M": 70, "N": 77, "K": 135}, {"tiles": {"y": (64, 32, 64)}})
NARROWEST = Case("16 columns", added, {"M": 300, "N": 90, "K": 77}, {"tiles": {"y": (64, 16, 128)}})
CASES = [
    FEW,
    NARROW,
    NARROWEST,
    Case("32 columns of 128 rows", biased, {"M": 130, "N": 67, "K": 201}, {"tiles": {"y": (128, 32, 64)}}),
    Case("16 columns of a pair", eighths, {"M": 61, "N": 39, "K": 201}, {
        "tiles": {"y": (64, 16, 64)}, "cluster": {"y": "2:k"}
    }),
    ROWS,
    WIDE,
    MEMBERS,
    Case("a chain and a pair", any_width, {"M": 96, "K": 77, "N": 51}),
    Case("a row", added, {"M": 1, "N": 133, "K": 333}),
    Case("steps of 128", biased, {"M": 90, "N": 67, "K": 201}, {"tiles": {"y": (128, 128, 128)}}),
    Case("every second row alike", biased, {"M": 61, "N": 69, "K": 76}, {"tiles": {"y": (64, 64, 64)}}),
]
FAULTS = [
    (ROWS, "columns of the sums stay as weights came", "tg_sort_all<8>(acc);", ""),
    (WIDE, "columns stay so as they are stored", "tg_sort_columns<Op::TOGETHER>(acc[m], half);", ";"),
    (ROWS, "numbers of a fragment are not swapped", "w[e][j % 2][j / 2]", "w[j % 2][e][j / 2]"),
    (NARROW, "columns of other lanes", "w[j % 2][2 * e + j / 2]", "w[j % 2][2 * (j / 2) + e]"),
    (NARROWEST, "a number of another fragment", "quad < 2 ? low : high", "low"),
    (WIDE, "rows are stored as they came", "(line & 7) * 8 + (line >> 3 & 7)", "(line & 63)"),
    (WIDE, "blocks of 64 rows are mixed", "(line & ~63) + ", ""),
    (MEMBERS, "a copy begins where its map does", "64 * k + 5,", "64 * k,"),
    (FEW, "a map brings another's rows", "&maps.y_a3", "&maps.y_a2"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert case.plan().graph.consists_of(LinearAttributes)
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: Any) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""


@pytest.mark.parametrize("most", [5, 60, 300])
def test_rows_that_move_are_right_at_every_size(most: int) -> None:
    """Of fewer rows than eight not all maps have any."""
    moving = added(M=tg.dim("M", max=most), N=77, K=135)
    kernel = tg.compile(moving, "cuda-emulated", on=4)
    for size in {1, 2, 7, 8, 9, 63, 64, 65, 129, most - 1, most}:
        if size <= most:
            right(kernel, size)
