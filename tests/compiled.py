"""Modules under torch.compile(backend="tilegen") beside eager ones, on any device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from tilegen.backend import joint_pass
from tilegen.backend.backend import tilegen
from tilegen.backend.region import Region
from tilegen.backend.search import FAULTS
from tilegen.frontend.program import Program


class Block(nn.Module):
    """A layer of a decoder: norms, projections apart, attention, a gate."""

    def __init__(
        self, width: int = 32, heads: int = 2, causal: bool = True, least: torch.dtype | None = None
    ):
        super().__init__()
        self.heads, self.causal, self.least = heads, causal, least
        self.norm, self.after = nn.RMSNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=n < 3) for n in range(4))
        self.up, self.gate, self.down = (nn.Linear(a, b) for a, b in ((width, 48), (width, 48), (48, width)))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, s, width = x.shape
        h = self.norm(x)
        q, k, v = (p(h).view(b, s, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        if mask is None and self.causal:  # as models build it
            at = torch.arange(s, device=x.device)
            mask = torch.where(at[None] <= at[:, None], 0.0, torch.finfo(self.least or x.dtype).min).to(
                x.dtype
            )
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, width))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    """Images: a convolution, a norm of batches, a pool, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.next, self.head = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.relu(self.norm(self.stem(x)))
        z = F.relu(self.next(F.max_pool2d(y, 2)))
        return self.head(z.mean((2, 3))), z


def compiled(module: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """Anew: what was counted and compiled before is forgotten."""
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(module, backend=tilegen, **how)  # type: ignore[no-any-return]


def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Of the regions, as they are compiled."""
    found: list[Program] = []
    kernel = Region.kernel

    def noted(self: Region) -> object:
        found.append(self.program)
        return kernel(self)

    monkeypatch.setattr(Region, "kernel", noted)
    return found


def taken(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Of the regions, as the pass tells of them; numbers are drawn from the same seed."""
    torch.manual_seed(0)
    found: list[Program] = []
    monkeypatch.setattr(joint_pass, "_tell", lambda candidate: found.append(candidate.program))
    return found


def counted() -> Counter[str]:
    found = counters["tilegen"]
    assert not found[FAULTS], left()
    return found


def left() -> str:
    """All reasons, as text."""
    return "\n".join(word for word in counters["tilegen"] if word.startswith("left"))


def tensors(found: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]


def same(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    """Shapes, types and strides, and elements but for rounding."""
    pairs = list(zip(tensors(found), tensors(wanted), strict=True))
    assert pairs
    for a, b in pairs:
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        error = float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))
        assert error < tolerance, error
