"""Convolutions that options cut as linears, and cannot be."""

from __future__ import annotations

import pytest

import tilegen as tg
from tests.gpu.ops import pair
from tilegen.errors import PlanError


def test_a_chain_cut_as_linears_and_in_boxes_is_refused() -> None:
    tiles = {"first": (48, 64, 64), "second": (1, 2, 14, 64, 64)}
    words = "tile 48x64x64 of 'first' is a linear's, and other convolutions of the launch are cut in boxes"
    with pytest.raises(PlanError, match=words):
        tg.plan(pair(), "a100", tiles=tiles)


def test_a_filter_that_reaches_too_far_for_patches_is_named() -> None:
    with pytest.raises(PlanError, match="48x64x64 of 'first' is a linear's, and its filter reaches too far"):
        tg.plan(pair(HW=40, size=29), "a100", tiles={"first": (48, 64, 64)})
