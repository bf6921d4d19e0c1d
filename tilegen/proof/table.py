"""What the checks of a plan work on: the plan as flat arrays, and the violations found in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilegen.proof.footprint.frame import Array
from tilegen.proof.memory_order import Ways

CAP = 20  # violations kept of each check; all are counted


@dataclass(frozen=True)
class Violation:
    """One thing wrong with a plan."""

    check: str
    message: str
    rank: int | None


@dataclass
class Findings:
    """Violations found so far: the first of each check, and the count of all."""

    kept: list[Violation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, check: str, message: str, rank: int | None = None, times: int = 1) -> None:
        if self.room(check):
            self.kept.append(Violation(check, message, rank))
        self.add_count(check, times)

    def add_count(self, check: str, times: int) -> None:
        self.counts[check] = self.counts.get(check, 0) + times

    def room(self, check: str) -> bool:
        return sum(v.check == check for v in self.kept) < CAP


@dataclass(frozen=True)
class Boxes:
    """Boxes of tensors (one row each) and the CTAs that touch them; progressions end at their last
    element."""

    cta: Array
    tensor: Array
    low: Array
    high: Array
    stride: Array

    def take(self, where: np.ndarray[Any, Any] | slice) -> Boxes:
        return Boxes(
            self.cta[where], self.tensor[where], self.low[where], self.high[where], self.stride[where]
        )


@dataclass(frozen=True)
class Steps:
    """Per needed read, the step at which a box that begins somewhere begins (see footprint.frame.Access), and
    whether it must be listed."""

    axis: Array
    origin: Array
    size: Array
    base: Array
    required: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """A well-formed plan. `states`: state * semaphores + semaphore, sorted, for each semaphore fully awaited
    in a wait state."""

    program: str
    sizes: tuple[tuple[str, int], ...]
    machine: str
    sms: int
    scheduling: list[list[int]] | None
    tensors: list[str]
    shapes: list[tuple[int, ...]]
    roles: list[str]
    proxies: list[str]
    tiles: list[str]
    cta_tile: Array
    cta_index: Array
    clusters: bool
    reads: Boxes
    read_state: Array
    read_waits: Array
    read_proxy: Array
    writes: Boxes
    write_proxy: Array
    posts: Array  # CTA, semaphore, amount
    waits: Array  # CTA, semaphore, target
    targets: Array
    states: Array
    needs: Boxes
    steps: Steps
    derived: Boxes
    exact: np.ndarray[Any, Any]
    # of listed reads: the number of the cut before which all rows lie that the op reads there; 0: none
    before: Array
    since: Array  # of CTAs: the number of the cut from which on they write; 0: none
    declared: tuple[str, ...]  # ops whose footprint is taken as listed
    target: str
    ways: tuple[tuple[str, Array, Ways], ...]  # op, its CTAs, how they must read and write

    def cta_name(self, cta: int) -> str:
        rank = int(self.cta_tile[cta])
        return f"{self.tiles[rank]} rank {rank}" + (
            f" CTA {int(self.cta_index[cta])}" if self.clusters else ""
        )

    def rank(self, cta: int) -> int:
        return int(self.cta_tile[cta])

    def read_name(self, read: int) -> str:
        """The CTA of a listed read and its box: "down (3, 7) rank 912 reads h[384:512, 0:6144]"."""
        r = self.reads
        return (
            f"{self.cta_name(r.cta[read])} reads"
            f" {self.box_name(int(r.tensor[read]), r.low[read], r.high[read], r.stride[read])}"
        )

    def box_name(self, tensor: int, low: Array, high: Array, stride: Array | None = None) -> str:
        count = len(self.shapes[tensor])
        steps = [1] * count if stride is None else stride.tolist()
        ranges = (
            f"{a}:{b}" + (f":{s}" if s > 1 else "")
            for a, b, s in zip(low.tolist()[:count], high.tolist(), steps, strict=False)
        )
        return f"{self.tensors[tensor]}[{', '.join(ranges)}]"


def ends(low: Array, high: Array, stride: Array) -> tuple[Array, Array]:
    """A progression in one form: it ends behind its last element, and a single element has stride 1."""
    last = low + (high - 1 - low) // stride * stride
    return last + 1, np.where(last == low, 1, stride)
