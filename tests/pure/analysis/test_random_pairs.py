"""Random pairs of ops: the dependences that tilegen derives are those of a loop over elements, and those of
isl.

A sample; tests/full.py draws thousands.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracles.dependences import by_isl, derived, disagreement
from tests.random_pairs import CONSUMERS, draw_pair
from tilegen.analysis.dependence import Edge
from tilegen.graph.graph import Graph


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_derived_dependences_are_those_of_the_elements(first: int) -> None:
    for number in range(first, first + 20):
        pair = draw_pair(number)
        assert not disagreement(pair.graph), f"pair {number}, {pair.producer} -> {pair.consumer}"


@pytest.mark.parametrize("first", range(200, 240, 20))
def test_derived_dependences_are_those_of_isl(first: int) -> None:
    for number in range(first, first + 20):
        for e in draw_pair(number).graph.edges:
            assert derived(e) == by_isl(e), f"pair {number}, {e.name} by operand {e.access.operand}"


def test_every_kind_of_consumer_is_drawn() -> None:
    assert {draw_pair(n).consumer for n in range(120)} == set(CONSUMERS)


def with_edge(graph: Graph, new: Edge) -> Graph:
    """The graph with its first edge spoiled."""
    spoiled = replace(graph)
    spoiled.__dict__["edges"] = (new, *graph.edges[1:])
    return spoiled


def test_the_oracle_sees_a_missing_halo_and_a_block_too_many() -> None:
    seen = set()
    for number in range(60):
        graph = draw_pair(number).graph
        edge = graph.edges[0]
        less = with_edge(graph, replace(edge, last=edge.first))
        late = with_edge(graph, replace(edge, access=replace(edge.access, when="epilogue")))
        if len(derived(less.edges[0])) < len(derived(edge)):
            assert "misses" in disagreement(less)
            seen.add("less")
        if edge.access.when == "step" and not edge.stepped and derived(edge):
            assert "first at step" in disagreement(late)
            seen.add("late")
    assert seen == {"less", "late"}
