"""Any tile of a convolution or a linear that may be asked for on sm_80 is right; so are the planned ones."""

from __future__ import annotations

import pytest

from tests.random_tiles import problem

CAUGHT = (7, 18)  # steps of fewer than 64 channels, of which no time could be told
SEEDS = (*CAUGHT, *range(8, 16))


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.full) for n in range(300, 450))]
)
def test_a_random_tile_is_right(seed: int) -> None:
    assert problem(seed) == ""
