"""Regimes of a size that moves: at most three, whose tiles are never far from the best by the model."""

from __future__ import annotations

import pytest

import tilegen as tg
from tests.moving import moving
from tilegen.arch.machine import machine
from tilegen.frontend.loader import load_spec
from tilegen.options import Options
from tilegen.schedule.regimes import Regime, _least, regimes
from tilegen.targets import select

H200 = select.place(machine("h200"), "sm_90a")
SMALL, LARGE = Options(order="op_major:1"), Options(order="op_major:2")


def mlp(largest: int, **sizes: int) -> tg.Program:
    return load_spec("examples/gpt3_mlp.py")(M=tg.dim("M", max=largest), **sizes)


@pytest.mark.parametrize(("largest", "ends"), [(64, [4, 16, 64]), (10, [4, 10]), (3, [3])])
def test_few_rows_end_where_they_are_fewer(largest: int, ends: list[int]) -> None:
    assert [r.most for r in regimes(mlp(largest), H200, Options())] == ends


def test_images_have_one_regime() -> None:
    assert [r.most for r in regimes(moving("vgg19"), H200, Options())] == [3]


def test_options_hold_for_all_regimes() -> None:
    given = Options(tiles=(("up", (64, 64, 64)),))
    assert {r.options for r in regimes(mlp(300), H200, given)} == {given}


def test_regimes_follow_the_model() -> None:
    """Few rows have one of their own, with other tiles than many."""
    found = regimes(mlp(2048, H=4096, I=4096), H200, Options())
    assert 2 <= len(found) <= 3 and found[-1].most == 2048
    assert found[0].options.tiles != found[-1].options.tiles


def test_a_range_ends_where_other_tiles_are_better() -> None:
    times = {SMALL: [(1.0, 1.0), (1.0, 1.0), (3.0, 3.0)], LARGE: [(2.0, 2.0), (2.0, 1.5), (1.0, 1.0)]}
    assert _least([64, 128, 256], times) == [Regime(128, SMALL), Regime(256, LARGE)]


def test_tiles_that_do_not_fit_are_not_taken() -> None:
    never = float("inf")
    times = {SMALL: [(1.0, 1.0), (never, never)], LARGE: [(2.0, 2.0), (2.0, 2.0)]}
    assert _least([64, 128], times) == [Regime(64, SMALL), Regime(128, LARGE)]


def test_one_range_where_one_set_of_tiles_is_best_throughout() -> None:
    times = {SMALL: [(1.0, 1.0)] * 4, LARGE: [(2.0, 2.0)] * 4}
    assert _least([64, 128, 256, 512], times) == [Regime(512, SMALL)]
