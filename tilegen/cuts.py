"""How a Hopper GPU cuts GeMMs into tiles and gangs: every cut that its kernel can run, judged by clocks.

A CTA's step over 64 columns of K takes the longest of: tensor cores (rows·columns/32 clocks), shared memory (128 bytes a clock: A once and B once for
each m64 of wgmma, and what TMA writes), and its share of L2. An op takes its waves of tiles, but never less than its bytes from memory.
docs/perf-log.md holds the measurements behind the constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilegen.machine import Machine
from tilegen.ops.base import Bound, ceil_div
from tilegen.tiling import Graph

CLOCK = 1.6e3  # clocks a µs: what the power limit leaves under full load
STREAM = 0.96  # of the memory's read rate, with all SMs at it
BUSY = 128  # CTAs that it takes to read at that rate
SUMS = 192  # sums that a math thread can hold
L2 = 60.0  # bytes a clock that a CTA gets from L2 with all SMs at it
COUPLED = {128: 1.03, 256: 1.08}  # what waiting for each other costs a pair that loads together, by rows of a CTA
REREAD = 0.25  # what a byte of activations from L2 costs, of what a byte of weights from memory does
SHARED = 228_000  # bytes of shared memory for the ring and result buffers


@dataclass(frozen=True)
class Cut:
    """A tile, the gang that runs it, and the op's modelled time in µs."""

    tile: tuple[int, int, int]
    parts: int
    share: str
    us: float

    @property
    def gang(self) -> str:
        """As Options.parts takes it."""
        return f"{self.parts}:{self.share}"


def best_cuts(graph: Graph, machine: Machine, gangs: Sequence[int] = (1, 2)) -> Mapping[str, Cut]:
    """op -> its best cut, all with gangs of one size: of the sizes given that with the least sum of times. Empty where none fits all ops."""
    choices = []
    for parts in gangs:
        found = {op.name: min(cuts(graph.bound(op), machine, parts), key=lambda c: c.us, default=None) for op in graph.ops}
        if all(found.values()):
            choices.append({name: cut for name, cut in found.items() if cut is not None})
    return min(choices, key=lambda chosen: sum(cut.us for cut in chosen.values()), default={})


def cuts(b: Bound, machine: Machine, parts: int) -> Iterator[Cut]:
    """Every cut of a linear for gangs of `parts` CTAs."""
    rows, columns = (int(n) for n in b.out)
    lo, hi = b.kind.k_range(b)  # type: ignore[attr-defined]
    even = ceil_div(hi - lo, 64) % parts == 0  # a pair must take equal shares of the steps, or its rings drift apart
    for share in ("steps", "rows", "columns") if parts > 1 else ("steps",):
        if share == "steps" and not even:
            continue
        for height in (64, 128, 256):
            if height > 64 and height // 2 >= max(rows, 64) * (2 if share == "rows" else 1):
                continue
            for width in range(16, 257, 8):
                if _fits(b, height, width, parts, share) and width < columns + 16:
                    tile = (height * (parts if share == "rows" else 1), width * (parts if share == "columns" else 1), 64)
                    yield Cut(tile, parts, share if parts > 1 else "steps", _op_us(b, machine, height, width, parts, share, rows, columns))


def _fits(b: Bound, height: int, width: int, parts: int, share: str) -> bool:
    """Whether a CTA can compute height x width."""
    split = height == 64  # the two math warpgroups share the columns, else the rows
    halves = 2 if split or (parts > 1 and share == "steps") else 1
    across = b.groups * width // (2 if split else 1)
    if width % (8 * halves) or across > 256 or max(1, height // 128) * across // 2 > SUMS:
        return False
    exchanged = height * width * b.groups * 2 if parts > 1 and share == "steps" else 0
    results = 2 * 8192 if height > 64 else 0
    return 3 * (height + b.groups * width) * 128 + exchanged + results <= SHARED


def _op_us(b: Bound, machine: Machine, height: int, width: int, parts: int, share: str, rows: int, columns: int) -> float:
    shares_steps = parts > 1 and share == "steps"
    tall, wide = height * (parts if share == "rows" else 1), width * (parts if share == "columns" else 1)
    down, across = ceil_div(rows, tall), ceil_div(columns, wide)
    gangs = machine.sms // parts
    lo, hi = b.kind.k_range(b)  # type: ignore[attr-defined]
    steps = ceil_div(hi - lo, 64) / (parts if shares_steps else 1)
    loaded = min(height, ceil_div(rows, 8) * 8)
    a, w = loaded * 128, b.groups * width * 128
    shared_a = parts > 1 and share == "columns" and loaded >= 64
    shared_w = parts > 1 and share == "rows"
    step = max(
        height * b.groups * width / 32,
        (max(height, 128) * 128 + max(1, height // 64) * w + a + w) / 128,
        (a / (2 if shared_a else 1) + w / (2 if shared_w else 1)) / L2,
    ) * (COUPLED.get(height, 1.0) if shared_a or shared_w else 1.0)
    tile = (steps * step + 1500) / CLOCK + height * width * b.groups * (3e-5 + (5e-5 if shares_steps else 0.0))
    waves = ceil_div(down * across, gangs)
    active = down * across * parts / waves  # on average over the waves
    moved = 2.0 * (b.groups * columns * (hi - lo) + rows * (hi - lo) + rows * columns)
    moved += REREAD * down * across * parts * steps * a / (2 if shared_a else 1)
    memory = moved / (machine.memory * STREAM * min(1.0, active / BUSY)) * 1e6
    return max(waves * tile, memory + 3e-5 * height * width * b.groups + (0.8 if shares_steps else 0.0)) + 0.2 * math.log2(waves + 1)
