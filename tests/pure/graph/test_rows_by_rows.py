"""A matmul of rows by rows is a linear, where linears are computed otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu.language import multiplied
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.targets.select import place

ROWS = {"B": 1, "ways": "nt"}


def kinds(on: str = "h200", given: dict[str, Any] | None = None, **sizes: Any) -> list[str]:
    plan = tg.plan(multiplied(**sizes), on, **(given or {}))
    assert tg.verify(plan).ok
    return [op.kind for op in plan.graph.ops]


@pytest.mark.parametrize("sizes", [ROWS, {"B": 3, "ways": "nt", "many": False}], ids=str)
def test_rows_by_rows_are_a_linear(sizes: dict[str, Any]) -> None:
    assert kinds(**sizes, K=72) == ["linear"]


@pytest.mark.parametrize(
    "sizes",
    [
        {"B": 2, "ways": "nt"},
        *({"B": 1, "ways": ways} for ways in ("nn", "tn", "tt")),
        {**ROWS, "dtype": "float32"},
        {**ROWS, "K": 77},
    ],
    ids=str,
)
def test_others_stay_matmuls(sizes: dict[str, Any]) -> None:
    assert kinds(**sizes) == ["matmul"]


def test_what_the_options_speak_of_stays_what_it_is() -> None:
    assert kinds(given={"tiles": {"p": (16, 128, 64)}}, **ROWS) == ["matmul"]


def test_targets_that_compute_any_linear_leave_it_alone() -> None:
    assert kinds("cpu", **ROWS) == ["matmul"]


def test_launches_of_single_ops_have_it_too() -> None:
    each = launches_of(multiplied(**ROWS), place("h200", "sm_90a"), Options()).each
    assert [op.kind for plan in each for op in plan.graph.ops] == ["linear"]
