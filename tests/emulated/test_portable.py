"""The kernels for sm_80 and later, on the emulator: every kind of op, whole layers, and planted faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import reduced
from tests.gpu.ops import pair
from tests.gpu.portable import (
    ATTENTIONS,
    CASES,
    CAUSAL,
    IN_ROWS,
    LAYERS,
    ODD,
    PANELS,
    PIXELS,
    SHARED,
    STEEP,
    TWICE,
)
from tests.shares import share

NUMBERS = Case("numbers", reduced, {"N": 264, "M": 70})
PLACES = Case("a place of the filter a panel", pair, {"HW": 9, "C": 64, "dilation": 2})
APART = Case(
    "a panel for all warps",
    pair,
    {"HW": 16, "C": 64},
    {"tiles": {n: (1, 16, 16, 64, 64) for n in ("first", "second")}},
)


@pytest.mark.parametrize("case", share(CASES, 4), ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case) -> None:
    assert emulated(case, range(1), target="sm_80") == ""


@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda c: c.name)
def test_attention_is_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(3), target="sm_80") == ""


@pytest.mark.parametrize("case", SHARED, ids=lambda c: c.name)
def test_sums_that_warps_share_are_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(3), target="sm_80") == ""


@pytest.mark.parametrize("case", ODD, ids=lambda c: c.name)
def test_operands_from_odd_columns_are_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(3), target="sm_80") == ""


@pytest.mark.parametrize("case", [PLACES, APART], ids=lambda c: c.name)
def test_pixels_that_hold_whole_panels_are_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(3), target="sm_80") == ""


@pytest.mark.parametrize("case", LAYERS, ids=lambda c: c.name)
def test_layers_are_right(case: Case) -> None:
    assert emulated(case, range(1), target="sm_80") == ""


@pytest.mark.parametrize("case", IN_ROWS, ids=lambda c: c.name)
def test_chains_of_patches_are_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(3), target="sm_80") == ""


SYNC = "          __syncthreads();  // what it reads is there"
FAULTS: list[tuple[Case, str, Callable[[str], str]]] = [
    (NUMBERS, "threads begin before thread 0 has waited", replaced(SYNC, "          // nothing")),
    (NUMBERS, "a wait is left out", replaced("tg_need(g, t, 0, 0, 0);", "")),
    (CAUSAL, "a query sees the key after its own", replaced("before + query + 1", "before + query + 2")),
    (
        CAUSAL,
        "values come while others multiply",
        replaced("      tg_math_meet();  // these keys", "      //"),
    ),
    (
        CAUSAL,
        "keys are not awaited",
        replaced("      tg_copies_wait<0>();", "      //"),
    ),
    (
        CAUSAL,
        "only the last block is masked",
        replaced("first + KEYS > limit[m][half]", "first >= limit[m][half]"),
    ),
    (
        STEEP,
        "what was summed is not scaled anew",
        replaced("if (factor[0] != 1.0f || factor[1] != 1.0f) {", "if (false) {"),
    ),
    (
        STEEP,
        "only half of a lane's rows are scaled anew",
        replaced("if (factor[0] != 1.0f || factor[1] != 1.0f) {", "if (factor[0] != 1.0f) {"),
    ),
    (
        STEEP,
        "queries are not held",
        replaced("if (key == begin) heads.hold(own, lane);", ""),
    ),
    (
        TWICE[1],
        "a warp's second rows have the queries of the first",
        replaced("left + PITCH * 16 * m + at", "left + at"),
    ),
    (IN_ROWS[0], "patches of the next pixel", replaced("return r % 9;", "return (r + 1) % 9;")),
    (IN_ROWS[0], "patches of the next line", replaced("return r / 9 % 9;", "return (r / 9 + 1) % 9;")),
    (IN_ROWS[0], "patches of another image", replaced("return r / 81;", "return r / 82;")),
    (IN_ROWS[0], "patches of what is not yet there", replaced("tg_need(g, t, 0, 0, 0);", "")),
    (
        PANELS,
        "panels' sums are added up before all are there",
        replaced("  __syncthreads();\n  const int rows = tg_min", "  const int rows = tg_min"),
    ),
    (
        PANELS,
        "a panel is left out",
        replaced("sum.of[g].x += v.x", "if (panel > 0) sum.of[g].x += v.x"),
    ),
    (
        PANELS,
        "panels go on behind the end of K",
        replaced("tg_min(tg_max(2 * (columns - k), 0), 16)", "16"),
    ),
    (
        PANELS,
        "warps of all panels multiply the first",
        replaced("smem + warp.panel * G::PANEL_BYTES", "smem"),
    ),
    (
        PANELS,
        "panels' sums lie in one place",
        replaced("smem + warp.panel * Op::GROUPS * group", "smem"),
    ),
    (
        PIXELS,
        "a border has the next line's pixel",
        replaced("< (unsigned)Op::WIDTH ?", "<= (unsigned)Op::WIDTH ?"),
    ),
    (
        PIXELS,
        "the filter goes on to its next line a pixel late",
        replaced("n / (Op::FILTER_WIDTH * Op::CHANNELS)", "n / (Op::FILTER_WIDTH * Op::CHANNELS + 8)"),
    ),
    (
        PLACES,
        "a column of the filter is there where its line is",
        replaced("columns[pass] >> p.column", "lines[pass] >> p.line"),
    ),
    (
        PLACES,
        "units of a panel are of the first channels",
        replaced("(ONE_PLACE ? 8 * unit : 0)", "0"),
    ),
    (
        APART,
        "the bias of eight columns is that of those before",
        replaced("with.of[n + i]", "with.of[n]"),
    ),
    (
        PIXELS,
        "the bias is that of another thread's columns",
        replaced("2 * (threadIdx.x % PAIRS)", "0"),
    ),
    (
        PIXELS,
        "a stage of pixels is not waited for",
        replaced("tg_copies_wait<ahead - 1>();", "tg_copies_wait<ahead>();"),
    ),
    (
        PIXELS,
        "a convolution does not wait for the one before",
        replaced("tg_wait_for_chunk<Op>(g, t, waited, first < G::CHUNKS ? first : G::CHUNKS - 1);", ""),
    ),
    (
        LAYERS[0],
        "the chunk beside a tile's first slices is not awaited",
        replaced("first < G::CHUNKS ? first : G::CHUNKS - 1", "first - 1"),
    ),
]


@pytest.mark.parametrize(("case", "what", "change"), FAULTS, ids=[what for _, what, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, change: Callable[[str], str]) -> None:
    assert emulated(case, range(4), change, target="sm_80") != ""
