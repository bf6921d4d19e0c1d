"""Positions in caches: how far one is filled, an input of the kernel, read on the device.

0 ≤ position ≤ room - rows   for `rows` new rows in a cache with room for `room`
"""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.frontend.dims import most
from tilegen.graph.graph import Graph
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes


@dataclass(frozen=True)
class Position:
    """A position, and the op that finds its rows there. tensor: an int32 input of one element."""

    tensor: str
    op: str
    rows: int
    room: int
    where: str

    @property
    def most(self) -> int:
        return self.room - self.rows

    def problem(self, given: int) -> str:
        """What is wrong with a position, or an empty string."""
        if 0 <= given <= self.most:
            return ""
        return (
            f"{self.tensor!r} is {given}: {self.op!r} needs 0 ≤ position ≤ {self.most} ({self.rows} rows in a"
            f" cache of {self.room})"
        )


def positions(graph: Graph) -> tuple[Position, ...]:
    """Those that the ops of a graph read, each limit of a tensor once."""
    found: dict[tuple[str, int], Position] = {}
    for op in graph.ops:
        b = graph.bound(op)
        match b.attributes:
            case AppendAttributes(seq=rows, max_len=room) if b.has("position"):
                pass
            case AttentionAttributes(q_len=rows, k_len=room) if b.has("position"):
                pass
            case _:
                continue
        made = Position(b.operand("position").tensor, op.name, most(rows), int(room), op.where)
        found.setdefault((made.tensor, made.most), made)
    return tuple(found.values())
