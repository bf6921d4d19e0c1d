"""How far gradients are off: of all together, and of the worst parameter."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gradients import errors, gradients


def test_a_parameter_that_is_off_is_seen_beside_a_large_one() -> None:
    exact = {"large": torch.full((100,), 10.0), "small": torch.tensor([3.0, 4.0])}
    found = {**exact, "small": torch.tensor([3.0, 4.5])}
    whole, worst = errors(found, exact)
    assert worst == pytest.approx(0.1) and whole == pytest.approx(0.5 / (100.0**2 + 25) ** 0.5)


def test_what_should_be_nothing_is_compared_with_all() -> None:
    exact = {"large": torch.tensor([1000.0]), "nothing": torch.tensor([0.0])}
    assert errors({**exact, "nothing": torch.tensor([0.5])}, exact)[1] == pytest.approx(0.5)


def test_a_parameter_that_the_loss_does_not_see_has_zeros() -> None:
    model = torch.nn.ModuleDict({"seen": torch.nn.Linear(2, 3), "unseen": torch.nn.Linear(2, 3)})
    found = gradients(model["seen"], model, (torch.ones(1, 2),))
    assert not found["unseen.weight"].any() and found["seen.weight"].norm() > 0


def test_the_loss_moves_what_a_norm_would_hide() -> None:
    """The squares of a layer norm's results have the same mean whatever stands before it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
    found = gradients(model, model, (torch.randn(3, 4),))
    assert set(found) == {"0.weight", "0.bias", "1.weight", "1.bias"} and found["0.weight"].norm() > 1e-3
