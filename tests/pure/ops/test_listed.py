"""Tables in index expressions: looked up, printed, and left out where all their numbers are one."""

from __future__ import annotations

import copy
import pickle

import numpy as np

from tilegen.analysis.regions import divide, evaluate, pretty, to_c
from tilegen.ops.base import K, coord
from tilegen.ops.extrema import largest, smallest
from tilegen.ops.listed import Numbers, entry, tables_of

I = coord("i")
TABLE = Numbers("tg_y_keys", [0, 2, 3, 0, 1, 1])
BLOCK = entry(TABLE, 3 * I + K)


def test_numbers_stand_where_places_do() -> None:
    assert [entry(TABLE, n) for n in range(6)] == list(TABLE.values)
    assert BLOCK.subs({I: 1, K: 1}) == 1 and BLOCK.free_symbols == {I, K}
    assert evaluate(64 * BLOCK, {"i": np.array([0, 1]), "k": np.array([2, 1])}).tolist() == [192, 64]


def test_text_looks_them_up() -> None:
    assert to_c(64 * BLOCK + 7) == "64 * tg_y_keys[3 * i + k] + 7"
    assert to_c(BLOCK.subs(K, K - 1), (("k", "step"),)) == "tg_y_keys[3 * i + step - 1]"
    assert pretty(64 * BLOCK) == "64·tg_y_keys[3·i + k]"


def test_a_table_of_one_number_is_that_number() -> None:
    assert entry(Numbers("same", [4, 4]), I) == 4


def test_quotients_and_extrema_know_their_range() -> None:
    assert divide(64 * BLOCK + 63, 64) == BLOCK
    assert smallest(64 * BLOCK + 64, 256) == 64 * BLOCK + 64 and largest(BLOCK, 0) == BLOCK
    assert evaluate(smallest(64 * BLOCK + 64, 200), {"i": 0, "k": 2}) == 200


def test_tables_are_found_and_copied() -> None:
    other = Numbers("a", [0, 1])
    assert tables_of(BLOCK + entry(other, I)) == (other, TABLE)
    assert copy.deepcopy(BLOCK) == pickle.loads(pickle.dumps(BLOCK)) == BLOCK
    assert Numbers("tg_y_keys", [0]) != TABLE
