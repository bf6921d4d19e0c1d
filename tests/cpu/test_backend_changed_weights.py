"""torch.compile(backend="tilegen"): what regions keep of weights follows changes that torch does not count,
too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tilegen as tg
from tests.compiled import compiled, counted, left, same


class Pair(nn.Module):
    """Two linears that a region merges, so that it keeps a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.a(x)) * torch.tanh(self.b(x))


def losses(run: Callable[..., torch.Tensor], model: nn.Module, **how: Any) -> torch.Tensor:
    optimizer, x, found = torch.optim.AdamW(model.parameters(), lr=0.05, **how), torch.ones(4, 16), []
    for _ in range(4):
        loss = (run(x) - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    with torch.no_grad():
        return torch.stack([*found, run(x).sum()])


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_steps_of_an_optimizer_are_seen(how: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model, other = Pair(), Pair()
    other.load_state_dict(model.state_dict())
    same(losses(compiled(model), model, **how), losses(other, other, **how))
    assert counted()["regions"] >= 1, left()


def through_data(model: Pair) -> None:
    model.a.weight.data += 1


def through_numpy(model: Pair) -> None:
    model.a.weight.detach().numpy()[:] *= 2


@pytest.mark.parametrize("change", [through_data, through_numpy], ids=["data", "numpy"])
def test_changes_that_torch_does_not_count_are_seen_once_told(change: Callable[[Pair], None]) -> None:
    torch.manual_seed(0)
    model, x = Pair().requires_grad_(False), torch.randn(4, 16)
    run = compiled(model)
    same(run(x), model(x))
    change(model)
    tg.weights_changed()
    same(run(x), model(x))
    assert counted()["regions"] == 1, left()
