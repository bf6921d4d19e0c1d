"""The largest numbers of rows by threads, and numbers picked by their columns, on the emulator."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.emulated.kernels import Runs, emulated, library_of, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import chosen, decoded, routed
from tilegen.targets.emulated.library import Adversary

EVEN = Case("two of 64", routed, {})
ODD = Case("5 of 77", routed, {"N": 77, "k": 5, "dtype": "float16"})
WIDE = Case("3 of 2500", routed, {"M": 3, "N": 2500, "k": 3})
WHOLE = Case("all of one row of 17", routed, {"M": 1, "N": 17, "k": 17, "dtype": "float32"})
PICKED = Case("chosen columns", chosen, {"N": 77})
DECODED = Case("rows of the three largest", decoded, {"M": 300, "k": 3})
CASES = [
    DECODED,
    Case("rows of the largest, odd widths", decoded, {"D": 17, "dtype": "float32"}),
    EVEN,
    ODD,
    WIDE,
    PICKED,
    WHOLE,
    Case("read anew", routed, {"M": 2, "N": 17001, "k": 2}),
    Case("eights of columns", chosen, {"n": 16}),
]
FAULTS = [
    (EVEN, "a number comes twice", "if (last.before(other) && ", "if ("),
    (ODD, "numbers alone are passed over", "if (ends.there) next.take(alone", "if (false) next.take(alone"),
    (WHOLE, "numbers behind a row are taken", "if (column + i < ends.body) next", "if (true) next"),
    (WIDE, "a warp's number is a row's", "warp < THREADS / 32; ++warp", "warp < 2; ++warp"),
    (
        WIDE,
        "one number is read while the next is written",
        "    tg_math_meet();  // what stood",
        "    // what stood",
    ),
    (PICKED, "the first columns are taken", "id >= 0", "id >= 1"),
    (DECODED, "ids of other rows are taken", "tg_get1(T.top + row)", "tg_get1(T.top + row / 3)"),
    (DECODED, "ids are not awaited", "tg_wait(g, 5 + group0, 1)", "(void)0"),
    (PICKED, "columns of other rows are taken", "T.ids + (long long)row * 5", "T.ids + (long long)lo0 * 5"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""


@tg.spec
def ranked(M=4, N=40, k=7, dtype="float32"):
    return tg.topk(tg.input("x", (M, N), dtype), k)


@pytest.mark.parametrize("columns", [40, 301, 2500])
def test_equal_numbers_infinities_and_nans(columns: int) -> None:
    case = Case("ranked", ranked, {"N": columns})
    plan = case.plan(case.sms)
    runs = Runs(case, plan, library_of(plan))
    x = runs.given[0].round_()
    x[1] = 0.0
    x[1, ::2] = -0.0
    x[2], x[2, 30] = -torch.inf, -1.0
    x[3, [4, 9, 31]], x[3, 6] = torch.nan, torch.inf
    ids = runs.results(Adversary.drawn(1, runs.library.launch.grid))[1]
    want = tg.reference(case.program, x)[1]
    assert torch.equal(ids, want)
    assert want[1].tolist() == list(range(7)) and want[2, :2].tolist() == [30, 0]
    assert want[3, :4].tolist() == [4, 6, 9, 31]
