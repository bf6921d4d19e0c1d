"""Mutants of what a cluster shares: parts that overlap, leave a gap, or list less than their steps; the
checker and the oracle refuse all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from test_clusters import CLUSTER_SPLITS, planned

from tests.oracles.elements import examine
from tilegen.proof.checker import check
from tilegen.schedule.expand import expanded

Data = dict[str, Any]
Parts = list[Data]


def plan_of(cluster_split: str) -> Data:
    return copy.deepcopy(expanded(planned(f"2:{cluster_split}", f"2:{cluster_split}")))


def refused(data: Data, *checks: str) -> None:
    certificate = check(data)
    assert {v.check for v in certificate.violations} >= set(checks), certificate.text()
    assert not examine(data).ok


def swapped(parts: Parts) -> None:
    parts[0]["writes"], parts[1]["writes"] = parts[1]["writes"], parts[0]["writes"]


def overlap(parts: Parts) -> None:
    """Part 0 takes an element of part 1 too."""
    mine, other = parts[0]["writes"][0]["box"], parts[1]["writes"][0]["box"]
    axis = next(d for d in range(2) if mine[d] != other[d])
    mine[axis][1] += 1


def gap(parts: Parts) -> None:
    mine, other = parts[0]["writes"][0]["box"], parts[1]["writes"][0]["box"]
    axis = next(d for d in range(2) if mine[d] != other[d])
    other[axis][0] += 1


def all_by_one(parts: Parts) -> None:
    one, two = (part["writes"][0]["box"] for part in parts)
    parts[0]["writes"][0]["box"] = [[a[0], b[1]] for a, b in zip(one, two, strict=True)]
    parts[1]["writes"] = []


def nothing(parts: Parts) -> None:
    parts[1]["writes"] = []


def last_step_left_out(parts: Parts) -> None:
    last = max(n for n, r in enumerate(parts[0]["reads"]) if r["tensor"] == "h")
    del parts[0]["reads"][last]


def no_waits(parts: Parts) -> None:
    """Part 1 relies on the waits of part 0."""
    for read in parts[1]["reads"]:
        read["waits"] = []


@pytest.mark.parametrize(
    "mutant",
    [swapped, overlap, gap, all_by_one, nothing, last_step_left_out, no_waits],
    ids=lambda m: m.__name__,
)
@pytest.mark.parametrize("cluster_split", CLUSTER_SPLITS)
def test_mutants_of_a_tile(cluster_split: str, mutant: Callable[[Parts], None]) -> None:
    data = plan_of(cluster_split)
    mutant(next(t["ctas"] for t in data["tiles"] if t["op"] == "down"))
    refused(data, "coverage")


MORE = [("k", "n"), ("km", "m")]  # the same is written, and all steps are read instead of a share of them
OTHERS = [
    (said, given)
    for said in CLUSTER_SPLITS
    for given in CLUSTER_SPLITS
    if said != given and (said, given) not in MORE
]


@pytest.mark.parametrize(("said", "given"), OTHERS)
def test_a_plan_that_says_it_shares_something_else(said: str, given: str) -> None:
    data = plan_of(given)
    assert check(data).ok and examine(data).ok
    for op in data["ops"].values():
        op["cluster_split"] = said
    refused(data, "coverage")


@pytest.mark.parametrize(("said", "given"), MORE)
def test_reads_may_be_more_than_a_share_of_the_steps(said: str, given: str) -> None:
    data = plan_of(given)
    for op in data["ops"].values():
        op["cluster_split"] = said
    assert check(data).ok and examine(data).ok


UNKNOWN = [
    ("diagonal", "'diagonal' of a linear, expected one of k, n, m, km, 2x2, 2x4, 4x2"),
    ("2x4", "cluster_split is '2x4' of a cluster of 2"),
    (None, "None"),
    (2, "2"),
]


@pytest.mark.parametrize(("cluster_split", "said"), UNKNOWN)
def test_no_such_share(cluster_split: Any, said: str) -> None:
    data = plan_of("m")
    data["ops"]["up"]["cluster_split"] = cluster_split
    certificate = check(data)
    assert not certificate.ok and any(
        said in v.message for v in certificate.violations if v.check == "format"
    )
