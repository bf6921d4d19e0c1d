"""Greedy decoding under torch.compile(backend="tilegen"): each step writes a cache; tokens are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WORDS, WIDTH, HEADS, MOST = 60, 32, 2, 24


class Cached(nn.Module):
    """A layer of attention over a static cache, as transformers write one: rows are put in place, and a mask
    says which keys there are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.RMSNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, MOST, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.keys[:, :, at], self.values[:, :, at] = k, v
        seen = torch.arange(MOST)[None] <= at[:, None]
        a = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.down(F.silu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Cached() for _ in range(2))

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x, at)
        return self.head(x)


def decoded(step: Step, prompt: torch.Tensor) -> torch.Tensor:
    ids, at, found = prompt, torch.arange(prompt.shape[1]), []
    while int(at[-1]) < MOST - 1:
        ids = step(ids, at)[:, -1:].argmax(-1)
        found.append(ids)
        at = at[-1:] + 1
    return torch.cat(found, 1)


@pytest.mark.parametrize("dynamic", [False, None])
def test_tokens_are_eagers(dynamic: bool | None) -> None:
    """A prompt, then one token at a time; what the caches hold besides."""
    torch.manual_seed(0)
    model, prompt = Decoder().eval(), torch.randint(0, WORDS, (1, 7))
    with torch.no_grad():
        wanted = decoded(model, prompt)
        caches = [layer.keys.clone() for layer in model.layers]
        for layer in model.layers:
            layer.keys.zero_(), layer.values.zero_()
        run = compiled(model, dynamic=dynamic)
        assert torch.equal(decoded(run, prompt), wanted)
    assert len(set(wanted[0].tolist())) > 3  # else any model would do
    for layer, cache in zip(model.layers, caches, strict=True):
        assert torch.allclose(layer.keys, cache, atol=1e-5)
    assert counted()["regions"] >= 2, left()
