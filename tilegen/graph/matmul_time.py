"""What a matmul takes whose rows threads bring, in µs.

    chunk = meet + shared · bytes + products · multiplications
    tile  = fixed + chunks · chunk + odd · results, if their rows are no whole 16-byte units

A chunk is 128 bytes of k. Its bytes are those of shared memory: copies write its lines, threads move those
that begin within a 16-byte unit, and each warp reads what its blocks need. The constants were fitted to 33
matmuls of two-byte numbers and six of float32 on an H200; all but one are within a third of what was measured
(docs/perf-log.md, 2026-11-30).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.arch.machine import Machine
from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES, INT8, UNIT
from tilegen.graph.thread_blocks import COLUMNS, LINE, ROWS, warps_of
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import MatmulAttributes


@dataclass(frozen=True)
class MatmulRates:
    """Of an H200. Times in µs."""

    meet: float  # of a chunk, besides
    shifted: float  # the same where a side's lines are moved
    shared: float  # of a byte of shared memory
    products: float  # of a multiplication and addition
    odd: float  # of a result, where their rows are no whole units
    fixed: float = 0.5  # of a tile


TWO_BYTES = MatmulRates(0.155, 0.304, 3.0e-6, 0.97e-6, 1.8e-4)
FLOAT32 = MatmulRates(0.793, 0.0, 1.4e-6, 5.5e-6, 1.7e-4)


def by_threads(b: OpInstance, machine: Machine) -> bool:
    """Whether it is a matmul that this model knows."""
    known = isinstance(b.attributes, MatmulAttributes) and b.dtype(1) != INT8
    return known and machine.architecture.mma_sync


def rates_of(b: OpInstance) -> MatmulRates:
    return TWO_BYTES if DTYPES[b.dtype(0)] == 2 else FLOAT32


def tile_us(b: OpInstance) -> float:
    """Of a full tile."""
    a, rates, element = MatmulAttributes.of(b), rates_of(b), DTYPES[b.dtype(0)]
    rows = ceil_div(min(b.tile[0], most(a.m)), ROWS) * ROWS
    columns = ceil_div(min(b.tile[1], most(a.n)), COLUMNS) * COLUMNS
    moved = sum(lines for n, lines in ((0, rows), (1, columns)) if most(b.pitch(n)) * element % UNIT)
    warps = warps_of(rows, columns)
    down, across = ceil_div(rows // ROWS, warps[0]), ceil_div(columns // COLUMNS, warps[1])
    busy = ceil_div(rows // ROWS, down) * ceil_div(columns // COLUMNS, across)
    shared = LINE * (busy * (ROWS * down + COLUMNS * across) + rows + columns + 3 * moved)
    chunk = (
        rates.meet
        + (rates.shifted if moved else 0.0)
        + rates.shared * shared
        + rates.products * rows * columns * LINE / element
    )
    odd = rates.odd * rows * columns if most(b.out[-1]) * DTYPES[b.result.dtype] % UNIT else 0.0
    return rates.fixed + ceil_div(most(a.k) * element, LINE) * chunk + odd
