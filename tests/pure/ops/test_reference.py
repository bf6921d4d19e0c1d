"""The float32 reference: on its arguments' device, whatever the caller's default device; errors beside it."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tilegen.bench.accuracy import error_kind, error_of
from tilegen.frontend.program import Program
from tilegen.runtime.data import random_arguments, relative_error


@tg.spec
def causal(S=8, H=2, D=16):
    q, k, v = (tg.input(n, (1, S, H * D), "float32") for n in "qkv")
    return tg.attention(q, k, v, heads=H, kv_heads=H, causal=True, name="y")


@tg.spec
def masked(S=8, D=16):
    q, k, v = (tg.input(n, (1, S, D), "float32") for n in "qkv")
    return tg.matmul(
        tg.softmax(tg.matmul(q, k, transpose_b=True, name="s"), causal=True, name="p"), v, name="y"
    )


def programs() -> list[Program]:
    return [causal(), masked()]


@pytest.mark.parametrize("program", programs(), ids=lambda p: p.name)
def test_masks_are_made_where_the_arguments_are(program: Program) -> None:
    """ "meta" refuses to be mixed with another device, as a GPU does."""
    arguments = random_arguments(program)
    want = tg.reference(program, *arguments)
    there = tg.reference(program, *(a.to("meta") for a in arguments))
    assert there.device.type == "meta" and there.shape == want.shape
    with torch.device("meta"):
        assert torch.equal(tg.reference(program, *arguments), want)


def test_an_error_beside_a_zero_reference_is_absolute() -> None:
    zero, y = torch.zeros(3, 4), torch.full((3, 4), 0.5)
    assert relative_error(zero, zero) == 0.0 and relative_error(y, zero) == pytest.approx(float(y.norm()))
    assert relative_error(2 * y, y) == pytest.approx(1.0)
    assert relative_error(y * float("nan"), zero) != relative_error(y * float("nan"), zero)  # NaN stays NaN
    assert error_of((zero, y), (zero, y)) == 0.0 and "absolute where the reference is all zero" in error_kind(
        (zero, y)
    )
    assert error_kind(y) == "relative Frobenius"


def test_an_all_zero_result_is_right(tmp_path, capsys) -> None:
    from tilegen.cli import main

    spec = tmp_path / "zero.py"
    spec.write_text(
        "import tilegen as tg\n@tg.spec\ndef zero():\n    return tg.scale(tg.input('x', (4, 8), 'float32'),"
        " 0.0, name='y')\n"
    )
    assert main(["run", str(spec), "--target", "interpret", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert (
        "0.00e+00 (relative Frobenius; absolute where the reference is all zero)" in out
        and "TOO LARGE" not in out
    )
