"""A linear whose rows no bulk copy brings is a matmul; all others stay what they are."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu.int8 import dequantized, int8_mlp
from tests.gpu.language import any_width


@tg.spec
def linear(M=64, K=256, N=256, first=0, dtype="bfloat16"):
    x = tg.input("x", (M, K + first), dtype)
    return tg.linear(x[..., first:] if first else x, tg.weight("w", (N, K), dtype), name="y")


def kinds(program: Any, on: str, **options: Any) -> list[str]:
    plan = tg.plan(program, on, **options)
    assert tg.verify(plan).ok
    return [op.kind for op in plan.graph.ops]


@pytest.mark.parametrize(
    "sizes", [{"K": 250}, {"first": 4}, {"K": 252, "first": 4}, {"dtype": "float32"}], ids=str
)
@pytest.mark.parametrize("on", ["h200", "a100"])
def test_rows_that_are_no_whole_units_make_a_matmul(sizes: dict[str, Any], on: str) -> None:
    assert kinds(linear(**sizes), on) == ["matmul"]
    assert kinds(linear(**sizes), "cpu") == ["linear"]


@pytest.mark.parametrize("sizes", [{}, {"first": 8}, {"M": 1}], ids=str)
@pytest.mark.parametrize("on", ["h200", "a100"])
def test_others_stay_linears(sizes: dict[str, Any], on: str) -> None:
    assert kinds(linear(**sizes), on) == ["linear"]


def test_where_columns_of_results_are_eights_others_make_a_matmul() -> None:
    assert kinds(linear(N=250), "h200") == ["linear"] and kinds(linear(N=250), "a100") == ["matmul"]


def test_a_gated_pair_is_a_matmul_and_its_maths() -> None:
    assert kinds(any_width(), "h200") == ["matmul", "matmul", "pointwise"]
    plan = tg.plan(any_width(), "h200")
    _, pair, joined = plan.graph.ops
    assert (pair.name, pair.result, joined.result) == ("pair", "pair_sums", "y")
    assert joined.epilogue is not None and joined.epilogue.expression == "silu(e0) * e1 + e2"


@pytest.mark.parametrize("on", ["h200", "a100"])
def test_int8_weights_make_a_matmul_and_no_pair(on: str) -> None:
    """Halves of a pair would be rounded before they are scaled."""
    assert kinds(int8_mlp(), on) == ["matmul", "pointwise", "matmul"]
    assert kinds(int8_mlp(), "cpu") == ["linear", "pointwise", "linear"]


@pytest.mark.parametrize("on", ["h200", "a100"])
def test_int8_weights_are_a_byte_each(on: str) -> None:
    (b,) = tg.plan(dequantized(M=1, N=4096, K=4096), on).bounds
    assert 4096 * 4096 < b.operand_bytes < 1.02 * 4096 * 4096


def test_explain_says_why() -> None:
    assert "y is a matmul, whose rows threads bring: 'w' is int8" in tg.explain(dequantized(), "h200")
    text = tg.explain(linear(K=250), "h200")
    assert "y is a matmul, whose rows threads bring: 'x' has columns 250" in text


def test_a_name_that_is_taken_is_told() -> None:
    @tg.spec
    def taken() -> Any:
        x, w = tg.input("pair_sums", (8, 30), "bfloat16"), tg.weight("w", (40, 30), "bfloat16")
        gate, up = tg.linear(x, w, name="pair").chunk(2)
        return tg.mul(tg.silu(gate), up, name="y")

    with pytest.raises(tg.PlanError, match="pair_sums is taken"):
        tg.plan(taken(), "h200")
