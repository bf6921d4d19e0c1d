"""Attention's machine code: what runs beside what, and that nothing disturbs products on their way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.gemms import Case
from tests.gpu.ops import attended, heads_alone, masked
from tests.oracles.sass import Sass, disturbed, machine_code
from tilegen.targets.sm90.emit import generate

WHOLE = {"tiles": {"attn": (128, 128)}}
CASES = [
    Case(f"{d} columns{', causal' if causal else ''}", heads_alone, {"D": d, "causal": causal}, WHOLE)
    for d, causal in ((64, True), (80, False), (128, True), (128, False))
]
CASES += [Case("behind a linear", attended, {"S": 300, "D": 128, "B": 1}, WHOLE)]
CASES += [
    Case(
        f"{d} columns, a bias",
        masked,
        {"S": 512, "D": d, "bias": "hq", "wide": d == 64},
        {"tiles": {"y": (128, 128)}},
    )
    for d in (64, 128)
]


def steps(sass: Sass) -> tuple[str, ...]:
    """The loop over blocks of keys."""
    loops = sass.innermost(r"HGMMA\.")
    return min((of for of in loops if any(text.startswith("MUFU.EX2") for text in of)), key=len)


def exponentials(code: tuple[str, ...]) -> list[int]:
    """How many stand before each wait for products, and after the last."""
    found = [0]
    for text in code:
        if text.startswith("WARPGROUP.DEPBAR"):
            found.append(0)
        found[-1] += text.startswith("MUFU.EX2")
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_softmax_of_a_block_runs_beside_the_sums_with_the_block_before(
    case: Case, tmp_path: Path
) -> None:
    """The wait for products with keys comes before it, the wait for sums with values behind it; nothing
    touches either on its way."""
    sass = machine_code(generate(case.plan()).text, tmp_path)
    loop = steps(sass)
    waits = [text for text in loop if text.startswith("WARPGROUP.DEPBAR")]
    assert waits == ["WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"]
    before, between, behind = exponentials(loop)
    assert between >= 128 // 2 and before == behind == 0
    assert disturbed(sass.code) == [] and disturbed(loop * 2) == []
    assert not sass.at(r"(LDL|STL)\b"), "registers in local memory"


def test_a_wait_before_the_softmax_is_seen(tmp_path: Path) -> None:
    usual, text = "    tg_mma_wait<1>();\n", generate(CASES[0].plan()).text
    assert usual in text
    changed = machine_code(text.replace(usual, "    tg_mma_wait<0>();\n"), tmp_path)
    waits = [text for text in steps(changed) if "DEPBAR" in text]
    assert waits[0] == "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def test_what_disturbs_products_is_seen() -> None:
    product = "HGMMA.64x64x16.F32.BF16 R88, R120, gdesc[UR8].tnspB, R88, gsb0"
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    for text in ("FMUL R90, R90, R3", "MOV R3, R119", "MOV R121, R3"):
        assert disturbed([product, text, wait]) == [text]
    for text in ("MOV R3, R121", "FMUL R120, R200, R201"):
        assert disturbed([product, wait, text]) == []
    assert disturbed([product, "FADD R3, R121, R4", wait]) == []
