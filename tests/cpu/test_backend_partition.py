"""Parts of a graph are torch.fx's own, found without its time; what many nodes lack is asked once."""

from __future__ import annotations

import operator
import random
from collections.abc import Container

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tests.compiled import compiled, counted, left
from tilegen.backend import search
from tilegen.backend.partition import partition


def drawn(seed: int) -> tuple[Graph, set[Node]]:
    """A graph of any shape, results of several picked here and there, and the nodes that are allowed."""
    draw, graph = random.Random(seed), Graph()
    nodes = [graph.placeholder(f"given{n}") for n in range(draw.randint(1, 4))]
    for _ in range(draw.randint(3, 60)):
        if draw.random() < 0.12:
            nodes.append(graph.call_function(operator.getitem, (draw.choice(nodes), 0)))
        else:
            near = nodes[-draw.choice((3, 8, 60)) :]
            given = tuple(draw.choice(near) for _ in range(draw.randint(1, 3)))
            nodes.append(graph.call_function(max, given))
    graph.output(tuple(draw.sample(nodes, min(3, len(nodes)))))
    share = draw.choice((0.5, 0.8, 0.95))
    return graph, {n for n in graph.nodes if n.op == "call_function" and draw.random() < share}


class Support(OperatorSupportBase):
    def __init__(self, allowed: Container[Node]):
        self.allowed = allowed

    def is_node_supported(self, submodules: object, node: Node) -> bool:
        return node in self.allowed


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_parts_are_torchs(first: int) -> None:
    for seed in range(first, first + 100):
        graph, allowed = drawn(seed)
        module = GraphModule(nn.Module(), graph)
        torchs = CapabilityBasedPartitioner(module, Support(allowed), allows_single_node_partition=True)
        assert [set(part) for part in partition(graph, allowed)] == [
            set(part.nodes) for part in torchs.propose_partitions()
        ], seed


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_no_two_parts_need_each_other_and_each_is_in_the_graphs_order(seed: int) -> None:
    graph, allowed = drawn(seed)
    order = {node: n for n, node in enumerate(graph.nodes)}
    parts = partition(graph, allowed)
    assert all(list(part) == sorted(part, key=order.__getitem__) for part in parts)
    within = {node: n for n, part in enumerate(parts) for node in part}
    needs: dict[object, set[object]] = {}
    for node in graph.nodes:
        me = within.get(node, node)
        needs.setdefault(me, set()).update(within.get(n, n) for n in node.all_input_nodes)
    done: set[object] = set()
    while ready := [one for one, of in needs.items() if one not in done and of - {one} <= done]:
        done.update(ready)
    assert done == needs.keys()


def test_masks_that_gradients_read_are_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that leaves them one by one would be written anew for each."""
    written: list[str] = []
    of = search.Region.of

    def noted(text: str) -> search.Region:
        written.append(text)
        return of(text)

    monkeypatch.setattr(search.Region, "of", noted)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.ReLU())))
    x = torch.randn(4, 8)
    (mine,) = torch.autograd.grad(compiled(model)(x).sum(), [model[0].weight])
    (theirs,) = torch.autograd.grad(model(x).sum(), [model[0].weight])
    assert torch.allclose(mine, theirs, atol=1e-6)
    assert counted()["regions"] >= 1 and "others than its region read" in left()
    assert len(set(written)) <= 3
