"""Rows of whole numbers as columns: the distinct in order, however wide; equal pieces have equal numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilegen.analysis.rows import distinct, numbered, runs

SMALL = st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(0, 2))
WIDE = st.tuples(
    st.integers(-(2**40), 2**40), st.integers(0, 2**40), st.integers(0, 1)
)  # too wide for one number a row
EDGE = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 1))  # 63 bits


@given(st.one_of(st.lists(SMALL), st.lists(WIDE), st.lists(EDGE)))
def test_distinct_rows_in_order(rows: list[tuple[int, int, int]]) -> None:
    found = distinct(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)
    assert list(zip(*(c.tolist() for c in found), strict=True)) == sorted(set(rows))


@given(st.lists(SMALL))
def test_a_run_begins_where_a_row_differs(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    assert runs(*columns).tolist() == [n == 0 or rows[n] != rows[n - 1] for n in range(len(rows))]


@given(st.lists(st.lists(st.integers(0, 2), max_size=3)))
def test_equal_pieces_have_equal_numbers(pieces: list[list[int]]) -> None:
    flat = np.array([n for piece in pieces for n in piece], dtype=np.int64)
    cuts = np.cumsum([0, *map(len, pieces)])
    labels = numbered(flat, cuts).tolist()
    first = list(dict.fromkeys(map(tuple, pieces)))
    assert labels == [first.index(tuple(piece)) for piece in pieces]
