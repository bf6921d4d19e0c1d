"""Dependences of small programs worked out by hand, and the pieces they are made of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import tilegen as tg
from tests.oracles.dependences import by_isl, derived, disagreement
from tests.oracles.elements import examine
from tilegen.analysis.dependence import expand, meets
from tilegen.analysis.regions import compiled, divide, evaluate, modulo
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.ops.base import ceil_div, coord
from tilegen.options import Options
from tilegen.proof.checker import check
from tilegen.schedule.expand import expanded
from tilegen.schedule.planner import plan, tiled
from tilegen.targets.select import place

LAWS = settings(derandomize=True, deadline=None, max_examples=200)
I = coord("i")
F = "float32"


def graph_of(program: Any, **options: Any) -> Graph:
    return tiled(fuse(program), place("h200"), Options.of(**options))


def checked(graph: Graph) -> Graph:
    assert not disagreement(graph)
    assert all(derived(e) == by_isl(e) for e in graph.edges)
    return graph


@tg.spec
def mlp(M=10, K=6, H=14, N=5):
    h = tg.linear(tg.input("x", (M, K), F), tg.weight("w1", (H, K), F), name="up")
    return tg.linear(h, tg.weight("w2", (N, H), F), name="down")


def test_gemm_to_gemm() -> None:
    """up: rows 0-3, 4-7, 8-9 by columns 0-4, 5-9, 10-13; down: rows 0-5, 6-9, steps of 7 columns."""
    graph = checked(graph_of(mlp(), tiles={"up": (4, 5, 6), "down": (6, 5, 7)}))
    (edge,) = graph.edges
    assert derived(edge) == {
        (0, 0): 0, (0, 1): 0, (0, 2): 1, (0, 3): 0, (0, 4): 0, (0, 5): 1,
        (1, 3): 0, (1, 4): 0, (1, 5): 1, (1, 6): 0, (1, 7): 0, (1, 8): 1,
    }  # fmt: skip
    assert edge.name == "up->down" and edge.stepped


def test_formula_of_gemm_to_gemm() -> None:
    graph = graph_of(mlp(M=512, H=512), tiles={"up": (128, 64, 6), "down": (128, 5, 128)})
    assert graph.edges[0].formula() == "up blocks [i, 2·k … 2·k + 1]"


@tg.spec
def static_persistent(stride=3, filter_size=1, padding=2):
    h = tg.conv2d(tg.input("x", (1, 7, 12, 4), F), tg.weight("w1", (4, 1, 1, 4), F), name="one")
    return tg.conv2d(
        h, tg.weight("w2", (4, 4, filter_size, 4), F), stride=stride, padding=(0, padding), name="two"
    )


def test_strided_columns_skip_blocks() -> None:
    """Columns 3·q - 2 for q = 0 … 5: 1, 4, 7, 10 and two on padding. Blocks of one column: the others are
    needed by nobody."""
    graph = checked(graph_of(static_persistent(), tiles={"one": (1, 7, 1, 4, 4), "two": (1, 2, 6, 4, 4)}))
    (edge,) = graph.edges
    assert sorted(block for _, block in derived(edge)) == [1, 4, 7, 10]


def test_even_sizes_in_a_minimum_are_rounded() -> None:
    """SymPy 1.14 takes min(12, 6·…)/10 and min(14, 12·i + 12)/14 for whole, because both numbers are even."""
    checked(graph_of(static_persistent(), tiles={"one": (1, 2, 10, 10, 4), "two": (3, 2, 4, 1, 4)}))
    checked(graph_of(causal(), tiles={"qkv": (28, 1, 3), "attention": (12, 14)}))
    p = plan(causal(), place("cpu:3"), Options.of(tiles={"qkv": (28, 1, 3), "attention": (12, 14)}))
    data = json.loads(json.dumps(expanded(p)))
    assert check(data).ok and examine(data).ok


@tg.spec
def causal(B=2, S=14):
    q, k, v = tg.linear(tg.input("x", (B, S, 3), F), tg.weight("w", (3, 3), F), name="qkv").chunk(3)
    return tg.attention(q, k, v, heads=1, causal=True, name="attention")


def test_causal_attention_needs_no_later_rows() -> None:
    """Query rows 0-3, 4-7, 8-11, 12-13 of one sequence; keys in steps of 4."""
    graph = checked(graph_of(causal(B=1), tiles={"qkv": (4, 3, 3), "attention": (4, 4)}))
    q, k, v = (derived(e) for e in graph.edges)
    assert q == {(i, i): -1 for i in range(4)}
    assert k == v == {(i, j): j for i in range(4) for j in range(i + 1)}


def test_shared_key_heads() -> None:
    """Four query heads, two key heads: columns of K are block 4 for heads 0 and 1, block 5 for heads 2 and
    3."""

    @tg.spec
    def grouped(S=6, D=3):
        q, k, v = tg.linear(tg.input("x", (1, S, 4), F), tg.weight("w", (8 * D, 4), F), name="qkv").split(
            [4 * D, 2 * D, 2 * D]
        )
        return tg.attention(q, k, v, heads=4, kv_heads=2, name="attention")

    graph = checked(graph_of(grouped(), tiles={"qkv": (6, 3, 4), "attention": (6, 6, 1)}))
    q, k, v = (sorted(derived(e)) for e in graph.edges)
    assert q == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert k == [(0, 4), (1, 4), (2, 5), (3, 5)] and v == [(0, 6), (1, 6), (2, 7), (3, 7)]


def test_split_sum_waits_for_its_shares_in_the_epilogue() -> None:
    graph = checked(graph_of(mlp(), tiles={"up": (10, 5, 6), "down": (5, 5, 4)}, split_k={"down": 2}))
    assert [(e.name, e.access.when) for e in graph.edges] == [
        ("up->down_k0", "step"), ("up->down", "step"), ("down_k0->down", "epilogue"),
    ]  # fmt: skip
    assert derived(graph.edges[0]) == {(0, 0): 0, (0, 1): 1, (1, 0): 0, (1, 1): 1}  # columns 0-7
    # columns 8-13, of which 12-13 come later
    assert derived(graph.edges[1]) == {(0, 1): 0, (0, 2): 0, (1, 1): 0, (1, 2): 0}
    assert derived(graph.edges[2]) == {(0, 0): 2, (1, 1): 2}


def test_rows_of_a_cache_that_nobody_writes_need_nobody() -> None:
    @tg.spec
    def cached(seq=4, room=12, at=5):
        k = tg.linear(tg.input("x", (1, seq, 4), F), tg.weight("w", (6, 4), F), name="k")
        cache = tg.append(tg.state("cache", (1, room, 6), F), k, at=at, name="put")
        return tg.attention(tg.input("q", (1, 2, 6), F), cache, cache, heads=2, name="ask")

    graph = checked(graph_of(cached(), tiles={"k": (2, 3, 4), "put": (3,), "ask": (2, 4)}))
    assert derived(graph.edges[0]) == {(0, 0): 0, (0, 2): 0, (1, 1): 0, (1, 3): 0}
    assert derived(graph.edges[1]) == {(0, 0): 1, (1, 1): 1}  # keys 4-7 are the first to hold new rows


def test_what_two_ops_read_stays_a_tensor() -> None:
    """y = sigmoid(a) + a: a is read by what is folded into y, so it cannot be folded away itself."""

    @tg.spec
    def twice(M=4, K=4):
        a = tg.silu(tg.linear(tg.input("x", (M, K), F), tg.weight("w", (K, K), F), name="up"))
        return tg.add(tg.sigmoid(a), a)

    graph = fuse(twice())
    made = {op.result for op in graph.ops}
    read = {o.tensor for op in graph.ops for o in op.operands}
    assert all(name in made or graph.tensors[name].role in ("input", "weight") for name in read)


# --- pieces -------------------------------------------------------------------------------------------------


@LAWS
@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 5), st.integers(0, 20), st.integers(0, 8))
def test_meets(lo: int, length: int, stride: int, block: int, width: int) -> None:
    found = meets(
        *(np.array([v]) for v in (lo, lo + length)), stride, np.array([block]), np.array([block + width])
    )
    assert bool(found[0]) == bool(set(range(lo, lo + length, stride)) & set(range(block, block + width)))


@LAWS
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, 3), st.integers(-3, 3), st.integers(0, 3)), max_size=5
    )
)
def test_expand(boxes: list[tuple[int, int, int, int]]) -> None:
    first = [np.array([b[d] for b in boxes], dtype=np.int64) for d in (0, 2)]
    counts = [np.array([b[d] for b in boxes], dtype=np.int64) for d in (1, 3)]
    origin, (x, y) = expand(first, counts)
    expected = [(n, a + i, b + j) for n, (a, c, b, e) in enumerate(boxes) for i in range(c) for j in range(e)]
    assert list(zip(origin.tolist(), x.tolist(), y.tolist(), strict=True)) == expected


SMALL = st.integers(1, 16)


@settings(LAWS, max_examples=40)
@given(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, st.sampled_from([sp.Min, sp.Max]))
def test_quotients_of_minima_are_rounded(
    c: int, d: int, bound: int, tile: int, offset: int, q: int, kind: Any
) -> None:
    d, offset = d - 8, offset - 8
    e = c * kind(bound, tile * I + offset) + d
    at = np.arange(8)
    value = c * (np.minimum if kind is sp.Min else np.maximum)(bound, tile * at + offset) + d
    assert np.broadcast_to(evaluate(divide(e, q), {"i": at}), at.shape).tolist() == (value // q).tolist()
    assert np.broadcast_to(evaluate(modulo(e, q), {"i": at}), at.shape).tolist() == (value % q).tolist()
    assert (
        np.broadcast_to(evaluate(ceil_div(e, q), {"i": at}), at.shape).tolist() == (-(-value // q)).tolist()
    )


def test_a_fraction_is_refused() -> None:
    with pytest.raises(tg.AnalysisError, match="fraction"):
        compiled(sp.Min(14, 12 * I + 12) / 14, ("i",))
