"""torch.compile(backend="tilegen"): numbers that casts and norms change as eager changes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left, same
from tilegen import config

TRUNCATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of a relu": lambda x: torch.relu(x * 3).int().float() * 2,
    "int64 of a tanh": lambda x: torch.tanh((x * 5).long().float()),
    "bins of a softmax": lambda x: F.softmax(x, -1).mul(100).int().float() + x,
    "of two bytes": lambda x: torch.relu(x.bfloat16() * 3).int().bfloat16() * 2,
    "a view between": lambda x: torch.relu(x * 3).int().view(2, -1).float() * 2,
    "a norm behind, spelled out": lambda x: (
        (y := (x * 9).int().float()) * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
    ),
    "bool": lambda x: torch.relu(x).bool().float() * x,
}


@pytest.mark.parametrize("name", TRUNCATED)
def test_a_cast_to_whole_numbers_cuts_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "min_gain", 0)
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    with torch.no_grad():
        same(compiled(TRUNCATED[name])(x), TRUNCATED[name](x))
    assert counted()["regions"] >= 1, left()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_of_batches_keeps_its_statistics_in_float32(dtype: torch.dtype) -> None:
    """As autocast gives them. Channels far from 0: x·factor + shift of rounded numbers would cancel."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8).eval().requires_grad_(False)
    assert norm.running_mean is not None
    norm.running_mean.copy_(200 * torch.rand(8))
    x = (torch.randn(2, 8, 5, 5) + norm.running_mean[:, None, None]).to(dtype)
    with torch.no_grad():
        same(compiled(norm)(x), norm(x), 4 * torch.finfo(dtype).eps)
    assert counted()["regions"] == 1, left()
