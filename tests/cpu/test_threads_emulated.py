"""Tile functions of the Hopper kernel's ops by threads on emulated SMs: right under random interleavings and late copies, wrong without one barrier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilegen as tg
from tests.cpu.cuda_emulator import emulate_threads
from tests.gpu.gemms import Case
from tests.gpu.ops import alone, pools


@tg.spec
def few(B=1, HW=13, C=3, N=64, size=3, stride=1, dilation=1, padding=1, dtype="float16"):
    """One convolution of a few channels, with bias and ReLU."""
    x, w, bias = tg.input("x", (B, HW, HW + 1, C), dtype), tg.weight("w", (N, size, size, C), dtype), tg.weight("bias", (N,), dtype)
    return tg.relu(tg.conv2d(x, w, bias, stride=stride, padding=padding, dilation=dilation, name="conv"), name="y")


def tile(*sizes: int) -> dict[str, Any]:
    return {"tiles": {"conv": (*sizes, 64)}}


CASES = [
    Case("lines of whole units", few, {"HW": 15}, tile(1, 4, 16, 64)),
    Case("tiles that begin inside a unit", few, {"HW": 31, "B": 2}, tile(1, 5, 11, 32)),
    Case("lines of odd length, bfloat16", few, {"HW": 12, "B": 3, "dtype": "bfloat16"}, tile(2, 13, 13, 64)),
    Case("7 x 7, stride 2", few, {"HW": 15, "size": 7, "stride": 2, "padding": 3}, tile(1, 3, 8, 64)),
    Case("one channel, dilation 2", few, {"HW": 15, "C": 1, "dilation": 2, "padding": 2}, tile(1, 3, 16, 64)),
    Case("12 channels, 72 filters of which 40 in a tile, no padding", few, {"C": 12, "N": 72, "padding": 0}, tile(1, 4, 4, 40)),
    Case("more than 256 pixels, 160 filters", few, {"HW": 23, "N": 160}, tile(1, 20, 24, 160)),
    Case("5 x 5 of two channels, stride 3", few, {"HW": 27, "C": 2, "size": 5, "stride": 3, "padding": 2}, tile(1, 4, 5, 64)),
    Case("pools", pools, {"HW": 9}),
    Case("pointwise", alone, {"M": 5}),
]
CHANGES = [
    ("the patch is not waited for", ("  tg_copies_wait<0>();\n  tg_math_meet();\n", "  tg_math_meet();\n")),
    ("filters are overwritten early", ("  tg_math_meet();  // nobody uses what lay there any more\n", "")),
    ("filters are read early", ("  tg_copies_wait<0>();\n  tg_math_meet();\n", "  tg_copies_wait<0>();\n")),
    ("beyond the filter lies anything", ("? 2 * (r * 1", "|| true ? 2 * (r * 1")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_emulated(case: Case, tmp_path: Path) -> None:
    assert emulate_threads(case, tmp_path) == ""


@pytest.mark.parametrize("name, change", CHANGES, ids=[c[0] for c in CHANGES])
def test_what_is_wrong_is_found(name: str, change: tuple[str, str], tmp_path: Path) -> None:
    found = []
    for seed in range(4):
        found.append(emulate_threads(CASES[0], tmp_path, sms=2, seed=seed, change=change))
        if found[-1]:
            return
    raise AssertionError(f"{name}: found by none of {len(found)} runs")
