"""torch.compile(backend="tilegen"): what a graph returns has eager's strides and shares memory as eager's
does, however the regions that compute it lie to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.compiled import compiled, counted, left, same, tensors


def places(found: Any) -> list[int]:
    """Which results share memory: the first of those that do, for each."""
    memory = [t.untyped_storage().data_ptr() for t in tensors(found)]
    return [memory.index(place) for place in memory]


RETURNED: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "pieces": (lambda x: F.silu(x).chunk(3, 1), torch.randn(4, 8)),
    "the same again": (lambda x: F.silu(torch.cat((x, x, x))), torch.randn(4, 8)),
    "the same beside itself": (lambda x: F.silu(torch.cat((x, x), -1)), torch.randn(4, 8)),
    "each row again": (lambda x: F.silu(x).repeat_interleave(3, 1), torch.randn(2, 5, 8)),
    "all of it again": (lambda x: F.silu(x.repeat(1, 2, 1)), torch.randn(2, 5, 8)),
    "pieces that are read": (lambda x: (*(y := F.silu(x).unbind(1)), y[0] * y[1]), torch.randn(4, 3)),
    "a view of a view": (lambda x: F.silu(x)[1:].view(-1)[2:], torch.randn(4, 8)),
    "all places alike": (lambda x: F.silu(x)[:, None].expand(4, 3, 8), torch.randn(4, 8)),
    "of a turned input": (lambda x: F.silu(x) * 2, torch.randn(8, 4).t()),
    "of a permuted input": (lambda x: F.silu(x) + 1, torch.randn(2, 3, 4, 5).permute(3, 1, 0, 2)),
    "of an image that is turned": (lambda x: F.max_pool2d(F.silu(x), 2).flip(0), torch.randn(2, 8, 6, 6)),
    "that, and a view of it": (
        lambda x: (y := F.max_pool2d(F.silu(x), 2).flip(0), y.view(-1)[2:]),
        torch.randn(2, 8, 6, 6),
    ),
    "along the first dimension": (lambda x: F.log_softmax(F.silu(x), 0), torch.randn(4, 8)),
}


@pytest.mark.parametrize("name", RETURNED)
def test_results_lie_as_eagers(name: str) -> None:
    model, x = RETURNED[name]
    found, wanted = compiled(model)(x), model(x)
    same(found, wanted)
    assert places(found) == places(wanted)
    assert counted()["regions"] == 1, left()


def test_regions_are_found_in_any_order() -> None:
    """Here one that another reads comes first."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, middle = F.silu(x), F.gelu(x), F.relu(x)
        return first, second, middle.cumsum(0) + middle

    x = torch.randn(4, 8)
    same(compiled(model)(x), model(x))
    assert counted()["regions"] == 2, left()


def windows(x: torch.Tensor) -> torch.Tensor:
    """Windows of 16 rows that overlap by eight, as Longformer has them: of heads of turned rows."""
    heads = x.view(32, 2, 4, 16).transpose(0, 1).transpose(1, 2).reshape(8, 32, 16).view(8, 4, 8, 16)
    first, second, third, fourth = heads.stride()
    return heads.as_strided((8, 7, 8, 16), (first, second // 2, third, fourth))


WEIGHT, BIAS = torch.nn.Parameter(torch.randn(64, 64)), torch.nn.Parameter(torch.randn(64))
READ_BY_PLACES: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "as_strided": (
        lambda x: windows(F.linear(F.layer_norm(x, (64,)).transpose(0, 1), WEIGHT, BIAS)) * 2,
        torch.randn(2, 32, 64),
    ),
    "as complex numbers": (
        lambda x: torch.view_as_complex(F.max_pool2d(x, 2).view(2, 8, 4, 2, 2)).abs(),
        torch.randn(2, 8, 8, 8),
    ),
    "as numbers of eight bytes": (lambda x: F.max_pool2d(x, 2).view(torch.float64), torch.randn(2, 8, 8, 8)),
}


@pytest.mark.parametrize("name", READ_BY_PLACES)
def test_what_reads_memory_by_places_finds_eagers(name: str) -> None:
    model, x = READ_BY_PLACES[name]
    with torch.no_grad():
        same(compiled(model)(x), model(x))
    assert counted()["regions"] >= 1, left()
