"""Which list of tiles an SM has."""

from __future__ import annotations

import random

import pytest

from tilegen.runtime.sms import lists_in_order

SMS = 132
GPCS = tuple(tuple(range(first, min(first + 16, SMS))) for first in range(0, SMS, 16))  # by place


@pytest.mark.parametrize("tiles", [1, 17, 64, 100, 120, 131, 132, 133, 256, 1000])
def test_each_list_is_that_of_one_sm(tiles: int) -> None:
    order = random.Random(tiles).sample(range(SMS), SMS)
    assert sorted(lists_in_order(order, SMS, tiles)) == list(range(1, SMS + 1))


@pytest.mark.parametrize("filled", [17, 64, 100, 120, 132])
def test_gpcs_share_lists_that_have_tiles_evenly_and_have_neighbouring_ones(filled: int) -> None:
    order = random.Random(filled).sample(range(SMS), SMS)
    lists = lists_in_order(order, SMS, filled)
    for places in GPCS:
        tiles = [lists[order[p]] for p in places if lists[order[p]] <= filled]
        assert tiles == list(range(tiles[0], tiles[0] + len(tiles)))
        assert abs(len(tiles) - len(places) * filled / SMS) <= 1


@pytest.mark.parametrize("order", [(), range(SMS - 1), range(SMS + 12)])
def test_where_the_order_is_not_known_no_sm_has_a_list(order: range) -> None:
    assert lists_in_order(order, SMS, 100) == [0] * SMS
