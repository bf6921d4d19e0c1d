"""Transposed convolutions by threads, on the emulator: all ways of cutting them, and planted faults."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import transposed


@tg.spec
def of_columns(B=1, H=5, W=4, C=24, N=16, dtype="bfloat16"):
    """Of some channels of what another op makes."""
    x = tg.max_pool2d(tg.input("x", (B, H, W, 2 * C), dtype), 1, name="h")
    w = tg.weight("w", (N, 3, 3, C), dtype)
    return tg.conv_transpose2d(x[..., C:], w, stride=2, padding=1, output_padding=1, name="c")


def tile(*sizes: int) -> dict[str, Any]:
    return {"tiles": {"c": sizes}}


TWICE = Case("2 x 2", transposed, {"B": 1}, tile(1, 6, 4, 16))
WIDE = Case("4 x 4", transposed, {"B": 2, "size": 4, "padding": 1, "C": 72}, tile(2, 5, 3, 24))
MORE = Case("3 x 3, a line more", transposed, {"B": 1, "size": 3, "padding": 1, "more": 1}, tile(1, 4, 6, 24))
APART = Case(
    "dilated",
    transposed,
    {"B": 1, "size": 4, "stride": (2, 3), "dilation": (2, 1), "padding": 2},
    tile(1, 7, 5, 24),
)
ODD = Case("10 channels", transposed, {"B": 1, "C": 10, "N": 21, "size": 3}, tile(1, 5, 5, 7))
CASES = [
    TWICE,
    WIDE,
    MORE,
    APART,
    ODD,
    Case("some channels of another op", of_columns, {}),
    Case("some of 21 channels, float32", of_columns, {"C": 21, "N": 5, "dtype": "float32"}),
    Case("lines of one pixel", transposed, {"size": 1, "more": 1}, tile(2, 1, 1, 8)),
    Case(
        "no stride", transposed, {"size": 3, "stride": 1, "padding": 1, "dtype": "float32"}, tile(1, 3, 4, 8)
    ),
    Case("one pixel becomes 14 x 14", transposed, {"B": 1, "H": 1, "W": 1, "size": 14, "stride": 14}),
]
FAULTS = [
    (
        TWICE,
        "all phases see the first lines of the filters",
        "if ((n - i * DILATION) % STRIDE == 0) r = i;",
        "r = i;",
    ),
    (TWICE, "pixels behind the tile are stored", "y < phase.lines && z < phase.pixels && ", ""),
    (TWICE, "pixels lie beside each other", "+ P::STRIDE_W * z", "+ z"),
    (TWICE, "filters are the first tile's", "filters = T.w + (long long)lo3", "filters = T.w + 0ll"),
    (WIDE, "a line above the image is read", " && h >= 0", ""),
    (WIDE, "a pixel behind a line is read", " && w < P::WIDTH", ""),
    (WIDE, "the second image is the first", "((long long)n * P::HEIGHT + h)", "h"),
    (WIDE, "filters are walked as the image is", "top + y - P::BACK_H * i", "top + y + P::BACK_H * i"),
    (
        WIDE,
        "stages are filled while they are read",
        "tg_math_meet();  // chunk c is there",
        "// chunk c is there",
    ),
    (MORE, "a column behind the filter is read", " && w < P::FILTER_WIDTH", ""),
    (MORE, "a line behind the filter is read", "P::STEP_H - 1) / P::STEP_H", "P::STEP_H) / P::STEP_H"),
    (APART, "lines that see no filter see its first", "int r = END;", "int r = 0;"),
    (APART, "columns of a filter are one apart", "w = s + P::STEP_W * j", "w = s + j"),
    (ODD, "channels behind the tile are stored", "column, lo3, hi3);", "column, 0, 21);"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(2), replaced(old, new)) != ""
