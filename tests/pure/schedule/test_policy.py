"""Policies: partitions form a lattice, the classes are what a person would write, and a point's costs are
counted right."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilegen as tg
from tests.random_pairs import draw_pair
from tests.random_programs import draw_case
from tilegen.analysis.dependence import Relation, block_shape, relation
from tilegen.errors import PlanError
from tilegen.graph.fuse_epilogues import fuse
from tilegen.options import Options
from tilegen.schedule.planner import lattices_of, tiled
from tilegen.schedule.policy import (
    Grouping,
    Lattice,
    classes,
    grouping,
    join,
    labels_of,
    meet,
    product_refinement,
    refines,
)
from tilegen.targets.select import place

LAWS = settings(derandomize=True, deadline=None, max_examples=150)


def partitions(blocks: int = 12) -> st.SearchStrategy[Any]:
    return st.lists(st.integers(0, 5), min_size=blocks, max_size=blocks).map(np.array)


def same(a: Any, b: Any) -> bool:
    return refines(a, b) and refines(b, a)


# --- the laws of a lattice ----------------------------------------------------------------------------------


@LAWS
@given(partitions(), partitions(), partitions())
def test_meet_and_join_are_a_lattice(a: Any, b: Any, c: Any) -> None:
    for op in (meet, join):
        assert same(op(a, a), a)
        assert same(op(a, b), op(b, a))
        assert same(op(op(a, b), c), op(a, op(b, c)))
    assert same(meet(a, join(a, b)), a) and same(join(a, meet(a, b)), a)


@LAWS
@given(partitions(), partitions(), partitions())
def test_meet_is_the_coarsest_refinement_and_join_the_finest_coarsening(a: Any, b: Any, c: Any) -> None:
    assert refines(meet(a, b), a) and refines(meet(a, b), b)
    assert refines(a, join(a, b)) and refines(b, join(a, b))
    assert refines(c, meet(a, b)) == (refines(c, a) and refines(c, b))
    assert refines(join(a, b), c) == (refines(a, c) and refines(b, c))


@LAWS
@given(partitions(), partitions(), partitions())
def test_refinement_is_an_order(a: Any, b: Any, c: Any) -> None:
    one, each = np.zeros(len(a), dtype=int), np.arange(len(a))
    assert refines(a, a) and refines(each, a) and refines(a, one)
    assert not (refines(a, b) and refines(b, c)) or refines(a, c)
    assert refines(a, b) == same(meet(a, b), a) == same(join(a, b), b)


def test_join_by_hand() -> None:
    assert join(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 3, 3])).tolist() == [0, 0, 0, 0, 1, 1]
    assert meet(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])).tolist() == [0, 1, 2, 2]


# --- groupings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([4, 4, 4], Grouping("all", 3)),
        ([0], Grouping("all", 1)),
        ([2, 0, 1], Grouping("each", 3)),
        ([7, 7, 3, 3, 5], Grouping("every", 5, 2)),
        ([1, 1, 1, 0], Grouping("every", 4, 3)),
        ([0, 1, 2, 0, 1, 2, 0], Grouping("modulo", 7, 3)),
        ([3, 3, 1, 3], Grouping("table", 4, 2, (0, 0, 1, 0))),
        ([0, 1, 1, 2, 2], Grouping("table", 5, 3, (0, 1, 1, 2, 2))),
    ],
)
def test_grouping_is_the_simplest(labels: list[int], expected: Grouping) -> None:
    found = grouping(labels, len(labels))
    assert found == expected
    assert found.count == len(set(labels)) and found.sizes.tolist() == [
        labels.count(n) for n in dict.fromkeys(labels)
    ]


@LAWS
@given(st.lists(st.integers(0, 4), min_size=1, max_size=14))
def test_grouping_keeps_the_partition(labels: list[int]) -> None:
    g = grouping(labels, len(labels))
    index = np.arange(len(labels))
    assert same(g.of(index), np.array(labels))
    if g.how != "table":
        assert [int(g.of(int(n))) for n in index] == g.of(index).tolist()
        assert [int(g.size_formula(n)) for n in range(g.count)] == g.sizes.tolist()


def test_product_refinement_by_hand() -> None:
    assert product_refinement(np.array([0, 0, 0, 1, 1, 1]), (2, 3)) == (
        Grouping("each", 2),
        Grouping("all", 3),
    )
    assert product_refinement(np.array([0, 1, 0, 1]), (1, 4)) == (
        Grouping("all", 1),
        Grouping("modulo", 4, 2),
    )
    # an L of three blocks is no product: the corner must be told from both its neighbours
    assert product_refinement(np.array([0, 0, 0, 1]), (2, 2)) == (Grouping("each", 2), Grouping("each", 2))


@LAWS
@given(partitions(12))
def test_product_refinement_is_the_coarsest(labels: Any) -> None:
    product = product_refinement(labels, (3, 4))
    assert refines(labels_of(product), labels)
    grid = labels.reshape(3, 4)
    # two indices are kept apart only where their slices differ
    for g, slices in zip(product, (grid, grid.T), strict=True):
        group = g.of(np.arange(g.blocks))
        for a in range(g.blocks):
            for b in range(a):
                assert (group[a] == group[b]) == (slices[a] == slices[b]).all()


# --- classes ------------------------------------------------------------------------------------------------


def test_classes_by_hand() -> None:
    """Tile 0 needs blocks 0 and 1, tile 1 needs 1 and 2, and block 2 at its second step; nobody needs block
    3."""
    r = Relation(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), np.array([0, 0, 0, 1]))
    assert classes((4,), [r], by_step=False).tolist() == [0, 1, 2, 3]
    both = Relation(np.array([0, 0, 0]), np.array([0, 1, 2]), np.array([0, 0, 1]))
    assert classes((4,), [both], by_step=False).tolist() == [0, 0, 0, 1]
    assert classes((4,), [both], by_step=True).tolist() == [0, 0, 1, 2]
    assert classes((4,), [both, r], by_step=False).tolist() == [0, 1, 2, 3]


def lattice_of(program: Any, tensor: str, **tiles: tuple[int, ...]) -> Lattice:
    return lattices_of(tiled(fuse(program), place("h200"), Options.of(tiles=tiles)))[tensor]


def hows(lat: Lattice, name: str) -> list[tuple[str, int]]:
    return [(g.how, g.size) for g in lat.point(name).partition]


@tg.spec
def mlp(M=64, K=32, H=96, N=48):
    h = tg.linear(tg.input("x", (M, K), "float32"), tg.weight("w1", (H, K), "float32"), name="up")
    return tg.linear(h, tg.weight("w2", (N, H), "float32"), name="down")


def test_gemm_to_gemm_is_the_row_partition() -> None:
    up = lattice_of(mlp(), "up", up=(16, 16, 32), down=(16, 16, 32))
    assert up.point("class") == up.point("row")
    assert hows(up, "class") == [("each", 1), ("all", 1)]
    assert hows(up, "step") == [("each", 1), ("every", 2)]  # a step of 32 columns needs two tiles of 16
    tall = lattice_of(mlp(), "up", up=(16, 16, 32), down=(32, 16, 96))
    assert hows(tall, "class") == hows(tall, "step") == [("every", 2), ("all", 1)]


@tg.spec
def heads(B=2, S=8, H=3, D=4):
    w = tg.weight("w", (3 * H * D, 16), "float32")
    q, k, v = tg.linear(tg.input("x", (B, S, 16), "float32"), w, name="qkv").chunk(3)
    return tg.attention(q, k, v, heads=H, name="attention")


def test_heads_are_the_strided_classes() -> None:
    """One query block, no mask: head h needs columns h of Q, of K and of V, and each of these three is needed
    by head h alone."""
    qkv = lattice_of(heads(), "qkv", qkv=(8, 4, 16), attention=(8, 8))
    assert hows(qkv, "class") == [("each", 1), ("modulo", 3)]
    assert qkv.point("class").waits == 1.0 and qkv.point("class").start == 3.0


@tg.spec
def two_convs(size=8, C=4):
    x = tg.input("x", (1, size, size, C), "float32")
    h = tg.conv2d(x, tg.weight("w1", (C, 3, 3, C), "float32"), padding=1, name="one")
    return tg.conv2d(h, tg.weight("w2", (C, 3, 3, C), "float32"), padding=1, name="two")


def test_halo_of_a_convolution() -> None:
    """Rows of tiles: each tile of the second convolution needs its own, the one above and the one below."""
    one = lattice_of(two_convs(), "one", one=(1, 2, 8, 2, 4), two=(1, 2, 8, 4, 4))
    assert hows(one, "class") == [("all", 1), ("each", 1), ("all", 1), ("all", 1)]
    assert one.point("class").waits == (2 + 3 + 3 + 2) / 4
    assert one.point("class").start == 2 * (2 + 3 + 3 + 2) / 4  # two tiles of channels each
    # tiles of 4 rows read rows -1 … 4 and 3 … 8: of the tiles of one row, 3 and 4 are in both
    wide = lattice_of(two_convs(), "one", one=(1, 1, 8, 4, 4), two=(1, 4, 8, 4, 4))
    assert wide.point("class").partition[1].table == (0, 0, 0, 1, 1, 2, 2, 2)


# --- points -------------------------------------------------------------------------------------------------


def test_costs_are_counted() -> None:
    """up has 4 x 6 tiles, down 4 x 3 of 3 steps; each tile of down needs the 6 of its row, two at each
    step."""
    up = lattice_of(mlp(), "up", up=(16, 16, 32), down=(16, 16, 32))
    costs = {p.name: (p.semaphores, p.waits, p.start, p.unawaited) for p in up.points}
    assert costs == {
        "kernel": (1, 1.0, 24.0, 0),
        "row=class": (4, 1.0, 6.0, 0),
        "column": (6, 6.0, 8.0, 0),
        "step": (12, 3.0, 2.0, 0),
        "tile": (24, 6.0, 2.0, 0),
    }
    assert up.point("chunk:3").semaphores == 8 and up.point("chunk:3").start == 3.0
    with pytest.raises(PlanError, match="no policy 'diagonal'"):
        up.point("diagonal")


@tg.spec
def half(M=8, K=8):
    h, _ = tg.linear(tg.input("x", (M, K), "float32"), tg.weight("w1", (16, K), "float32"), name="up").chunk(
        2
    )
    return tg.linear(h, tg.weight("w2", (8, 8), "float32"), name="down")


def test_what_nobody_needs_is_told() -> None:
    up = lattice_of(half(), "up", up=(8, 4, 8), down=(8, 8, 8))
    assert {p.name.split("=")[-1]: p.unawaited for p in up.points} == {"row": 0, "step": 1, "tile": 2}


def chain(lat: Lattice) -> list[Any]:
    """kernel, consumer classes, step classes, tile as labels; the exact classes, not their products."""
    shape = block_shape(lat.edges[0])
    found = [classes(shape, lat.relations, by_step) for by_step in (False, True)]
    return [np.zeros(len(found[0]), dtype=int), *found, np.arange(len(found[0]))]


@pytest.mark.parametrize("number", range(24))
def test_kernel_class_step_tile_is_a_chain(number: int) -> None:
    graph = draw_pair(number).graph if number % 2 else draw_case(number).graph
    for lat in lattices_of(graph).values():
        assert all(refines(finer, coarser) for coarser, finer in pairwise(chain(lat)))
        for name, exact in zip(("class", "step"), chain(lat)[1:3], strict=True):
            # two reads of one op are one use
            assert refines(labels_of(lat.point(name).partition), exact) or len(lat.edges) > 1
        for point in lat.points:
            assert point.semaphores == len(np.unique(labels_of(point.partition)))


def test_classes_on_a_grid_are_what_consumers_need() -> None:
    """The definition, spelt out: equal label if and only if the same consumer tiles need the block."""
    for number in range(12):
        for e in draw_pair(number).graph.edges:
            r, count = relation(e), int(np.prod(block_shape(e)))
            needs = [frozenset(r.tile[r.block == n].tolist()) for n in range(count)]
            label = classes(block_shape(e), [r], by_step=False)
            assert [[a == b for b in needs] for a in needs] == (label[:, None] == label[None, :]).tolist()
