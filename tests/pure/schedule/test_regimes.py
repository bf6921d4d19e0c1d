"""Regimes of a size that moves: at most three; above some rows the tiles that lose least by the model."""

from __future__ import annotations

import pytest

import tilegen as tg
from tilegen.arch.machine import machine
from tilegen.frontend.loader import load_spec
from tilegen.options import Options
from tilegen.schedule.regimes import least_lost, regimes
from tilegen.targets import select

H200 = select.place(machine("h200"), "sm_90a")
SMALL, LARGE = Options(order="op_major:1"), Options(order="op_major:2")


def mlp(largest: int, **sizes: int) -> tg.Program:
    return load_spec("examples/gpt3_mlp.py")(M=tg.dim("M", max=largest), **sizes)


@pytest.mark.parametrize(("largest", "ends"), [(64, [4, 16, 64]), (10, [4, 10]), (3, [3])])
def test_few_rows_end_where_they_are_fewer(largest: int, ends: list[int]) -> None:
    assert [r.most for r in regimes(mlp(largest), H200, Options())] == ends


@pytest.mark.parametrize(("largest", "ends"), [(1, [1]), (3, [1, 3]), (32, [1, 8, 32])])
def test_one_image_and_a_few_have_tiles_of_their_own(largest: int, ends: list[int]) -> None:
    program = load_spec("examples/vgg19.py")(HW=32, C=8, B=tg.dim("B", max=largest))
    assert [r.most for r in regimes(program, H200, Options())] == ends


@pytest.mark.parametrize(("largest", "ends"), [(2, [2]), (16, [2, 8, 16]), (5, [2, 5])])
def test_long_sequences_end_where_there_are_few(largest: int, ends: list[int]) -> None:
    program = load_spec("examples/gpt_layer.py")(S=512, B=tg.dim("B", max=largest))
    assert [r.most for r in regimes(program, H200, Options())] == ends


def test_options_hold_for_all_regimes() -> None:
    given = Options(tiles=(("up", (64, 64, 64)),))
    assert {r.options for r in regimes(mlp(300), H200, given)} == {given}


@pytest.mark.parametrize(
    ("largest", "ends"), [(4096, [64, 256, 4096]), (300, [64, 256, 300]), (100, [64, 100])]
)
def test_many_rows_have_a_regime_of_their_own(largest: int, ends: list[int]) -> None:
    assert [r.most for r in regimes(mlp(largest, H=512, I=256), H200, Options())] == ends


def test_above_some_rows_the_model_chooses() -> None:
    """Tiles of the largest size leave most SMs idle at a tenth of it."""
    found = regimes(mlp(4096), H200, Options())
    assert all(r.options == Options() for r in found[:2]) and found[2].options.tiles


def test_the_tiles_that_lose_least_are_taken() -> None:
    assert least_lost({SMALL: [1.0, 1.0, 3.0], LARGE: [2.0, 1.0, 1.0]}) == LARGE
    assert least_lost({SMALL: [1.0, 1.0, 3.0], LARGE: [2.0, 2.0, 2.0]}) == SMALL


def test_tiles_that_do_not_fit_somewhere_are_not_taken() -> None:
    assert least_lost({SMALL: [1.0, float("inf")], LARGE: [9.0, 9.0]}) == LARGE
