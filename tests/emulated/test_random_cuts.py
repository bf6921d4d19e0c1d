"""Any tile and cluster of a linear that the kernel can run is right, of one size and of sizes that move."""

from __future__ import annotations

import pytest

from tests.random_cuts import draw, problem

CAUGHT = (93, 184)  # CTAs that share rows of a tile which is no eights for each
SEEDS = (*CAUGHT, *range(18))


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.full) for n in range(300, 500))]
)
def test_a_random_cut_is_right(seed: int) -> None:
    assert problem(seed) in ("", "none")


def test_most_draws_can_be_cut_so() -> None:
    assert sum(draw(seed) is not None for seed in SEEDS) >= 0.8 * len(SEEDS)
