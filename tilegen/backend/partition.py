"""Nodes of a graph as parts that can each be one call.

As torch.fx's CapabilityBasedPartitioner has them, whose search for cycles takes minutes on the joint graph
of a training step: from the last node to the first each node that is allowed becomes a part, and parts are
merged where nothing between them stands outside. What is behind a part is a number here, a bit for each part
or node.
"""

from __future__ import annotations

import operator
from collections.abc import Container

from torch.fx import Graph, Node


def partition(graph: Graph, allowed: Container[Node]) -> list[tuple[Node, ...]]:
    """Parts, each in the graph's order. No two of them need each other, and all nodes that are allowed are in
    one."""
    parts = _Parts()
    changed = False  # since all were last tried
    for node in reversed(graph.nodes):
        parts.add(node, node in allowed)
        if node in allowed:
            parts.merge_all(parts.of[node])
            changed = True
        elif changed:
            changed = parts.merge_all(min(parts.nodes, key=parts.born.__getitem__))
    return _with_items(graph, parts)


class _Parts:
    """Parts and nodes outside, by numbers. of: the number of each node. nodes: those of a part. users: what
    reads a part or a node outside. behind: all that depends on it, a bit each. born: when a part's last node
    came."""

    def __init__(self) -> None:
        self.of: dict[Node, int] = {}
        self.nodes: dict[int, list[Node]] = {}
        self.users: dict[int, set[int]] = {}
        self.behind: dict[int, int] = {}
        self.born: dict[int, int] = {}

    def add(self, node: Node, allowed: bool) -> None:
        number = self.of[node] = len(self.of)
        self.users[number] = {self.of[user] for user in node.users}
        self.behind[number] = 0
        for user in self.users[number]:
            self.behind[number] |= self.behind[user] | 1 << user
        if allowed:
            self.nodes[number], self.born[number] = [node], number

    def merge_all(self, part: int) -> bool:
        """Others into a part, the one born first before; whether there was any."""
        count = len(self.nodes)
        others = [n for n in sorted(self.nodes, key=self.born.__getitem__) if n != part]
        for other in others:
            if not self._between(part, other):
                part = self._merge(part, other)
        return len(self.nodes) < count

    def _between(self, a: int, b: int) -> bool:
        """Whether something outside depends on one of two parts, and the other on it."""
        first, last = (a, b) if self.behind[a] >> b & 1 else (b, a)
        if not self.behind[first] >> last & 1:
            return False
        return any(user != last and self.behind[user] >> last & 1 for user in self.users[first])

    def _merge(self, a: int, b: int) -> int:
        """Two parts as one, which keeps the number of the larger."""
        kept, gone = (b, a) if len(self.nodes[a]) < len(self.nodes[b]) else (a, b)
        pair = 1 << kept | 1 << gone
        behind = (self.behind[kept] | self.behind[gone]) & ~pair
        self.behind[kept] = behind
        self.users[kept] = (self.users[kept] | self.users.pop(gone)) - {kept, gone}
        del self.behind[gone]
        for node in self.nodes[gone]:
            self.of[node] = kept
        self.nodes[kept] += self.nodes.pop(gone)
        self.born[kept] = min(self.born[kept], self.born.pop(gone))
        for number, mask in self.behind.items():
            if mask & pair:
                self.behind[number] = mask & ~(1 << gone) | 1 << kept | behind
                users = self.users[number]
                if gone in users:
                    users.discard(gone)
                    users.add(kept)
        return kept


def _with_items(graph: Graph, parts: _Parts) -> list[tuple[Node, ...]]:
    """The parts in the graph's order; what picks a result of several is where these are made."""
    part: dict[Node, int | None] = {n: k if (k := parts.of[n]) in parts.nodes else None for n in graph.nodes}
    changed = True
    while changed:  # a result of a result
        changed = False
        for node in graph.nodes:
            if node.users and all(_picks(user) for user in node.users):
                for user in node.users:
                    changed |= part[user] != part[node]
                    part[user] = part[node]
    found: dict[int, list[Node]] = {number: [] for number in sorted(parts.nodes)}
    for node in graph.nodes:
        if (number := part[node]) is not None:
            found[number].append(node)
    return [tuple(nodes) for nodes in found.values() if nodes]


def _picks(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem
