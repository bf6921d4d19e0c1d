"""Random modules under torch.compile(backend="tilegen") do what eager ones do, written and shared tensors
included."""

from __future__ import annotations

from typing import Any

import pytest

from tests.random_backend import verdict
from tests.shares import share
from tilegen import config
from tilegen.backend.region import Region


@pytest.fixture(autouse=True)
def every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "min_gain", 0)


@pytest.mark.parametrize("seed", share([*range(200)], 40))
def test_a_random_module_does_what_eager_does(seed: int) -> None:
    assert verdict(seed) in ("right", "left alone")


def test_a_region_that_is_off_by_a_little_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is = Region.__call__

    def off(self: Region, given: Any) -> Any:
        return [t + 0.01 * t.abs().max() for t in as_it_is(self, given)]

    monkeypatch.setattr(Region, "__call__", off)
    assert verdict(1).startswith("wrong: result 0 is off by")
