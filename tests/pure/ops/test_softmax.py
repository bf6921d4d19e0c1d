"""softmax and its logarithm mean what torch's do."""

from __future__ import annotations

import math

import pytest
import torch

import tilegen as tg
from tilegen.ops.softmax import SoftmaxAttributes


@tg.spec
def logs(shape: tuple[int, ...] = (5, 12), scale: float = 1.0) -> tg.Program:
    return tg.log_softmax(tg.input("x", shape, "float32"), scale=scale, name="y")


@pytest.mark.parametrize("scale", [1.0, 0.125, -3.0])
@pytest.mark.parametrize("shape", [(1, 1), (5, 12), (2, 3, 77), (2, 3, 4, 9)])
def test_the_logarithm_of_a_softmax_is_torchs(shape: tuple[int, ...], scale: float) -> None:
    x = 20 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = tg.reference(logs(shape, scale), x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found.double(), (scale * x.double()).log_softmax(-1), rtol=1e-5, atol=1e-5)


def test_its_plan_is_proved_and_says_so() -> None:
    plan = tg.Plan.from_json(tg.plan(logs((40, 100)), "h200").to_json())
    assert tg.verify(plan).ok
    assert plan.digest != tg.plan(soft((40, 100)), "h200").digest
    (op,) = plan.graph.ops
    assert SoftmaxAttributes.of(op).log


@tg.spec
def soft(shape: tuple[int, ...] = (5, 12)) -> tg.Program:
    return tg.softmax(tg.input("x", shape, "float32"), name="y")


def test_its_scale_is_a_finite_number() -> None:
    with pytest.raises(tg.SpecError, match="log_softmax: scale"):
        logs(scale=math.inf)
