"""What the templates that all CUDA kernels share ask of a kernel (templates/cuda/threads, common): which of
their functions its ops use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegen.codegen.thread_op import MOST_COLUMNS, ThreadOp
from tilegen.ops.pad import PadAttributes
from tilegen.ops.rows import THREADS, VECTOR
from tilegen.ops.topk import TopkAttributes


class ThreadKernel:
    """A kernel some of whose ops threads compute."""

    thread_count: ClassVar[int] = THREADS
    most_columns: ClassVar[int] = MOST_COLUMNS

    @property
    def thread_tiles(self) -> Sequence[ThreadOp]:
        """Its ops that threads compute."""
        raise NotImplementedError

    @property
    def unit(self) -> int:
        """How many neighbours in a row of any product one store is aligned for."""
        return VECTOR

    @property
    def unaligned(self) -> bool:
        """Whether any op has rows that are no whole eights, in its result or in what it pads."""
        return any(op.unaligned or isinstance(op.attributes, PadAttributes) for op in self.thread_tiles)

    @property
    def stores_ones(self) -> bool:
        """Whether any op stores a number alone."""
        alone = any(op.stores_alone for op in self.thread_tiles)
        return alone or self.unaligned or self.unit < VECTOR or any(op.of_row for op in self.thread_tiles)

    @property
    def ranks(self) -> bool:
        """Whether any op numbers columns."""
        return any(isinstance(op.attributes, TopkAttributes) for op in self.thread_tiles)

    @property
    def rereads(self) -> bool:
        return any(op.held.rereads for op in self.thread_tiles)

    @property
    def depthwise(self) -> bool:
        return any(op.depthwise for op in self.thread_tiles)

    @property
    def shifts_units(self) -> bool:
        """Whether products read rows that are no whole 16-byte units."""
        return any(bool(op.product and op.product.skewed) for op in self.thread_tiles)

    @property
    def multiplies_int8(self) -> bool:
        """Whether weights of any product are int8."""
        return any(op.product and op.product.of_int8 for op in self.thread_tiles)

    @property
    def multiplies_lines(self) -> bool:
        """Whether products read lines of a matrix, not pieces of pixels alone."""
        return any(bool(op.product and op.product.of_lines) for op in self.thread_tiles)

    @property
    def attends_windows(self) -> bool:
        """Whether queries of any attention by threads see a window of keys."""
        return any(op.heads.window for op in self.thread_tiles if op.heads)

    @property
    def caps_scores(self) -> bool:
        return any(op.heads.caps for op in self.thread_tiles if op.heads)

    @property
    def scales_scores(self) -> bool:
        """Whether any attention scales scores before their powers are taken."""
        return any(not op.heads.folded for op in self.thread_tiles if op.heads)

    @property
    def ends_early(self) -> bool:
        """Whether keys of any attention end before the last: its sequences say how many they have, or it
        takes blocks of them by a block mask."""
        return any(op.heads.attributes.lengths or op.taken for op in self.thread_tiles if op.heads)

    @property
    def leaves_rows(self) -> bool:
        """Whether queries of any attention may see no key."""
        return any(op.heads.attributes.leaves_rows for op in self.thread_tiles if op.heads)

    @property
    def hides_keys(self) -> bool:
        """Whether a block mask hides keys inside of the blocks that any attention takes."""
        return any(op.heads.hides for op in self.thread_tiles if op.heads)

    @property
    def biases_scores(self) -> bool:
        """Whether scores of any attention rise from key to key."""
        return any(op.heads.attributes.alibi for op in self.thread_tiles if op.heads)

    @property
    def adds_bias(self) -> bool:
        """Whether a tensor is added to scores of any attention."""
        return any(op.heads.bias for op in self.thread_tiles if op.heads)

    @property
    def norms_groups(self) -> bool:
        return any(op.group for op in self.thread_tiles)

    @property
    def holds_units(self) -> bool:
        """Whether threads hold units of any size."""
        return self.norms_groups or self.multiplies_by_threads

    @property
    def multiplies_by_threads(self) -> bool:
        """Whether any op multiplies by mma.sync."""
        return any(op.gather or op.product or op.heads for op in self.thread_tiles)
