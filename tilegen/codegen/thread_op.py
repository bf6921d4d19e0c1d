"""An op that 256 threads of a CTA compute from global memory, on any GPU: softmax, norms, rope, pools,
pointwise maths, and ops of users' own. Threads take eight neighbouring columns at a time; of rows that are no
whole eights, those that one vector of the result holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar

from tilegen.analysis.regions import to_c
from tilegen.codegen.cuda_op import TYPES, refuse
from tilegen.codegen.environment import macro_text
from tilegen.codegen.epilogue import EpilogueText
from tilegen.codegen.op_text import MacroOp
from tilegen.codegen.padding import Padding
from tilegen.codegen.strided import Copy
from tilegen.codegen.thread_attention import ThreadAttention
from tilegen.codegen.thread_conv import REDUCTIONS, SCRATCH, Gather
from tilegen.codegen.thread_depthwise import Depthwise
from tilegen.codegen.thread_groups import Group, Mean
from tilegen.codegen.thread_product import (
    ConvProduct,
    GroupConvProduct,
    Int8Product,
    MatmulProduct,
    ThreadProduct,
    TransposedProduct,
)
from tilegen.codegen.thread_rows import HeldRows, Operand
from tilegen.frontend.program import INT8
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.cat import CatAttributes
from tilegen.ops.combine import CombineAttributes
from tilegen.ops.conv2d import ConvAttributes, GroupedConvAttributes
from tilegen.ops.conv_transpose2d import ConvTransposeAttributes
from tilegen.ops.embedding import EmbeddingAttributes
from tilegen.ops.gemm import MatmulAttributes
from tilegen.ops.group_norm import GroupNormAttributes, channels_of
from tilegen.ops.grouped_conv2d import by_eights, filters_of
from tilegen.ops.norm import NormAttributes
from tilegen.ops.pad import PadAttributes
from tilegen.ops.pointwise import PointwiseAttributes
from tilegen.ops.pool import GlobalAvgPoolAttributes, PoolAttributes
from tilegen.ops.reduce import ReduceAttributes
from tilegen.ops.rope import RopeAttributes, RotaryAttributes, constant_tables, turned_columns
from tilegen.ops.rows import THREADS, VECTOR, rows_of_tile
from tilegen.ops.softmax import SoftmaxAttributes
from tilegen.ops.strided_copy import StridedCopyAttributes
from tilegen.ops.take_along import TakeAlongAttributes
from tilegen.ops.topk import TopkAttributes
from tilegen.ops.upsample import UpsampleAttributes

MOST_COLUMNS = 1 << 24  # whose numbers are exact as floats
MOST_SPLITS = 16  # of the keys: eights of each that a thread holds
# whose threads hold a row
WHOLE_ROWS = (SoftmaxAttributes, NormAttributes, ReduceAttributes, TopkAttributes)
# of which these give some numbers alone
OF_ROWS = (ReduceAttributes, TopkAttributes)
# whose rows may have any number of columns
ANY_COLUMNS = (
    SoftmaxAttributes,
    NormAttributes,
    ReduceAttributes,
    TopkAttributes,
    TakeAlongAttributes,
    PointwiseAttributes,
    PoolAttributes,
    GlobalAvgPoolAttributes,
    UpsampleAttributes,
    GroupNormAttributes,
    CatAttributes,
    PadAttributes,
    EmbeddingAttributes,
    StridedCopyAttributes,
    ConvAttributes,
    GroupedConvAttributes,
    ConvTransposeAttributes,
    MatmulAttributes,
)


@dataclass(frozen=True)
class ThreadOp(MacroOp):
    """What a macro of templates/cuda/threads/STEM.cu.j2 may ask. PlanError where threads cannot take vectors
    of eight."""

    THREADS: ClassVar[int] = THREADS
    TOGETHER: ClassVar[int] = 8  # loads that a thread has on their way: pixels of a pool's windows

    def __post_init__(self) -> None:
        refuse(self.bound, "a GPU", self._problem())

    @property
    def room(self) -> int:
        """Bytes of shared memory that it may fill where more of them make it faster."""
        return SCRATCH

    def operand(self, name: str) -> Operand:
        return self.operands[self.bound.index(name)]

    @cached_property
    def gather(self) -> Gather | None:
        """conv2d of a few channels: its operands of mma.sync."""
        if not isinstance(self.attributes, ConvAttributes) or self.bound.shape(1)[3] % VECTOR == 0:
            return None
        made = Gather(self.bound)
        return None if made.problem or made.bytes > SCRATCH else made

    @cached_property
    def product(self) -> ThreadProduct | None:
        """matmul, and convolutions but those that gather or are depthwise: its operands of mma.sync."""
        match self.attributes:
            case MatmulAttributes():
                return Int8Product(self.bound) if self.bound.dtype(1) == INT8 else MatmulProduct(self.bound)
            case ConvAttributes() if not self.gather:
                return ConvProduct(self.bound)
            case GroupedConvAttributes() if not self.by_eights:
                return GroupConvProduct(self.bound)
            case ConvTransposeAttributes():
                return TransposedProduct(self.bound)
        return None

    @cached_property
    def heads(self) -> ThreadAttention | None:
        """attention: its operands of mma.sync."""
        a = self.attributes
        return ThreadAttention(self.bound, self.room) if isinstance(a, AttentionAttributes) else None

    @cached_property
    def by_eights(self) -> bool:
        """Whether it is a convolution in groups, eight channels of which see the same eight."""
        return isinstance(self.attributes, GroupedConvAttributes) and by_eights(self.bound)

    @property
    def depthwise(self) -> Depthwise | None:
        """Such a convolution: how threads share it."""
        return Depthwise(self.bound, self.unaligned) if self.by_eights else None

    @property
    def group(self) -> Group | None:
        return Group(self.bound) if isinstance(self.attributes, GroupNormAttributes) else None

    @property
    def mean(self) -> Mean | None:
        if not isinstance(self.attributes, GlobalAvgPoolAttributes):
            return None
        return Mean(self.bound, self.unaligned)

    @property
    def copy(self) -> Copy | None:
        return (
            Copy(self.bound, self.unaligned) if isinstance(self.attributes, StridedCopyAttributes) else None
        )

    @property
    def padding(self) -> Padding | None:
        return Padding(self.bound) if isinstance(self.attributes, PadAttributes) else None

    @property
    def scratch_bytes(self) -> int:
        """Of shared memory: a number of each warp; what products and sums are made from."""
        made = self.gather or self.product or self.heads or self.depthwise or self.group or self.mean
        return made.bytes if made else REDUCTIONS

    def _problem(self) -> str:
        b = self.bound
        made = self.product or self.heads or self.depthwise
        if made and made.problem:
            return made.problem
        if self.scratch_bytes > max(self.room, SCRATCH):
            return (
                f"the tile's rows take {self.scratch_bytes:,} bytes of shared memory, expected at most"
                f" {max(self.room, SCRATCH):,}; choose smaller tiles"
            )
        if self._no_eights and not self.unaligned:
            return self._no_eights
        match b.attributes:
            case TopkAttributes() if self._held_columns > MOST_COLUMNS:
                return f"rows of {self._held_columns:,} columns, expected at most {MOST_COLUMNS:,}"
            case CombineAttributes(head_dim=d) if d % VECTOR:
                return f"heads have {d} columns, expected a multiple of {VECTOR}"
            case (
                RopeAttributes(head_dim=d) | RotaryAttributes(head_dim=d) | AppendAttributes(head_dim=int(d))
            ) if d % VECTOR:
                return f"heads have {d} columns, expected a multiple of {VECTOR}"
            case RotaryAttributes(turned=r, interleaved=True) if r % VECTOR:
                return f"heads turn by {r} columns that are interleaved, expected a multiple of {VECTOR}"
        width = 0 if isinstance(b.attributes, AppendAttributes) else b.kind.width
        if width is None or self.unaligned:
            return ""
        if b.tile[width] % VECTOR and b.tile[width] < self.columns:
            return f"a tile is {b.tile[width]} columns wide, expected a multiple of {VECTOR}"
        return ""

    @property
    def unaligned(self) -> bool:
        """Whether rows are no whole eights, so that they have no aligned vectors."""
        return self.odd_halves or (isinstance(self.attributes, ANY_COLUMNS) and bool(self._no_eights))

    @property
    def odd_halves(self) -> bool:
        """Turning heads by pairs of their halves: whether these are no whole eights."""
        match self.attributes:
            case RotaryAttributes(interleaved=interleaved) as a:
                return not interleaved and bool(turned_columns(a) % (2 * VECTOR))
            case RopeAttributes(head_dim=d) | AppendAttributes(head_dim=int(d)):
                return bool(d % (2 * VECTOR))
        return False

    @cached_property
    def _no_eights(self) -> str:
        """What is no whole eights, if anything."""
        b = self.bound
        for n, operand in enumerate(b.op.operands):
            tensor = b.tensors[operand.tensor]
            otherwise = tensor.dtype == "int32" or n in self._otherwise or n in self._by_rows
            if otherwise or (self.of_row and n > 0):
                continue
            first, pitch = (operand.columns or (0, 0))[0], self.operands[n].pitch
            if len(tensor.plan_shape) == 1:
                pitch = VECTOR  # of which there is one
            if first % VECTOR or pitch % VECTOR:
                return (
                    f"{operand.tensor!r} has rows of {pitch} elements and is read from column {first}: both"
                    f" must be multiples of {VECTOR}; pad it"
                )
        for first, end in self.parts:
            if first % VECTOR or end % VECTOR:
                return (
                    f"columns {first} to {end} of {b.op.result!r} go together: both must be multiples of"
                    f" {VECTOR}"
                )
        if self._held_columns % VECTOR:
            held = b.op.operands[0].tensor if self.of_row else b.op.result
            columns, padded = self._held_columns, math.ceil(self._held_columns / VECTOR) * VECTOR
            return f"rows of {held!r} have {columns} columns, no multiple of {VECTOR}; pad to {padded}"
        return ""

    @property
    def _otherwise(self) -> range:
        """Operands that are not read by eights of a row."""
        match self.attributes:
            case StridedCopyAttributes() | PadAttributes():
                return range(1)
            case ConvAttributes() | ConvTransposeAttributes() | TakeAlongAttributes():
                return range(2)
            case GroupedConvAttributes():
                return range(1 if self.by_eights else 0, 2)
            case AttentionAttributes() if self.adds_bias:
                return range(self.bound.index("bias"), self.bound.index("bias") + 1)
        return range(0)

    @cached_property
    def _by_rows(self) -> frozenset[int]:
        """Operands of the epilogue that have a number for each row."""
        epilogue = self.bound.op.epilogue
        return frozenset(n for n, how in epilogue.operands if how == "rows") if epilogue else frozenset()

    @property
    def skew(self) -> str:
        """By how many columns the first of a tile's row of the result is behind the begin of a vector, as
        C."""
        rest = self.columns % VECTOR
        before = [f"row * {rest}" if rest > 1 else "row"] if rest else []
        return f"({' + '.join([*before, f'lo{self.last}'])}) % {VECTOR}"

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Columns of the result, first and end, that no vector may lie across: what cat takes from each
        operand, groups of channels, tiles of whole groups."""
        match self.attributes:
            case CatAttributes():
                ends = list(accumulate((int(o.shape[-1]) for o in self.operands), initial=0))
                return tuple(pairwise(ends))
            case GroupNormAttributes(groups=groups):
                each = channels_of(self.bound)
                return tuple((n * each, (n + 1) * each) for n in range(groups))
            case GroupedConvAttributes():
                width = self.bound.tile[3] * filters_of(self.bound)
                return tuple((n, min(n + width, self.columns)) for n in range(0, self.columns, width))
        return ()

    @property
    def range_of_columns(self) -> str:
        """The first and the column after the last of a tile, as C."""
        return f"lo{self.last}, hi{self.last}"

    @cached_property
    def splits_ends(self) -> bool:
        """Pointwise maths on rows that are no whole eights: whether whole vectors of the result are made of
        whole vectors, and what is left one by one."""
        if not (self.unaligned and isinstance(self.attributes, PointwiseAttributes)):
            return False
        alike = self.held.lies_alike
        return all(
            e.of_row or (e.first % VECTOR == 0 if e.vector else e.how == "elements" and alike(e))
            for e in self.epilogue.operands
        )

    @property
    def of_vectors(self) -> bool:
        """Whether `finish` takes whole vectors of rows that are no whole eights."""
        return self.held.has_ends or self.splits_ends

    @property
    def stores_alone(self) -> bool:
        """Whether a number of a row is stored alone."""
        return self.of_vectors or bool(self.group and (self.unaligned or self.group.unit < VECTOR))

    @cached_property
    def held(self) -> HeldRows:
        """The rows that its threads hold, if its template asks for them."""
        rows = self.operands[0] if self.of_row else Operand(self.result, 0, self.columns, self.bound.out, "")
        has_ends = self.whole_rows and self.unaligned
        return HeldRows(self.bound, rows, self._held_columns, self.whole_rows, has_ends)

    @property
    def _held_columns(self) -> int:
        return int(self.bound.shape(0)[-1]) if self.of_row else self.columns

    @property
    def whole_rows(self) -> bool:
        return isinstance(self.attributes, WHOLE_ROWS)

    @property
    def of_row(self) -> bool:
        """Whether the result has a number or some for each row that the threads hold."""
        return isinstance(self.attributes, OF_ROWS)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(self._operand(n) for n in range(len(self.bound.op.operands)))

    def _operand(self, n: int) -> Operand:
        operand, shape = self.bound.op.operands[n], self.bound.shape(n)
        first = (operand.columns or (0, 0))[0]
        pointer = f"T.{operand.tensor} + {first}" if first else f"T.{operand.tensor}"
        pitch, dtype = int(self.bound.pitch(n)), TYPES[self.bound.dtype(n)]
        return Operand(f"({pointer})" if first else pointer, first, pitch, shape, dtype)

    @property
    def columns(self) -> int:
        """Of the result."""
        return int(self.bound.out[-1])

    @property
    def result(self) -> str:
        return f"T.{self.bound.op.result}"

    # --- the tile -------------------------------------------------------------------------------------------

    @cached_property
    def box(self) -> list[tuple[str, str]]:
        """(first, end) of each dimension of what the tile writes, as C."""
        return [(to_c(i.lo), to_c(i.hi)) for i in self.bound.write]

    @property
    def last(self) -> int:
        return len(self.bound.out) - 1

    @property
    def rows(self) -> str:
        """How many rows of the result the tile has; those of an image are its pixels."""
        return " * ".join(f"n{d}" for d in range(self.last))

    @property
    def row(self) -> str:
        """Row r of the tile as a row of the result."""
        if self.last == 1:
            return "lo0 + r"
        _, p, q, _ = self.bound.out
        return f"((lo0 + r / (n1 * n2)) * {p} + lo1 + r / n2 % n1) * {q} + lo2 + r % n2"

    @property
    def most_rows(self) -> int:
        return rows_of_tile(self.bound)

    @property
    def first_row(self) -> str:
        """Of a tile of whole rows, as C."""
        return self._line("lo1") if self.last == 3 else "lo0"

    @property
    def end_row(self) -> str:
        """Behind the last, as C."""
        return self._line("hi1") if self.last == 3 else "hi0"

    def _line(self, line: str) -> str:
        """The first pixel of a line of the tile's image, as a row of the result."""
        _, lines, pixels, _ = self.bound.out
        return f"(lo0 * {lines} + {line}) * {pixels}"

    @property
    def steps(self) -> str:
        return to_c(self.bound.steps)

    @property
    def together(self) -> int:
        """combine: splits of the keys that a thread looks at together: all, or as few times as registers
        allow."""
        return math.ceil(self.kv_splits / math.ceil(self.kv_splits / MOST_SPLITS))

    @property
    def windows(self) -> int:
        """max_pool2d: that a thread looks at together, with TOGETHER loads."""
        return max(1, self.TOGETHER // math.prod(PoolAttributes.of(self.bound).window))

    @property
    def constant_tables(self) -> bool:
        """A rotary: whether L1 may keep the angles of a row for its other heads."""
        return constant_tables(self.bound)

    # --- text -----------------------------------------------------------------------------------------------

    @cached_property
    def epilogue(self) -> EpilogueText:
        return EpilogueText(self.bound)

    @property
    def accumulators(self) -> tuple[str, ...]:
        return self.bound.kind.accumulators(self.bound.attributes)

    @property
    def cut(self) -> str:
        return (
            f"tile {' x '.join(map(str, self.bound.tile))}, grid {' x '.join(map(str, self.grid))}; by"
            f" threads, eight columns at a time{', as vectors of the result lie' if self.unaligned else ''}"
        )

    @cached_property
    def text(self) -> str:
        """Its tile function: macro KIND of templates/cuda/threads/STEM.cu.j2."""
        return macro_text("cuda/threads", "cu", self)
