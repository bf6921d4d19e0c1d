"""Rotary embeddings as models spell them are one op, under torch.compile and torch.export: of all columns of
a head or of the first ones, of halves or of pairs side by side, in either order of rows and heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilegen as tg
from tests.compiled import compiled, counted, left, programs, same
from tilegen.frontend.program import Program
from tilegen.nn import patterns

HEADS, D = 3, 16


def halves(x: torch.Tensor) -> torch.Tensor:
    """As modeling_llama has it."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def pairs(x: torch.Tensor) -> torch.Tensor:
    """As modeling_gptj has it."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class Turned(nn.Module):
    """Queries and keys of which R columns of each head turn. late: heads stand behind rows then, as in GPT-J.
    wide: it is computed in float32."""

    def __init__(self, r: int, interleaved: bool, late: bool, wide: bool):
        super().__init__()
        self.r, self.turn, self.late, self.wide = r, pairs if interleaved else halves, late, wide
        self.qkv = nn.Linear(HEADS * D, 3 * HEADS * D)
        angles = torch.randn(12, r)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = (t[None, : x.shape[1]].unsqueeze(2 if self.late else 1) for t in (self.cos, self.sin))
        x = x if self.late else x.transpose(1, 2)
        dtype, x = x.dtype, x.float() if self.wide else x
        part, rest = x[..., : self.r], x[..., self.r :]
        part = part * cos + self.turn(part) * sin
        x = (torch.cat([part, rest], dim=-1) if self.r < D else part).to(dtype)
        return x.transpose(1, 2) if self.late else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (a.unflatten(-1, (HEADS, D)) for a in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(self._turned(q), self._turned(k), v.transpose(1, 2))


def kinds(found: list[Program]) -> list[str]:
    """Of the ops of all regions."""
    return [call.kind for program in found for call in program.calls]


@pytest.mark.parametrize(
    ("late", "wide", "dtype"),
    [(False, False, torch.float32), (True, False, torch.bfloat16), (False, True, torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("r", [D, 4, 10])
def test_a_part_of_each_head_turns(
    r: int, interleaved: bool, late: bool, wide: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, found = Turned(r, interleaved, late, wide).to(dtype).requires_grad_(False), programs(monkeypatch)
    x = torch.randn(2, 7, HEADS * D, dtype=dtype)
    y, wanted = compiled(model)(x), model(x)
    same(y, wanted, 2e-5 if dtype is torch.float32 else 2e-2)
    assert {*kinds(found)} <= {"attention", "linear", "rotary", "pointwise"} and not left(), (
        kinds(found),
        left(),
    )
    assert kinds(found).count("rotary") >= 2


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("r", [D, 4])
def test_it_is_known_to_torch_export(r: int, interleaved: bool) -> None:
    torch.manual_seed(0)
    model = Turned(r, interleaved, late=False, wide=False).requires_grad_(False)
    x = torch.randn(2, 7, HEADS * D)
    layer = tg.module.from_torch(model, x)
    same(layer(x).contiguous(), model(x).contiguous())
    found = kinds([layer.program])
    assert {*found} <= {"attention", "linear", "rotary", "pointwise"} and found.count("rotary") == 2


def test_gradients_are_eagers() -> None:
    torch.manual_seed(0)
    model = Turned(4, interleaved=True, late=False, wide=False)
    grads = []
    for run in (model, compiled(model)):
        x = torch.randn(2, 7, HEADS * D, generator=torch.Generator().manual_seed(1), requires_grad=True)
        run(x).square().sum().backward()
        grads.append([x.grad, model.qkv.weight.grad.clone()])
        model.zero_grad()
    same(grads[1], grads[0])
    assert counted()["regions"] >= 1


class Prefixed(nn.Module):
    """The first rows do not turn: tokens that are no patches, as in EVA-02 and DINOv3. Tables (S, D)."""

    def __init__(self, interleaved: bool, split: bool):
        super().__init__()
        self.turn, self.split, self.qkv = pairs if interleaved else halves, split, nn.Linear(48, 144)
        angles = torch.randn(5, D)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (a.unflatten(-1, (HEADS, D)).transpose(1, 2) for a in self.qkv(x).chunk(3, -1))

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, rest = x.split((2, 5), dim=-2) if self.split else (x[:, :, :2], x[:, :, 2:])
            return torch.cat((first, rest * self.cos + self.turn(rest) * self.sin), dim=-2)

        return F.scaled_dot_product_attention(turned(q), turned(k), v)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_first_rows_may_stay(interleaved: bool, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, found = Prefixed(interleaved, split).requires_grad_(False), programs(monkeypatch)
    x = torch.randn(2, 7, 48)
    same(compiled(model)(x), model(x))
    assert {*kinds(found)} <= {"attention", "linear", "rotary", "pointwise"} and not left(), (
        kinds(found),
        left(),
    )


OTHERWISE = {
    "rows behind others": lambda x, c: torch.cat([x[:, :, :2], x[:, :, 3:] * c + halves(x[:, :, 3:]) * c], 2),
    "the first rows turn": lambda x, c: torch.cat(
        [x[:, :, :2] * c + halves(x[:, :, :2]) * c, x[:, :, 2:]], 2
    ),
    "rows of other heads": lambda x, c: torch.cat(
        [x[:, :1], x[:, 1:] * torch.full((7, 8), 0.5) + halves(x[:, 1:]) * torch.full((7, 8), 0.7)], 1
    ),
    "other columns stay": lambda x, c: torch.cat([x[..., :4] * c + halves(x[..., :4]) * c, x[..., 6:]], -1),
    "the last columns turn": lambda x, c: torch.cat(
        [x[..., :4], x[..., 4:] * c + halves(x[..., 4:]) * c], -1
    ),
    "pairs the other way round": lambda x, c: (
        x * c[0] + torch.stack((-x[..., ::2], x[..., 1::2]), -1).flatten(-2) * c[0]
    ),
    "pairs of other rows": lambda x, c: (
        x[..., :4] * c + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)[..., :4] * c
    ),
    "every fourth column": lambda x, c: x[..., :8] * c[:1] + pairs(x)[..., :8] * c[:1],
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_none_is_not_taken_for_one(name: str) -> None:
    torch.manual_seed(0)
    c = torch.randn(2, 1, 1, 1)
    x = torch.randn(2, HEADS, 7, 8)
    model = OTHERWISE[name]
    same(compiled(lambda x: model(F.relu(x), c))(x), model(F.relu(x), c))


def test_a_pattern_is_found_in_a_trace() -> None:
    """What the tests above rest on: the call stands for all that was spelled out."""
    model = Turned(4, interleaved=True, late=True, wide=False)
    graph = torch.export.export(model, (torch.randn(2, 7, HEADS * D),)).run_decompositions({}).graph
    patterns.composed(graph)
    found = [n for n in graph.nodes if n.target is patterns.rotary]
    assert [n.args[3] for n in found] == [True, True]
    assert not [n for n in graph.nodes if n.target is torch.ops.aten.stack.default]
