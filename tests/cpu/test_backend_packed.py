"""Linears whose columns lie head by head give queries, keys and values without a copy; of the linears of the
same rows those are one that an epilogue treats alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilegen as tg
from tests.compiled import compiled, counted, left, programs, same

HEADS, D = 3, 8
Pieces = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


APART: dict[str, Pieces] = {
    "GPT-NeoX": lambda x: x.view(2, 7, HEADS, 3 * D).transpose(1, 2).chunk(3, -1),
    "BLOOM": lambda x: tuple(x.view(2, 7, HEADS, 3, D)[..., n, :].transpose(1, 2) for n in range(3)),
    "unbound": lambda x: x.view(2, 7, HEADS, 3, D).permute(0, 2, 1, 3, 4).unbind(3),
    "split": lambda x: x.view(2, 7, HEADS, 3 * D).split([D, D, D], -1),
}


class Packed(nn.Module):
    def __init__(self, apart: Pieces, bias: bool, turned: bool):
        super().__init__()
        self.apart, self.turned, self.qkv = apart, turned, nn.Linear(16, 3 * HEADS * D, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (a.transpose(1, 2) if self.turned else a for a in self.apart(self.qkv(x)))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", APART)
def test_nothing_is_copied(name: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Packed(APART[name], bias, name == "split").requires_grad_(False)
    x, found = torch.randn(2, 7, 16), programs(monkeypatch)
    same(compiled(model)(x), model(x))
    assert counted()["regions"] == 1 and not left(), left()
    assert "strided_copy" not in [c.kind for p in found for c in p.calls]


def test_from_torch_has_the_weight_in_another_order() -> None:
    torch.manual_seed(0)
    model, x = Packed(APART["GPT-NeoX"], True, False), torch.randn(2, 7, 16)
    layer = tg.module.from_torch(model, x)
    with torch.no_grad():
        same(layer(x), model(x))
    assert [c.kind for c in layer.program.calls if c.kind == "strided_copy"] == []
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


OTHERWISE: dict[str, Pieces] = {
    "pieces of two sizes": lambda x: (x.view(14, HEADS, 3 * D)[..., :5], x.view(14, HEADS, 3 * D)[..., 5:]),
    "cut in two ways": lambda x: (x.view(14, HEADS, 3, D)[:, :, 1], x.view(14, HEADS * 3, D)[:, 2]),
    "read whole, too": lambda x: (x.view(14, HEADS, 3, D)[:, :, 1], x * 2),
    "by a step": lambda x: (x.view(14, HEADS, 3 * D)[..., ::2],),
    "pieces of rows": lambda x: (x.view(14, HEADS, 3 * D)[3:9],),
    "some of the pieces": lambda x: (x.view(14, HEADS, 3, D)[:, :, 1:], x.view(14, HEADS, 3, D)[:, 1:, 1]),
    "heads, then pieces": lambda x: (x.view(14, HEADS, 3, D)[:, 1][:, 1], x.view(14, HEADS, 3, D)[:, 2]),
    "before the last": lambda x: (x.view(14, HEADS, 3 * D)[..., : -2 * D], x.view(14, HEADS, 3, D)[:, :, -1]),
    "unbound along rows": lambda x: x.view(14, HEADS, 3, D).unbind(),
    "halves of rows": lambda x: x.view(14, HEADS, 3, D).split(7),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_taken_apart_otherwise_is_right(name: str) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(16, 3 * HEADS * D).requires_grad_(False)

    def model(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.relu(a).contiguous() for a in OTHERWISE[name](linear(x))]

    x = torch.randn(2, 7, 16)
    same(compiled(model)(x), model(x))


class Parallel(nn.Module):
    """Attention and a feed-forward beside it, of the same rows, as in Phi and GPT-J; scaled: queries are."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.up, self.gate, self.down = nn.Linear(16, 40), nn.Linear(16, 40), nn.Linear(40, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).view(2, 7, 2, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q * 0.5, k, v).transpose(1, 2).flatten(2)
        return a + self.down(F.silu(self.gate(x)) * self.up(x))


def test_linears_that_functions_read_are_not_merged_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their functions are then an epilogue of all columns."""
    torch.manual_seed(0)
    model = Parallel().to(torch.bfloat16).requires_grad_(False)
    x, found = torch.randn(2, 7, 16, dtype=torch.bfloat16), programs(monkeypatch)
    same(compiled(model)(x), model(x), 2e-2)
    widths = sorted({p.tensor(c.result).shape[-1] for p in found for c in p.calls if c.kind == "linear"})
    assert widths == [16, 48, 80], widths


def test_linears_behind_a_convolution_over_one_dimension_are_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a model of sounds: a line of pixels is copied once, as its input is, and what follows is one
    product again."""
    torch.manual_seed(0)
    conv, norm = nn.Conv1d(8, 16, 3), nn.LayerNorm(16)
    up, gate = nn.Linear(16, 24), nn.Linear(16, 24)

    def model(x: torch.Tensor) -> torch.Tensor:
        x = norm(conv(x).transpose(1, 2))
        return F.silu(gate(x)) * up(x)

    x, found = torch.randn(2, 8, 19), programs(monkeypatch)
    with torch.no_grad():
        same(compiled(model)(x), model(x))
    kinds = [c.kind for c in found[-1].calls]
    assert (kinds.count("linear"), kinds.count("conv2d"), kinds.count("strided_copy")) == (1, 1, 2), kinds
