"""Orders: every tile once, in the walk that the name says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

import tilegen as tg
from tilegen.analysis.regions import tiles_of
from tilegen.graph.fuse_epilogues import fuse
from tilegen.schedule.order import Order, Segment, banded, by_name, candidates, depths, op_major

F = "float32"


@tg.spec
def mlp(M=64, K=16, N=48):
    x, w = tg.input("x", (M, K), F), tg.weight("w", (N, K), F)
    h = tg.linear(x, w, name="up")
    return tg.add(tg.linear(h, tg.weight("u", (K, N), F), name="down"), x, name="y")


@tg.spec
def attention(S=32):
    x = tg.input("x", (2, S, 16), F)
    q, k, v = tg.linear(x, tg.weight("w", (48, 16), F), name="qkv").chunk(3)
    return tg.attention(q, k, v, heads=2, causal=True, name="attn")


def planned(**options):
    return tg.plan(
        mlp(), "cpu:2", **{"tiles": {"up": (8, 16, 16), "down": (8, 8, 16)}, "order": "op_major", **options}
    )


GRAPH = planned().graph  # up: 8 x 3 tiles, down: 8 x 2


def walk(order):
    """(op, coordinates) by rank."""
    return [(s.op, at) for s in order.segments for at in zip(*(c.tolist() for c in s.coords()), strict=True)]


@pytest.mark.parametrize("group", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    "make",
    [op_major, lambda g, group: banded(g, 2, 1, group), lambda g, group: banded(g, 3, 2, group)],
    ids=["op_major", "2", "3:2"],
)
def test_every_tile_once(make, group):
    order = make(GRAPH, group=group)
    ranks = order.ranks(GRAPH)
    assert (
        sorted(np.concatenate(list(ranks.values())).tolist())
        == list(range(order.count))
        == list(range(8 * 3 + 8 * 2))
    )
    for rank, (op, at) in enumerate(walk(order)):
        tiles = tiles_of(GRAPH.bound(GRAPH.op(op)))
        assert ranks[op][np.ravel_multi_index(at, tiles.grid)] == rank


def test_phase_is_row_major():
    expected = [("up", (i, j)) for i in range(8) for j in range(3)] + [
        ("down", (i, j)) for i in range(8) for j in range(2)
    ]
    assert walk(op_major(GRAPH)) == expected


def test_groups_walk_columns_first():
    """Super-tiles of 3 rows: down the rows of a group, then to the next column; the last group has 2 rows."""
    up = walk(op_major(GRAPH, 3))[:24]
    assert up[:9] == [("up", (i, j)) for j in range(3) for i in range(3)]
    assert up[18:] == [("up", (i, j)) for j in range(3) for i in (6, 7)]


def test_bands_follow_each_other():
    order = banded(GRAPH, 4)
    assert [(s.op, s.lo[0], s.hi[0]) for s in order.segments[:4]] == [
        ("up", 0, 2),
        ("up", 2, 4),
        ("down", 0, 2),
        ("up", 4, 6),
    ]
    assert order.segments[-1].op == "down" and order.segments[-1].lo[0] == 6


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_lag(lag):
    """Band b of the consumer comes after band b + lag of the producer began."""
    order = banded(GRAPH, 4, lag)
    at = {(s.op, s.lo[0] // 2): n for n, s in enumerate(order.segments)}
    for b in range(4 - lag):
        assert at["up", b + lag] < at["down", b]
        assert b + lag + 1 > 3 or at["down", b] < at["up", b + lag + 1]


def test_depths():
    assert depths(GRAPH) == {"up": 0, "down": 1}
    split = planned(split_k={"down": 2}).graph
    assert depths(split) == {"up": 0, "down_k0": 1, "down": 2}


def test_the_longest_causal_tiles_come_first():
    made = tg.plan(attention(), "cpu:2", tiles={"attn": (8, 8)}, order="op_major")
    tiles = tiles_of(made.graph.bound(made.graph.op("attn")))
    steps = tiles.steps[np.argsort(made.ranks["attn"])]
    assert (np.diff(steps) <= 0).all() and steps[0] > steps[-1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("op_major", op_major(GRAPH)),
        ("op_major:4", op_major(GRAPH, 4)),
        ("banded:2", banded(GRAPH, 2)),
        ("banded:4:2", banded(GRAPH, 4, 2)),
    ],
)
def test_names(name, expected):
    made = by_name(GRAPH, name)
    assert made == expected and made.name.startswith(name)
    assert planned(order=name).order == expected


@given(rows=integers(1, 60), most=integers(1, 12))
def test_super_tiles_are_as_few_as_they_can_be_and_about_as_high(rows: int, most: int) -> None:
    """One that is much lower than the others reads all weights once more for a few rows."""
    graph = fuse(mlp(M=8 * rows))
    for op in graph.ops:
        graph = graph.with_op(op.name, replace(op, tile=(8, 16, 16)))
    segment = op_major(graph, most).segments[0]
    heights = [min(segment.group, rows - n) for n in range(0, rows, segment.group)]
    assert len(heights) == -(-rows // most) and max(heights) <= most
    assert max(heights) - min(heights) < len(heights)


def test_candidates():
    orders = candidates(GRAPH, 2)
    assert [o.name for o in orders] == [
        "op_major",
        "banded:2:1",
        "banded:4:1",
    ]  # no more bands than half the rows
    assert planned(order="auto").order in orders


@pytest.mark.parametrize(
    "order", ["op_major", "op_major:4", "banded:2", "banded:4", "banded:4:2", "banded:8:3"]
)
@pytest.mark.parametrize("scheduling", ["dynamic", "lists"])
def test_all_orders_are_proved(order, scheduling):
    made = planned(order=order, scheduling=scheduling)
    assert tg.verify(made).ok
    if scheduling == "lists":
        assert all(list(ranks) == sorted(ranks) for ranks in made.scheduling)
        assert sorted(r for ranks in made.scheduling for r in ranks) == list(range(made.order.count))


def test_missing_and_double_tiles():
    first, second = op_major(GRAPH).segments
    with pytest.raises(tg.PlanError, match=r"order x: tile \[15\] of 'up' is missing"):
        Order("x", (Segment("up", (0, 0), (5, 3)), second)).ranks(GRAPH)
    with pytest.raises(tg.PlanError, match="order x: a tile of 'up' stands twice"):
        Order("x", (first, second, Segment("up", (7, 2), (8, 3)))).ranks(GRAPH)
