"""A linear of rows that no bulk copy brings is one of padded copies, where these take less time than threads'
products."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu.language import begun_anywhere
from tilegen.frontend.program import Program
from tilegen.kernels.tuning import Variant, by_time
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.schedule.plan import Plan
from tilegen.schedule.regimes import regimes
from tilegen.targets.select import place


@tg.spec
def linear(M=512, K=1023, N=1024, dtype="bfloat16"):
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype)
    return tg.linear(x, w, name="y")


@tg.spec
def heads(M=512, K=1023, N=1024):
    """Two linears of the same rows."""
    x = tg.input("x", (M, K), "bfloat16")
    y, z = (tg.linear(x, tg.weight(n, (N, K), "bfloat16"), name=f"{n}_of_x") for n in ("q", "k"))
    return y + z


def ops(plan: Plan) -> dict[str, str]:
    assert tg.verify(plan).ok
    return {op.name: op.kind for op in plan.graph.ops}


def planned(program: Program, on: str = "h200", **options: Any) -> dict[str, str]:
    return ops(tg.plan(program, on, **options))


def test_both_factors_are_copied_where_columns_are_no_whole_units() -> None:
    plan = tg.plan(linear(), "h200")
    assert ops(plan) == {"x_padded": "pad", "w_padded": "pad", "y": "linear"}
    assert [plan.graph.tensors[f"{n}_padded"].shape for n in "xw"] == [(512, 1024), (1024, 1024)]


def test_a_factor_of_whole_units_stays_where_the_columns_are_eights() -> None:
    """Rows of the other begin with column 3 of a wider tensor."""
    names = planned(begun_anywhere(M=512, K=1024, N=1024))
    assert names == {"z_3_1027_padded": "pad", "y": "linear"}


def test_rows_that_two_linears_read_are_copied_once() -> None:
    names = planned(heads())
    assert sorted(n for n, kind in names.items() if kind == "pad") == ["k_padded", "q_padded", "x_padded"]


@pytest.mark.parametrize(
    "sizes",
    [{"M": 300, "K": 77, "N": 300}, {"M": 64, "K": 9, "N": 64}, {"dtype": "float32"}],
    ids=str,
)
def test_where_copies_take_longer_or_help_nothing_threads_bring_rows(sizes: dict[str, Any]) -> None:
    assert planned(linear(**sizes)) == {"y": "matmul"}


@pytest.mark.parametrize("sizes", [{"K": 1024}, {"K": 1024, "N": 1023}], ids=str)
def test_whole_units_are_not_copied(sizes: dict[str, Any]) -> None:
    assert planned(linear(**sizes)) == {"y": "linear"}


def test_what_the_options_speak_of_stays_what_it_is() -> None:
    assert planned(linear(), tiles={"y": (64, 64, 64)}) == {"y": "matmul"}


@pytest.mark.parametrize(("on", "kind"), [("cpu", "linear"), ("a100", "matmul")])
def test_other_targets_leave_it_alone(on: str, kind: str) -> None:
    assert planned(linear(), on) == {"y": kind}


def test_copies_of_both_share_one_wave_of_the_sms() -> None:
    plan = tg.plan(linear(), "h200")
    tiles = [b.grid[0] for b in plan.bounds if b.op.kind == "pad"]
    assert len(tiles) == 2 and sum(tiles) <= plan.machine.sms


def test_launches_of_single_ops_have_copies_too() -> None:
    each = launches_of(linear(), place("h200", "sm_90a"), Options()).each
    assert [op.kind for plan in each for op in plan.graph.ops] == ["pad", "pad", "linear"]


def test_explain_says_so() -> None:
    assert "w_padded is a copy of 'w', 1024 columns for 1023" in tg.explain(linear(), "h200")


def test_where_a_copys_name_is_taken_there_is_none() -> None:
    @tg.spec
    def taken() -> Any:
        x, w = tg.input("x_padded", (512, 1023), "bfloat16"), tg.weight("x", (1024, 1023), "bfloat16")
        return tg.linear(x, w, name="y")

    assert planned(taken()) == {"y": "matmul"}


def test_rows_times_themselves_are_copied_once() -> None:
    @tg.spec
    def gram() -> Any:
        x = tg.input("x", (1024, 1023), "bfloat16")
        return tg.linear(x, x, name="y")

    assert planned(gram()) == {"x_padded": "pad", "y": "linear"}


@tg.spec
def padded_besides(first: bool = True, M=2048, K=4095, N=4096):
    """The program has a pad of its own, called as the copy would be."""
    x, w = tg.input("x", (M, K), "bfloat16"), tg.weight("w", (N, K), "bfloat16")
    if first:
        p = tg.pad(x, 1, name="x_padded")
        return tg.linear(x, w, name="y"), p
    return tg.linear(x, w, name="y"), tg.pad(x, 1, name="x_padded")


@pytest.mark.parametrize("first", [True, False])
def test_a_pad_of_the_program_is_no_copy(first: bool) -> None:
    plan = tg.plan(padded_besides(first), "h200")
    assert ops(plan)["y"] == "matmul" and plan.graph.tensors["x_padded"].role == "output"


def test_rows_that_the_program_pads_may_be_padded_again() -> None:
    @tg.spec
    def twice() -> Any:
        x, w = tg.input("x", (2048, 4094), "bfloat16"), tg.weight("w", (4096, 4094), "bfloat16")
        return tg.linear(tg.pad(x, 1, name="p"), tg.pad(w, 1, name="q"), name="y")

    assert planned(twice())["y"] == "linear"


def test_a_pad_that_no_linear_reads_is_not_explained() -> None:
    @tg.spec
    def alone() -> Any:
        return tg.pad(tg.input("x", (64, 100), "bfloat16"), 4, name="x_padded")

    assert "is a copy of" not in tg.explain(alone(), "h200")


def test_products_of_copies_are_not_tuned() -> None:
    """A variant that named one would make a matmul of it."""
    assert by_time(linear(), place("h200", "sm_90a"), Variant()) == []


def test_regimes_of_copies_end_where_those_of_launches_do() -> None:
    """Tiles are chosen for the largest size of each."""
    found = regimes(linear(M=tg.dim("M", max=4096)), place("h200", "sm_90a"), Options())
    assert {512, 1024, 2048} <= {r.most for r in found}
