"""Numbers over an image by all threads of a CTA: group_norm, and the mean of each channel
(templates/cuda/threads/pool.cu.j2)."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.codegen.thread_conv import REDUCTIONS
from tilegen.frontend.program import DTYPES
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.group_norm import channels_of
from tilegen.ops.rows import THREADS

MOST_HELD = 128  # bytes of a group that a thread holds, or has on their way


@dataclass(frozen=True)
class Group:
    """A group of group_norm, as threads take it."""

    bound: OpInstance

    @property
    def channels(self) -> int:
        return channels_of(self.bound)

    @property
    def pixels(self) -> int:
        return int(self.bound.out[1]) * int(self.bound.out[2])

    @property
    def count(self) -> int:
        """Of numbers."""
        return self.pixels * self.channels

    @property
    def unit(self) -> int:
        """Elements that a load brings: all loads of so many are aligned."""
        first = (self.bound.op.operands[0].columns or (0, 0))[0]
        ends = (self.channels, int(self.bound.pitch(0)), first)
        widest = 16 // DTYPES[self.bound.dtype(0)]
        return next(n for n in (8, 4, 2, 1) if n <= widest and all(end % n == 0 for end in ends))

    @property
    def held(self) -> int:
        """Loads of a thread."""
        return ceil_div(self.count // self.unit, THREADS)

    @property
    def holds(self) -> bool:
        return self.held * self.unit * DTYPES[self.bound.dtype(0)] <= MOST_HELD

    @property
    def together(self) -> int:
        """Loads that a thread has on their way."""
        return min(16, MOST_HELD // (self.unit * DTYPES[self.bound.dtype(0)]))

    @property
    def weights_at(self) -> int:
        return REDUCTIONS

    @property
    def bytes(self) -> int:
        return self.weights_at + 8 * self.channels


@dataclass(frozen=True)
class Mean:
    """Threads of global_avg_pool: `parts` of them sum up lines of the same eight channels."""

    bound: OpInstance
    unaligned: bool

    @property
    def eights(self) -> int:
        """The most of a tile."""
        columns = min(self.bound.tile[1], int(self.bound.out[1]))
        return (columns + 14) // 8 if self.unaligned else ceil_div(columns, 8)

    @property
    def parts(self) -> int:
        return max(1, min(THREADS // self.eights, int(self.bound.shape(0)[1])))

    @property
    def sums_at(self) -> int:
        return REDUCTIONS

    @property
    def bytes(self) -> int:
        return self.sums_at + 32 * THREADS
