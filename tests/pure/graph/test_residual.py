"""What the formulas of products leave out, as trees know it."""

from __future__ import annotations

import math

import pytest

import tilegen as tg
from benchmarks.workloads import Task
from tilegen.arch.machine import H200, machine
from tilegen.graph.conv_time import RATES as CONV_RATES
from tilegen.graph.conv_time import conv_time
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.linear_time import time_of_cut
from tilegen.graph.residual import (
    LEAST,
    MOST,
    ConvTraits,
    LinearTraits,
    Traits,
    Tree,
    factor_of,
    names_of,
    trees_of,
)
from tilegen.ops.base import OpInstance

KINDS = LinearTraits, ConvTraits
TREES: list[Tree] = [[0, 4.0, 0.1, [1, 2.0, -0.05, 0.03]], [1, 1.0, 0.02, -0.01], 0.04]


def linear(rows: int = 300, workload: str = "gemm", **sizes: int) -> OpInstance:
    graph = fuse(Task("test", workload, {"M": rows, **sizes}).program)
    return graph.bound(graph.ops[0])


@pytest.mark.parametrize(
    ("seen", "total"),
    [((4, 1), 0.1 + 0.02 + 0.04), ((5, 2), -0.05 - 0.01 + 0.04), ((5, 3), 0.03 - 0.01 + 0.04)],
)
def test_each_tree_adds_the_leaf_that_what_is_seen_leads_to(seen: tuple[int, ...], total: float) -> None:
    assert factor_of(TREES, seen) == pytest.approx(math.exp(total))


@pytest.mark.parametrize(("leaf", "factor"), [(-5.0, LEAST), (5.0, MOST), (0.0, 1.0)])
def test_a_factor_has_bounds(leaf: float, factor: float) -> None:
    assert factor_of([leaf], ()) == factor


@pytest.mark.parametrize("traits", KINDS, ids=lambda t: t.__name__)
def test_the_trees_that_are_kept_ask_for_what_is_seen(traits: type[Traits]) -> None:
    trees = trees_of(H200, traits)
    assert trees is not None and len(trees) >= 100

    def check(tree: Tree) -> int:
        """Its leaves."""
        if isinstance(tree, float):
            assert math.isfinite(tree)
            return 1
        place, threshold, up_to, above = tree
        assert 0 <= place < len(names_of(traits)) and math.isfinite(threshold)
        return check(up_to) + check(above)

    assert all(1 < check(tree) <= 200 for tree in trees)


def test_a_linear_alone_takes_its_formula_and_what_that_leaves_out() -> None:
    time = time_of_cut(linear(N=2048, K=2048), H200, 128, 128)
    us = time.formula(time.stages)
    assert time.residual is not None and time.residual.factor(us) != 1
    assert time.alone(time.stages) == pytest.approx(us * time.residual.factor(us))


def test_the_formula_alone_is_asked_for_by_its_constants() -> None:
    sizes = {"B": 2, "HW": 28, "C": 64, "N": 64, "size": 3, "stride": 1}
    (b,) = tg.plan(Task("test", "one_conv", sizes).program, "h200", target="sm_90a").bounds
    assert conv_time(b, H200).residual is not None and conv_time(b, H200, CONV_RATES).residual is None


@pytest.mark.parametrize("name", ["h100", "a100"])
def test_of_a_gpu_that_was_not_measured_the_formula_is_all_that_is_known(name: str) -> None:
    time = time_of_cut(linear(N=2048, K=2048), machine(name), 128, 128)
    assert time.alone(time.stages) == time.formula(time.stages)
    assert trees_of(machine(name), ConvTraits) is None


def test_a_linear_of_two_groups_has_the_formula_alone() -> None:
    """None was in the sweeps."""
    assert time_of_cut(linear(workload="llama_mlp", H=1024, I=2048), H200, 128, 64).residual is None
