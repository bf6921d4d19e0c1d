"""The maps of rows that begin anywhere: every number of every row, where the copies say, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

import tilegen as tg
from tests.gpu.gemms import Case, gemm
from tilegen.frontend.program import UNIT
from tilegen.graph.product_time import ROW_BYTES
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.eighth_rows import ROWS, TOGETHER, EighthRows, problem_of
from tilegen.targets.sm90.linear import linear
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.stage import Copy, FirstRow, Map


def plain() -> Code:
    plan = Case("plain", gemm, {"M": 64, "N": 64, "K": 64}).plan()
    return Code(plan, plan.bounds[0])


CODE, Q = plain(), sp.Symbol("q", integer=True)
TENSORS = st.builds(
    lambda rows, columns, before, behind, together: EighthRows(
        CODE, "x", "x", rows, columns, before + columns + behind, before, together
    ),
    st.integers(1, 200),
    st.integers(1, 300),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(TOGETHER),
)


def brought(found: EighthRows, copy: Copy, row: int) -> dict[tuple[int, int], int]:
    """(line, column) of 64 x 64 numbers in shared memory -> the number of the tensor that comes there."""
    m: Map = {f"&maps.{m.name}": m for m in found.maps}[copy.map]
    first, eighth = (int(sp.sympify(at, {"q": row})) for at in copy.at)
    (lines, columns), line = m.box, copy.to // ROW_BYTES
    return {
        (line + q, c): m.offset + (eighth + q) * m.pitch + first + c
        for q in range(lines)
        for c in range(columns)
        if eighth + q < m.rows and first + c < m.columns
    }


@given(TENSORS, st.integers(0, 3), st.integers(0, 4))
def test_lines_get_their_rows_and_no_number_beside_them(found: EighthRows, tile: int, step: int) -> None:
    """Rows and columns that are not there come as zeros, or not at all."""
    came: dict[tuple[int, int], int] = {}
    for copy in found.copies(sp.Integer(64 * step), FirstRow(8 * Q), ROWS, 0, ""):
        came.update(brought(found, copy, 8 * tile))
    n, lines = found.together // 8, [divmod(line, found.together) for line in range(ROWS)]
    firsts = [ROWS * tile + found.together * block for block, _ in lines]
    rows = [
        (at, first + 8 * (line % n) + line // n)
        for at, (first, (_, line)) in enumerate(zip(firsts, lines, strict=True))
    ]
    assert came == {
        (line, c): found.first + row * found.pitch + 64 * step + c
        for line, row in rows
        if row < found.rows
        for c in range(min(64, found.columns - 64 * step))
    }


@given(TENSORS)
def test_maps_begin_at_whole_units_and_stay_inside_of_the_tensor(found: EighthRows) -> None:
    end = found.first + (found.rows - 1) * found.pitch + found.columns
    for m in found.maps:
        assert m.offset >= 0 and not any(2 * n % UNIT for n in (m.offset, m.pitch))
        assert m.rows > 0 and m.offset + (m.rows - 1) * m.pitch + m.columns <= end


@given(TENSORS)
def test_bytes_are_those_of_the_copies(found: EighthRows) -> None:
    boxes = {f"&maps.{m.name}": m.box for m in found.maps}
    copies = [boxes[c.map] for c in found.copies(sp.Integer(0), FirstRow(8 * Q), ROWS, 0, "")]
    assert sum(lines for lines, _ in copies) == found.copied(ROWS) <= ROWS


def products(**sizes: Any) -> Product:
    plan = Case("odd", gemm, sizes).plan()
    return linear(Code(plan, plan.bounds[0]))


@pytest.mark.parametrize("n", [64, 77, 200, 1000])
@pytest.mark.parametrize("k", [63, 76, 1023])
@pytest.mark.parametrize("m", [1, 17, 100, 1000])
def test_what_the_model_chooses_can_be_loaded(m: int, k: int, n: int) -> None:
    found = products(M=m, N=n, K=k)
    assert not problem_of(found.tile, True)
    assert found.columns_together in TOGETHER and not found.store.staged and not found.tile.swapped


@pytest.mark.parametrize("n", [77, 200, 768])
def test_views_of_as_many_columns_have_tiles_of_their_own(n: int) -> None:
    """Which cuts a linear has is kept, for all that are alike."""
    whole = Case("whole", viewed, {"M": 300, "N": n, "K": 256, "first": 0}).plan()
    loose = Case("loose", viewed, {"M": 300, "N": n, "K": 256, "first": 4}).plan()
    assert linear(Code(whole, whole.bounds[0])).columns_together == 0
    assert linear(Code(loose, loose.bounds[0])).store.eighths


@tg.spec
def viewed(M=300, N=77, K=256, first=0, dtype="bfloat16"):
    _, x = tg.input("x", (M, 8 + first + K), dtype).split([8 + first, K])
    return tg.linear(x, tg.weight("w", (N, K), dtype), name="y")


def test_rows_of_whole_units_have_a_map_each() -> None:
    found = products(M=100, N=80, K=1000)
    assert {m.name for m in found.maps} <= {"y_a", "y_a_tail", "y_b", "y_b_tail", "y_out", "y_rest"}
    assert not found.columns_together
