"""torch.compile(backend="tilegen"): what is spelled nearly as an op is; parts that lose a node and stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left, same
from tilegen import config

D = 16
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "min_gain", 0)
    torch.manual_seed(0)


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


OF_ROWS: dict[str, Function] = {
    "a root mean square with more of eps": lambda x, w: (
        w * (x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 0.5, alpha=3)))
    ),
    "a layer norm with more of eps": lambda x, w: (
        w * (centred(x) * torch.rsqrt(torch.add(centred(x).pow(2).mean(-1, keepdim=True), 1e-6, alpha=1e5)))
    ),
    "gelu of another sum": lambda x, w: x * 0.5 * torch.add(torch.erf(x / math.sqrt(2)), 1.0, alpha=2) + w,
    "gelu by tanh of another sum": lambda x, w: (
        x * 0.5 * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * torch.add(x, 0.044715 * x.pow(3.0), alpha=2)))
        + w
    ),
}
TURNS: dict[str, Function] = {
    "turned back": lambda x, cos, sin: torch.add(x * cos, turned(x) * sin, alpha=-1),
    "half as far": lambda x, cos, sin: torch.add(x * cos, turned(x) * sin, alpha=0.5),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_sum_that_weighs_its_second_part_is_no_part_of_an_op(name: str) -> None:
    x, w = torch.randn(4, D), nn.Parameter(torch.randn(D))
    with torch.no_grad():
        same(compiled(OF_ROWS[name])(x, w), OF_ROWS[name](x, w))
    assert counted()["regions"] >= 1, left()


@pytest.mark.parametrize("name", TURNS)
def test_heads_that_turn_otherwise_are_eagers(name: str) -> None:
    given = torch.randn(2, 3, 5, D), torch.randn(1, 1, 5, D), torch.randn(1, 1, 5, D)
    with torch.no_grad():
        same(compiled(TURNS[name])(*given), TURNS[name](*given))
    assert counted()["regions"] >= 1, left()


def test_columns_taken_with_a_step_are_no_half_of_a_head() -> None:
    def strided(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return x * cos + torch.cat((-x[..., D // 2 :], x[..., :D:2]), -1) * sin

    given = torch.randn(2, 3, 5, D), torch.randn(1, 1, 5, D), torch.randn(1, 1, 5, D)
    with torch.no_grad():
        same(compiled(strided)(*given), strided(*given))
    assert counted()["ops"] >= 1, left()


def test_an_id_beyond_32_bits_is_no_row_of_a_table() -> None:
    table = nn.Embedding(10, 8)
    ids = torch.tensor([[1, (1 << 32) + 1, -(1 << 32) + 1, 9]])
    with torch.no_grad():
        found = compiled(lambda i: table(i) * 2)(ids)[0]
    assert counted()["regions"] == 1, left()
    same(found[[0, 3]], 2 * table.weight.detach()[[1, 9]])
    assert found[[1, 2]].isnan().all()


class Head(nn.Module):
    """A norm, a linear, and a product of rows with a weight."""

    def __init__(self, product: Function):
        super().__init__()
        self.before, self.w, self.product = nn.Linear(8, 8), nn.Parameter(torch.randn(12, 8)), product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.before(F.layer_norm(x, (8,))))
        return self.product(h, self.w).softmax(-1)


PRODUCTS: dict[str, Function] = {
    "einsum": lambda h, w: torch.einsum("bi,oi->bo", h, w),
    "bmm": lambda h, w: torch.bmm(h[None], w.t()[None])[0],
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_rows_with_a_weight_stays_in_its_region(name: str) -> None:
    model, x = Head(PRODUCTS[name]), torch.randn(4, 8)
    with torch.no_grad():
        same(compiled(model)(x), model(x))
    assert (counted()["regions"], counted()["ops"]) == (1, 5), left()


def moved(model: Function, x: torch.Tensor) -> Any:
    torch._dynamo.mark_dynamic(x, 1)
    with torch.no_grad():
        same(compiled(model)(x), model(x))
    return counted()


def test_a_first_token_of_a_length_that_moves_leaves_the_rest() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            first = self.linear(F.gelu(self.norm(h)))[:, 0]
            return first + 1

    assert moved(Classifier(), torch.randn(2, 5, 8))["ops"] == 4, left()


def test_products_of_two_sizes_that_move_are_inductors() -> None:
    found = moved(lambda h: torch.softmax(torch.relu(h) @ h.mT, -1) @ h, torch.randn(2, 5, 8))
    assert found["ops"] >= 1 and "a size that moves" in left()


def test_a_tensor_of_no_elements_leaves_the_rest() -> None:
    def model(none: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(none) * 2, torch.tanh(x) * 3

    given = torch.randn(0, 8), torch.randn(4, 8)
    with torch.no_grad():
        same(compiled(model)(*given), model(*given))
    assert counted()["ops"] == 2, left()
