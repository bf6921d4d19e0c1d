"""What a matmul by threads takes, by the model: properties that hold whatever the constants are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.gpu.language import multiplied
from tilegen.arch.machine import H200, cpu
from tilegen.codegen.thread_product import MatmulProduct
from tilegen.graph import cost_model, matmul_time
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.thread_blocks import COLUMNS, ROWS, warps_of
from tilegen.ops.base import OpInstance, ceil_div

TYPES = ("bfloat16", "float32")


def matmul(m: int, n: int, k: int, tile: tuple[int, int] = (64, 64), **more: Any) -> OpInstance:
    graph = fuse(multiplied(M=m, N=n, K=k, ways="nt", **more))
    return graph.bound(replace(graph.ops[0], tile=(*tile, 64)))


def us(*sizes: int, **more: Any) -> float:
    return cost_model.tile_us(matmul(*sizes, **more), H200)


@pytest.mark.parametrize("dtype", TYPES)
def test_more_of_k_and_larger_tiles_take_no_less(dtype: str) -> None:
    least = us(512, 512, 512, dtype=dtype)
    assert us(512, 512, 1024, dtype=dtype) > least
    for tile in ((128, 64), (64, 128)):
        assert us(512, 512, 512, tile=tile, dtype=dtype) > least


@pytest.mark.parametrize("dtype", TYPES)
def test_lines_that_begin_within_a_unit_take_longer(dtype: str) -> None:
    assert us(512, 512, 511, dtype=dtype) > us(512, 512, 512, dtype=dtype)


def test_rows_of_the_result_that_do_take_longer() -> None:
    assert us(512, 511, 512) > us(512, 512, 512)


def test_a_tile_is_never_shorter_than_what_it_costs_besides() -> None:
    b = matmul(1, 1, 1)
    assert cost_model.tile_us(b, H200) > matmul_time.rates_of(b).fixed


def test_a_cpu_is_not_told_of() -> None:
    assert not matmul_time.by_threads(matmul(64, 64, 64), cpu(2))


@pytest.mark.parametrize("tile", [(16, 32), (64, 64), (128, 128), (48, 96)])
def test_the_kernel_shares_a_tile_as_the_model_says(tile: tuple[int, int]) -> None:
    product = MatmulProduct(matmul(512, 512, 512, tile))
    assert product.warps == warps_of(*tile)
    assert product.warps[0] * product.down * ROWS >= tile[0]
    assert product.warps[1] * product.across * COLUMNS >= tile[1]


@pytest.mark.parametrize("columns", range(32, 289, 32))
def test_all_columns_that_warps_read_are_the_tiles(columns: int) -> None:
    """Of some rows they may read more: B lies behind them."""
    for rows in range(16, 257, 16):
        _, across = warps_of(rows, columns)
        assert columns // COLUMNS % ceil_div(columns // COLUMNS, across) == 0
