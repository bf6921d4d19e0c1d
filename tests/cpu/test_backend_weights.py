"""torch.compile(backend="tilegen"): weights of any strides and shapes that models have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left, same

Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ROWS, IMAGES = torch.randn(4, 8), torch.randn(2, 3, 8, 8)

CASES: dict[str, tuple[Model, torch.Tensor, torch.Tensor]] = {
    "one number of more dimensions": (lambda x, w: F.silu(x) * w, ROWS, torch.randn(1, 1, 1)),
    "one number beside images": (lambda x, w: F.max_pool2d(x, 2) * w, IMAGES, torch.randn(1)),
    "turned": (lambda x, w: F.linear(x, w.t().view(5, 12)[:, :8]), ROWS, torch.randn(12, 5).t()),
}


OTHERS: dict[str, tuple[Model, torch.Tensor, torch.Tensor, str]] = {
    "queries": (
        lambda x, w: F.scaled_dot_product_attention(w.expand(2, 2, 1, 16), x, x),
        torch.randn(2, 2, 7, 16),
        torch.randn(1, 2, 1, 16),
        "attention of weights",
    ),
    "rows": (lambda x, w: F.layer_norm(w, (8,), x[0] * 2), ROWS, torch.randn(4, 8), "rows of a weight"),
}


class Weighed(nn.Module):
    def __init__(self, model: Model, w: torch.Tensor):
        super().__init__()
        self.model, self.w = model, nn.Parameter(w, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, self.w)


@pytest.mark.parametrize("name", CASES)
def test_a_weight(name: str) -> None:
    model, x, w = CASES[name]
    layer = Weighed(model, w)
    same(compiled(layer)(x), layer(x))
    assert counted()["regions"] == 1, left()


@pytest.mark.parametrize("name", OTHERS)
def test_a_weight_where_specs_have_none_is_left(name: str) -> None:
    model, x, w, reason = OTHERS[name]
    layer = Weighed(model, w)
    same(compiled(layer)(x), layer(x))
    assert reason in left()
