"""A sum over K that several ops share: gaps, overlaps and partial sums that nobody adds are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import tilegen as tg
from tests.gpu.gemms import gated, mlp
from tilegen.proof.checker import check
from tilegen.schedule.expand import expanded

SIZES = {"M": 40, "H": 512, "I": 384}
SPLIT = expanded(tg.plan(mlp(**SIZES), "h200", split_k={"up": 3, "down": 2}))
GATED = expanded(tg.plan(gated(**SIZES), "h200", target="cpu", split_k={"gate_up": 2}))


def changed(plan: dict[str, Any], op: str, change: Any) -> str:
    """The report on a plan whose op is changed."""
    data = copy.deepcopy(plan)
    entry = next(o for name, o in named(data) if name == op)
    change(entry)
    certificate = check(data)
    assert not certificate.ok
    return certificate.text()


def named(plan: dict[str, Any]) -> list[tuple[str, Any]]:
    ops = plan["ops"]
    return list(ops.items()) if isinstance(ops, dict) else [(o["name"], o) for o in ops]


def attributes(**new: Any) -> Any:
    return lambda op: op["attributes"].update(new)


def expression(old: str, new: str) -> Any:
    def change(op: Any) -> None:
        epilogue = op["attributes"]["epilogue"]
        assert old in epilogue["expression"], epilogue
        epilogue["expression"] = epilogue["expression"].replace(old, new)

    return change


def test_the_plans_are_right() -> None:
    assert check(SPLIT).ok and check(GATED).ok


@pytest.mark.parametrize("end", [64, 448])
def test_a_gap_or_an_overlap_is_refused(end: int) -> None:
    op = dict(named(SPLIT))["up_k0"]
    first, last = op["attributes"]["k_range"]
    assert first < end != last
    assert "adds k from" in changed(SPLIT, "up_k0", attributes(k_range=[first, end]))


def test_a_sum_that_ends_early_is_refused() -> None:
    first, last = dict(named(SPLIT))["up"]["attributes"]["k_range"]
    assert "ends at" in changed(SPLIT, "up", attributes(k_range=[first, last - 64]))


@pytest.mark.parametrize("plan, op", [(SPLIT, "up"), (SPLIT, "down"), (GATED, "gate_up")])
def test_a_partial_sum_that_is_not_added_is_refused(plan: dict[str, Any], op: str) -> None:
    report = changed(plan, op, expression("e0", "0.0"))
    assert "does not add e0" in report


@pytest.mark.parametrize("new", ["e1 + e1", "2.0 * e1", "-e1"])
def test_a_partial_sum_that_is_added_otherwise_is_refused(new: str) -> None:
    assert "does not add e1" in changed(SPLIT, "up", expression("e1", new))


def test_the_wrong_groups_partial_sums_are_refused() -> None:
    def swap(op: Any) -> None:
        epilogue = op["attributes"]["epilogue"]
        text = epilogue["expression"].replace("e0", "e9").replace("e1", "e0").replace("e9", "e1")
        assert text != epilogue["expression"]
        epilogue["expression"] = text

    assert "does not add" in changed(GATED, "gate_up", swap)


def test_partial_sums_of_other_operands_are_refused() -> None:
    def other(op: Any) -> None:
        op["attributes"]["epilogue"] = {"expression": "relu(acc0)", "operands": []}

    assert "expected its sums as they are" in changed(SPLIT, "up_k0", other)
