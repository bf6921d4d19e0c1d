"""Folded norms: what is refused, and in which words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import tilegen as tg
from tests.gpu.ops import normed
from tilegen.arch.machine import H200
from tilegen.graph.split_k import split_k
from tilegen.options import Options
from tilegen.schedule.expand import expanded
from tilegen.targets.sm90.emit import generate


def test_an_unknown_way() -> None:
    with pytest.raises(tg.PlanError, match="norms='columns': expected one of auto, separate, fused"):
        tg.plan(normed(), "h200", norms="columns")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"cluster": {"pair": 2}}, "'pair': a linear that a norm is fused into is run by one CTA"),
        ({"split_k": {"pair": 2}}, "norms its rows"),
    ],
)
def test_options_against_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tg.PlanError, match=words):
        tg.plan(normed(), "h200", norms="fused", tiles={"pair": (64, 64, 64)}, **options)


def test_a_sum_is_not_split() -> None:
    graph = tg.plan(normed(), "h200").graph
    with pytest.raises(
        tg.PlanError, match="'other' norms its rows, so its sum cannot be split over K; fuse no norm into it"
    ):
        split_k(graph, "other", 2)


def test_tiles_that_the_kernel_has_no_form_for() -> None:
    with pytest.raises(tg.PlanError, match="'pair'.*a norm is fused into products of up to 64 rows"):
        generate(tg.plan(normed(), "h200", tiles={"pair": (128, 64, 64)}))
    with pytest.raises(
        tg.PlanError, match="'other'.*steps are 320 wide, expected at most 256 where a norm is fused in"
    ):
        generate(tg.plan(normed(), "h200", tiles={"other": (64, 64, 320)}))


def test_the_portable_kernel_folds_none() -> None:
    plan = tg.plan(normed(), "h200", target="sm_80", norms="fused")
    assert [op.kind for op in plan.graph.ops if op.name == "n"] == ["rms_norm"] and tg.verify(plan).ok


@pytest.mark.parametrize("change", ["box", "first"])
def test_reads_that_miss_the_vector(change: str) -> None:
    """The checker works out by itself that a normed linear reads its norm's weight."""
    data = expanded(tg.plan(normed(M=8), H200, Options()))
    wrong = copy.deepcopy(data)
    reads = next(t for t in wrong["tiles"] if t["op"] == "pair")["ctas"][0]["reads"]
    [vector] = [r for r in reads if r["tensor"] == "g"]
    if change == "box":
        vector["box"] = [[0, 100]]
    else:
        reads.remove(vector)
    assert tg.verify(data).ok
    with pytest.raises(tg.ProofError, match="g"):
        tg.verify(wrong)


@pytest.mark.parametrize("change", [{"k_range": [0, 64]}, {"cluster": 2}])
def test_a_norm_needs_whole_rows(change: dict[str, Any]) -> None:
    data = expanded(tg.plan(normed(M=8), H200, Options()))
    op = data["ops"]["pair"]
    if "cluster" in change:
        op["cluster"] = 2
    else:
        op["attributes"] |= change
    with pytest.raises(tg.ProofError):
        tg.verify(data)
