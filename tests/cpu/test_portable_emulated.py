"""The portable kernel's text on emulated SMs: right under random interleavings and late copies, wrong without
one barrier or wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cpu.cuda_emulator import emulate
from tests.gpu.gemms import Case, block, both, chain, fan, gated, gemm, mlp

SMALL = {"H": 256, "I": 200}
CASES = [
    Case("one gemm, ragged", gemm, {"M": 17, "N": 104, "K": 520}, {"tiles": {"y": (64, 96, 64)}}),
    Case("128 x 176, odd eights", gemm, {"M": 130, "N": 200, "K": 136}, {"tiles": {"y": (128, 176, 64)}}),
    Case(
        "blocks in a tile, split sum",
        mlp,
        {"M": 200, **SMALL},
        both("up", "down", (256, 384, 64), (256, 384, 64), split_k={"up": 2}),
    ),
    Case(
        "odd steps, narrow tiles",
        mlp,
        {"M": 30, **SMALL},
        both("up", "down", (80, 56, 48), (16, 8, 16), policies={"h": "tile"}),
    ),
    Case(
        "static, steps shared",
        mlp,
        {"M": 17, **SMALL},
        both("up", "down", (64, 32, 64), (64, 64, 64), 2, 2, scheduling="lists"),
    ),
    Case(
        "tile policy, clusters",
        mlp,
        {"M": 17, **SMALL},
        both("up", "down", (64, 32, 64), (64, 64, 64), 2, 2, policies={"h": "tile"}),
    ),
    Case(
        "gated, rows shared",
        gated,
        {"M": 140, **SMALL},
        both("gate_up", "down", (256, 96, 64), (256, 128, 64), "2:m", "2:n"),
    ),
    Case(
        "block, float16",
        block,
        {"M": 33, "I": 256, "dtype": "float16"},
        both("up", "down", (64, 96, 64), (64, 64, 64), 2, 2),
    ),
    Case("chain of four", chain, {"M": 40}),
    Case("fan", fan, {"M": 70}, {"tiles": dict.fromkeys(("q", "k", "v", "o"), (128, 64, 64))}),
]
NAMES = {c.name: c for c in CASES}
CHANGES: list[tuple[str, tuple[str, str], dict[str, Any]]] = [
    ("a copy is not waited for", ("tg_copies_wait<ahead - 1>();", "tg_copies_wait<ahead>();"), {}),
    (
        "a stage is overwritten early",
        ("        __syncthreads();\n        to = from;", "        to = from;"),
        {},
    ),
    ("a step is not waited for", ("if (threadIdx.x == 0) Op::wait(g, t, waited);", ";"), {}),
    ("the epilogue does not wait", ("Op::wait_late(g, t);", "{}"), {"case": "fan", "sms": 8}),
    ("posted before all have stored", ("__syncthreads();  // all threads' results", "//"), {}),
    ("a slice is read twice", ("a ^= slice << 5, b ^= slice << 5;", ""), {}),
    ("a part does not post", ("tg_posts(g, t, 1);", ""), {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_emulated(case: Case, tmp_path: Path) -> None:
    assert emulate(case, tmp_path) == ""


def test_stages_of_32_columns(tmp_path: Path) -> None:
    """sm_86's shared memory holds three stages of 64 columns for small blocks only."""
    case = Case("wide", mlp, {"M": 130, **SMALL}, both("up", "down", (128, 256, 64), (128, 256, 64)))
    assert emulate(case, tmp_path, "sm_86") == ""


@pytest.mark.parametrize("name, change, how", CHANGES, ids=[c[0] for c in CHANGES])
def test_what_is_wrong_is_found(
    name: str, change: tuple[str, str], how: dict[str, Any], tmp_path: Path
) -> None:
    case = NAMES[how.get("case", "tile policy, clusters")]
    found = []
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found.append(emulate(case, folder, sms=how.get("sms", 4), seed=seed, change=change))
        if found[-1]:
            return
    raise AssertionError(f"{name}: found by none of {len(found)} runs")
