"""Which prepared weights need a binary of their own: those that are packed tile by tile."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilegen as tg
from benchmarks.workloads import conv_pair
from tests.gpu.ops import normed
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.library import HopperLibrary


def folder(plan: Plan, *weights: str) -> Path:
    return HopperLibrary(plan, frozenset(weights)).files["kernel.cubin"].parent


def test_weights_that_are_not_packed_share_the_binary() -> None:
    plan = tg.plan(conv_pair(HW=8, C=64), "h200")
    assert folder(plan) == folder(plan, "w1", "b1", "w2", "b2")


@pytest.mark.parametrize(
    "weights, own", [(("w1",), False), (("w1", "g"), True), (("bias",), False), (("w3",), True)]
)
def test_packed_weights_have_their_own(weights: tuple[str, ...], own: bool) -> None:
    """A normed linear's weight is packed with the norm's, not without it."""
    plan = tg.plan(normed(), "h200")
    assert (folder(plan) != folder(plan, *weights)) == own
