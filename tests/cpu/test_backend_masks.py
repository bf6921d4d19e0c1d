"""Masks and biases of attention under torch.compile(backend="tilegen"): added to scores inside of regions,
from the tensors that models broadcast them from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left, same, taken
from tilegen.frontend.program import Program
from tilegen.ops.attention import AttentionAttributes

WIDTH, HEADS, WORDS = 32, 4, 60


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Those of all regions."""
    return taken(monkeypatch)


def added(programs: list[Program]) -> list[Any]:
    """Of all attentions in regions the sizes of what is added to scores: of batches, heads and queries."""
    calls = (call for program in programs for call in program.calls)
    return [c.attributes.bias for c in calls if isinstance(c.attributes, AttentionAttributes)]


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )

    def scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and values."""
        q, k, v = map(heads, self.qkv(self.norm(x)).chunk(3, -1))
        return q @ k.transpose(-1, -2) * 0.3, v

    def put(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + self.out(y.transpose(1, 2).reshape(x.shape))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = map(heads, self.qkv(self.norm(x)).chunk(3, -1))
        return self.put(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Encoder(nn.Module):
    """As BERT takes a mask of what is padding: of all queries, and each layer makes numbers of it."""

    def __init__(self, spelled: bool = False, layers: int = 2):
        super().__init__()
        self.table, self.spelled = nn.Embedding(WORDS, WIDTH), spelled
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s = ids.shape
        x, every = self.table(ids), torch.arange(s)[None, None, :, None] >= 0
        seen = (every & mask.bool()[:, None, None, :]).expand(b, 1, s, s)
        for layer in self.layers:
            if self.spelled:
                scores, v = layer.scores(x)
                scores = scores + torch.where(seen, 0.0, torch.finfo(x.dtype).min).to(x.dtype)
                p = scores.softmax(-1, dtype=torch.float32).to(x.dtype)
                x = layer.put(x, p @ v)
            else:
                x = layer(x, seen)
        return x


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(3, 17, dtype=torch.long)
    mask[1, 11:], mask[2, :5] = 0, 0
    return torch.randint(0, WORDS, (3, 17)), mask


@pytest.mark.parametrize("spelled", [False, True])
def test_padding_is_hidden_by_a_row_of_each_sequence(spelled: bool, programs: list[Program]) -> None:
    """Layers share it."""
    model, given = Encoder(spelled).requires_grad_(False), padded()
    same(compiled(model)(*given), model(*given))
    assert counted()["regions"] == 1, left()
    assert added(programs) == [(3, 1, 1)] * 2
    inputs = [t for t in programs[0].arguments if t.role == "input"]
    assert len(inputs) == 2  # ids and one mask


def test_what_is_masked_in_bfloat16_is_as_right_as_torchs(programs: list[Program]) -> None:
    model, given = Encoder().requires_grad_(False), padded()
    exact = model(*given)
    model = model.bfloat16()
    found, eager = compiled(model)(*given), model(*given)
    assert (found - exact).norm() < 1.2 * (eager - exact).norm()
    assert added(programs) == [(3, 1, 1)] * 2


def test_a_mask_that_changes_is_looked_at_anew() -> None:
    model, (ids, mask) = Encoder().requires_grad_(False), padded()
    run = compiled(model)
    for seen in (mask, 1 - mask.tril(-3), torch.ones_like(mask)):
        same(run(ids, seen), model(ids, seen))


@pytest.mark.parametrize("least", [-torch.inf, torch.finfo(torch.float32).min])
def test_a_sequence_of_padding_alone_is_eagers_where_that_is_finite(least: float) -> None:
    layer, x = Layer().requires_grad_(False), torch.randn(2, 9, WIDTH)
    mask = torch.zeros(2, 1, 1, 9)
    mask[1] = least

    found, expected = compiled(layer)(x, mask), layer(x, mask)
    assert counted()["regions"] == 1 and found.isfinite().all()
    there = expected.isfinite()
    torch.testing.assert_close(found[there], expected[there])


class Relative(nn.Module):
    """T5: scores as they are, a table of how far keys are apart, and the least number where nothing is."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.near = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, HEADS)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x, at = self.table(ids), torch.arange(ids.shape[1])
        bias = self.near((at[None] - at[:, None]).clamp(-4, 3) + 4).permute(2, 0, 1)[None]
        if mask is not None:
            bias = bias + (1.0 - mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            scores, v = layer.scores(x)
            p = F.softmax((scores + bias).float(), dim=-1).type_as(scores)
            x = layer.put(x, p @ v)
        return x


def test_a_bias_of_how_far_keys_are_apart_is_a_weight(programs: list[Program]) -> None:
    model, (ids, mask) = Relative().requires_grad_(False), padded()
    same(compiled(model)(ids), model(ids))
    assert counted()["regions"] == 1, left()
    assert added(programs) == [(1, 4, 17)] * 2
    assert [t.role for t in programs[0].arguments].count("input") == 1  # ids alone
    programs.clear()
    same(compiled(model)(ids, mask), model(ids, mask))
    assert added(programs) == [(3, 4, 17)] * 2, left()


class Windows(nn.Module):
    """Swin: windows of images as batches, a bias of places, and what shifted windows hide from each other."""

    def __init__(self, shifted: bool = True):
        super().__init__()
        self.layer, self.places = Layer(), nn.Parameter(torch.randn(49, HEADS))
        self.register_buffer("index", torch.randint(0, 49, (16, 16)))
        self.shifted = shifted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, v = self.layer.scores(x)
        bias = self.places[self.index.view(-1)].view(16, 16, -1).permute(2, 0, 1).contiguous()
        scores = scores + bias.unsqueeze(0)
        if self.shifted:
            part = (torch.arange(64).view(4, 16) * 7 // 23) % 3
            mask = torch.where(part[:, None] == part[:, :, None], 0.0, -100.0)
            scores = scores.view(-1, 4, HEADS, 16, 16) + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, HEADS, 16, 16)
        return self.layer.put(x, scores.softmax(-1) @ v)


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_of_each_image_have_the_same_bias(shifted: bool, programs: list[Program]) -> None:
    model, x = Windows(shifted).requires_grad_(False), torch.randn(12, 16, WIDTH)
    same(compiled(model)(x), model(x))
    assert added(programs) == [(4 if shifted else 1, 4, 16)], left()


class Places(nn.Module):
    """BEiT: a bias that is a parameter, and torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = Layer(), nn.Parameter(torch.randn(1, HEADS, 17, 17))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, self.bias.expand(len(x), -1, -1, -1))


def test_a_bias_that_is_a_parameter_is_taken_as_it_is(programs: list[Program]) -> None:
    model, x = Places().requires_grad_(False), torch.randn(2, 17, WIDTH)
    run = compiled(model)
    same(run(x), model(x))
    assert counted()["regions"] == 1 and added(programs) == [(1, 4, 17)]
    model.bias.mul_(2.0)
    same(run(x), model(x))


def test_a_mask_that_is_padded_for_a_kernel_of_torchs_is_taken_without(programs: list[Program]) -> None:
    """As torch does for one of its kernels on GPUs, whose rows are to be aligned."""
    layer, x, mask = Layer().requires_grad_(False), torch.randn(2, 17, WIDTH), torch.randn(2, 1, 1, 17)

    def model(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return layer(x, F.pad(mask, (0, 7))[..., :17].expand(2, HEADS, 17, 17))

    same(compiled(model)(x, mask), model(x, mask))
    assert added(programs) == [(2, 1, 1)], left()


def test_gradients_of_masked_attention_are_eagers() -> None:
    """torch computes these of its own attention, which has its own mask back."""
    model, given = Encoder(layers=1), padded()
    grads = []
    for run in (model, compiled(model)):
        model.zero_grad()
        run(*given).sin().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_attention_that_no_region_takes_has_its_mask_back(programs: list[Program]) -> None:
    """Of float64; masks of windows come again and again."""
    x, bias, every = torch.randn(6, 4, 16, 8).double(), torch.randn(4, 16, 16).double(), torch.arange(3 * 256)

    def model(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mask = torch.where(every.view(3, 1, 16, 16).repeat(2, 1, 1, 1) % 5 > 0, 0.0, -9.0).double()
        whole = F.scaled_dot_product_attention(x, x, x, attn_mask=mask + bias)
        return whole + F.scaled_dot_product_attention(x, x, x, attn_mask=bias.expand(6, 4, 16, 16))

    same(compiled(model)(x, bias), model(x, bias))
    assert not programs and "torch.float64" in left()
