"""What is taken of programs that the model has not seen, beside all else that was timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import unseen
from tilegen.runtime.verify import load_json

ROWS = [row for path in unseen.RESULTS for row in load_json(path)["rows"] if row["sizes"] not in unseen.SEEN]


def test_what_is_taken_is_near_the_fastest() -> None:
    median, p95, worst = np.quantile([t.regret for t in unseen.taken()], (0.5, 0.95, 1.0))
    assert len(unseen.taken()) > 520 and sum(t.plans for t in unseen.taken()) > 4500
    assert median <= 0.02 and p95 <= 0.08 and worst <= 0.15


@pytest.mark.parametrize("family", ["linear", "conv"])
def test_the_model_puts_plans_in_order_and_knows_their_times(family: str) -> None:
    error = unseen.errors()[family]
    assert error.programs > 10 and error.spearman >= 0.85 and error.near >= 0.95
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.08 and error.regret[2] <= 0.15


def test_no_program_is_one_that_something_was_fitted_to() -> None:
    """Ops alone and pairs of linears: layers are drawn from few sizes, and nothing is fitted to them."""
    others = set(unseen.FOLDER.glob("calibration-*.json")) - set(unseen.RESULTS)
    fitted = {told(row) for path in others for row in load_json(path)["rows"]}
    mine = {told(row) for row in ROWS if row["family"] in ("linear", "conv", "block")}
    assert len(mine) > 450 and not mine & fitted


def told(row: dict[str, Any]) -> str:
    return f"{row['workload']} {sorted(row['sizes'].items())}"


def test_a_slower_plan_taken_is_told_as_regret(tmp_path: Path) -> None:
    """Of every family: a file of the rows with those that are taken 1.5 times slower."""
    path = unseen.RESULTS[0]
    slower = [{**r, "us": 1.5 * r["us"]} if not r["tiles"] else r for r in load_json(path)["rows"]]
    (tmp_path / path.name).write_text(json.dumps({"rows": slower}))
    both = [t for t in unseen.taken([tmp_path / path.name]) if t.family in ("linear", "block")]
    assert len(both) > 100 and np.median([t.regret for t in both]) > 0.4


def test_a_line_for_each_family_and_one_for_all() -> None:
    table = list(unseen.lines())
    assert [line.split(" | ")[0] for line in table[2:]] == [
        f"| {name}" for name in (*unseen.FAMILIES.values(), "all")
    ]
