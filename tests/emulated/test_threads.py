"""Ops that threads compute, on the emulator: convolutions of a few channels gathered by lanes, rows and their
positions, whatever their sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tests.emulated.kernels import Runs, emulated, library_of, replaced
from tests.gpu.gemms import Case
from tests.gpu.ops import alone, pools
from tilegen.errors import ArgumentError
from tilegen.targets.emulated.library import Adversary


@tg.spec
def few(B=1, HW=13, C=3, N=64, size=3, stride=1, dilation=1, padding=1, dtype="float16"):
    """One convolution of a few channels, with bias and ReLU."""
    x, w, bias = (
        tg.input("x", (B, HW, HW + 1, C), dtype),
        tg.weight("w", (N, size, size, C), dtype),
        tg.weight("bias", (N,), dtype),
    )
    return tg.relu(
        tg.conv2d(x, w, bias, stride=stride, padding=padding, dilation=dilation, name="conv"), name="y"
    )


@tg.spec
def rows(S=37, heads=3, D=64, S_max=5000, dtype="bfloat16"):
    """Norms of rows, turned by their positions from `pos` on, which a cache keeps far from 0, and from 0 on,
    and their softmax."""
    x, pos = tg.input("x", (1, S, heads * D), dtype), tg.input("pos", (1,), "int32")
    g, bias = tg.weight("g", (heads * D,), dtype), tg.weight("bias", (heads * D,), dtype)
    n = tg.rms_norm(x, g, name="n")
    tg.append(tg.state("cache", (1, S_max, heads, D), dtype), n, at=pos, name="kept")
    tg.append(
        tg.state("turned", (1, S_max, heads, D), dtype),
        tg.rope(n, heads=heads, at=pos, name="r"),
        at=pos,
        name="kept_turned",
    )
    q = tg.rope(n, heads=heads, theta=500000.0, at=pos, name="q")
    return tg.layer_norm(q, g, bias, name="y"), tg.softmax(
        tg.rope(n, heads=heads, name="k"), scale=0.5, name="z"
    )


def tile(*sizes: int) -> dict[str, Any]:
    return {"tiles": {"conv": (*sizes, 64)}}


CASES = [
    Case("lines of whole units", few, {"HW": 15}, tile(1, 4, 16, 64)),
    Case("tiles that begin inside a unit", few, {"HW": 31, "B": 2}, tile(1, 5, 11, 32)),
    Case("lines of odd length, bfloat16", few, {"HW": 12, "B": 3, "dtype": "bfloat16"}, tile(2, 13, 13, 64)),
    Case("7 x 7, stride 2", few, {"HW": 15, "size": 7, "stride": 2, "padding": 3}, tile(1, 3, 8, 64)),
    Case("one channel, dilation 2", few, {"HW": 15, "C": 1, "dilation": 2, "padding": 2}, tile(1, 3, 16, 64)),
    Case(
        "12 channels, 72 filters of which 40 in a tile, no padding",
        few,
        {"C": 12, "N": 72, "padding": 0},
        tile(1, 4, 4, 40),
    ),
    Case("more than 256 pixels, 160 filters", few, {"HW": 23, "N": 160}, tile(1, 20, 24, 160)),
    Case(
        "5 x 5 of two channels, stride 3",
        few,
        {"HW": 27, "C": 2, "size": 5, "stride": 3, "padding": 2},
        tile(1, 4, 5, 64),
    ),
    Case("rows", rows, {}),
    Case(
        "rows, as many in a tile as threads for them",
        rows,
        {"S": 70},
        {"tiles": {"q": (32, 1), "k": (8, 3), "n": (8,), "y": (4,)}},
    ),
    Case(
        "rows, more in a tile",
        rows,
        {"S": 70, "heads": 2, "D": 128},
        {"tiles": {"q": (48, 2), "k": (64, 1), "n": (1,), "y": (16,)}},
    ),
    Case("rows, heads of 48, float16", rows, {"D": 48, "dtype": "float16"}),
    Case("rows, float32", rows, {"D": 128, "dtype": "float32"}),
    Case("one row of 4096", rows, {"S": 1, "heads": 32, "D": 128, "S_max": 500}),
    Case(
        "rows of 4096", rows, {"S": 9, "heads": 32, "D": 128, "S_max": 500}, {"tiles": {"n": (4,), "y": (8,)}}
    ),
    Case("pools", pools, {"HW": 9}),
    Case("pointwise", alone, {"M": 5}),
]
FAULTS = [
    (
        "the patch is not waited for",
        replaced("  tg_copies_wait<0>();\n  tg_math_meet();\n", "  tg_math_meet();\n"),
    ),
    (
        "filters are overwritten early",
        replaced("  tg_math_meet();  // nobody uses what lay there any more\n", ""),
    ),
    (
        "filters are read early",
        replaced("  tg_copies_wait<0>();\n  tg_math_meet();\n", "  tg_copies_wait<0>();\n"),
    ),
    ("beyond the filter lies anything", replaced("? 2 * (r * 1", "|| true ? 2 * (r * 1")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize("what, change", FAULTS, ids=[what for what, _ in FAULTS])
def test_a_fault_is_seen(what: str, change: Any) -> None:
    assert emulated(CASES[0], range(12), change, sms=2) != ""


@pytest.mark.parametrize("beyond", [1, 1 << 20, -1])
def test_appends_without_room_write_nothing_and_say_so(beyond: int) -> None:
    """Neither rows that are turned by their position nor others land in a cache that a position leaves no
    room in."""
    case = Case("", rows, {"S_max": 40})
    plan = case.plan(3)
    runs = Runs(case, plan, library_of(plan))
    held = runs.held()
    held["pos"].fill_(3 + beyond if beyond > 0 else beyond)
    before = {name: held[name].clone() for name in ("cache", "turned")}
    runs.library.adversary = Adversary.drawn(3, 3)
    with pytest.raises(ArgumentError, match="nothing was appended: .*pos"):
        runs.library.run(0, held, 1)
    assert all(torch.equal(held[name], cache) for name, cache in before.items())
