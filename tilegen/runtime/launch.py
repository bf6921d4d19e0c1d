"""What a launch of a generated kernel is, in numbers: grid, tensor maps, parameters, counters. Needs neither
a driver nor a GPU.

The launches of each target, and the launch.json and launcher.cpp of an export, are made from these same
facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilegen.frontend.program import DTYPES, Tensor
from tilegen.graph.positions import Position
from tilegen.schedule.plan import Plan

LINE = 32  # words between counters
AFTER_SEMAPHORES = ("next_rank", "exits", "abort")  # a counter each
MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
WORDS = ("counters", "hang", "patience_ns")  # of the last parameter, 8 bytes each
MISPLACED_WORD = "misplaced"  # one more where there are positions
SIZES_WORD = "sizes"  # one more where a size moves: its value
# int32; the rank is -1 before a hang
HANG = ("rank", "cta_rank", "operand", "step", "semaphore", "seen", "target")
MISPLACED = 32  # bytes from there to the record of a position without room: its number, -1 before, and value
RECORD_BYTES = 64  # of both


@dataclass(frozen=True)
class Im2col:
    """What cuTensorMapEncodeIm2col is given besides: how many pixels one copy moves, and the corners of the
    box in which they begin, innermost dimension first."""

    pixels: int
    lower: tuple[int, ...]
    upper: tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """What cuTensorMapEncodeTiled is given, or cuTensorMapEncodeIm2col where im2col says more, innermost
    dimension first. The driver's enumerators stand under their own names."""

    name: str  # of it in the kernel's text, without the index of those that share code
    tensor: str  # that it is a window of
    packed: bool  # whether it is one of the packed copy of this weight
    offset: int  # bytes before its first element
    data_type: str
    shape: tuple[int, ...]  # elements
    pitches: tuple[int, ...]  # bytes from one to the next, but for the innermost
    box: tuple[int, ...]  # elements that one copy spans
    element_strides: tuple[int, ...]
    swizzle: str
    interleave: str = "CU_TENSOR_MAP_INTERLEAVE_NONE"
    l2_promotion: str = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"
    oob_fill: str = (
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"  # elements beyond the edge read as zero and are not written
    )
    im2col: Im2col | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def buffer(self) -> str:
        """The memory that it looks at."""
        return packed_name(self.name) if self.packed else self.tensor


@dataclass(frozen=True)
class MapFormula:
    """Shape and box of a tensor map over a size that moves, innermost dimension first."""

    name: str
    shape: tuple[str, ...]
    box: tuple[str, ...]


@dataclass(frozen=True)
class Buffer:
    """Memory that a launch reads or writes, row-major without gaps."""

    name: str
    role: str  # a tensor's, or "packed"
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]

    @staticmethod
    def of(t: Tensor) -> Buffer:
        return Buffer(t.name, t.role, t.dtype, tuple(int(n) for n in t.shape))


@dataclass(frozen=True)
class Field:
    """Some bytes of a parameter."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Parameter:
    """One of the kernel's parameters, which are structs passed by value."""

    name: str
    bytes: int
    alignment: int
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Packed:
    """A weight packed tile by tile.

    Element [tile, step, block, row, c], c < C, is that of the weight's row `rows[tile][row]` and column
    first_column + C·(step·blocks + block) + c; zero where the row is -1, and from first_column + columns on.
    Where it is made of two tensors, the second holds a factor for each column.
    """

    buffer: Buffer
    of: tuple[str, ...]
    first_column: int
    columns: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Launch:
    """A launch of tg_kernel. pointers: the tensors whose addresses it is given; one that is seen under
    several names stands there several times."""

    grid: int
    block: int
    cluster: int
    shared_bytes: int
    cooperative: bool
    programmatic: bool
    semaphores: int
    pointers: tuple[str, ...]
    maps: tuple[TensorMap, ...] | None  # None: the kernel takes none
    packing: tuple[Callable[[], Packed], ...] = ()  # of each packed weight
    positions: tuple[Position, ...] = ()  # that the kernel reports where they leave no room in a cache
    maps_at: Callable[[int], tuple[TensorMap, ...]] | None = None  # where a size moves: the maps at a size
    formulas: tuple[MapFormula, ...] = ()  # and what of them moves
    lists: int = 0  # of tiles, that CTAs take by their SM; 0: each has that of its own number

    @cached_property
    def packed(self) -> tuple[Packed, ...]:
        """The weights that are packed. To list their rows takes milliseconds; only an export needs them."""
        return tuple(listed() for listed in self.packing)

    @property
    def words(self) -> tuple[str, ...]:
        """Of the last parameter."""
        placed = (MISPLACED_WORD,) if self.positions else ()
        return (*WORDS, *placed, *((SIZES_WORD,) if self.maps_at else ()))

    @property
    def counter_words(self) -> int:
        return counter_words(self.semaphores, self.lists)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """In order. An empty struct has one byte."""
        structs = [_struct("T", self.pointers, 8, 8), _struct("launch", self.words, 8, 8)]
        if self.maps is not None:
            structs.insert(0, _struct("maps", [m.name for m in self.maps], MAP_BYTES, MAP_ALIGNMENT))
        return tuple(structs)


def _struct(name: str, fields: Sequence[str], size: int, alignment: int) -> Parameter:
    found = tuple(Field(field, n * size, size) for n, field in enumerate(fields))
    return Parameter(name, size * len(found) or 1, alignment if found else 1, found)


def packed_name(map_name: str) -> str:
    return f"packed_{map_name}"


def counter_words(semaphores: int, lists: int = 0) -> int:
    """lists: of tiles that CTAs take by their SM, for each of which and for each CTA a word follows the
    counters."""
    return (semaphores + len(AFTER_SEMAPHORES)) * LINE + 2 * lists


def static(plan: Plan) -> bool:
    """Whether each CTA has its list, so that all must be resident where they wait for each other."""
    return not isinstance(plan.scheduling, str)


def cooperative(plan: Plan, exclusive: bool) -> bool:
    """Whether a launch must fail rather than hang when not all CTAs fit. exclusive: nothing else that waits
    inside keeps them out."""
    return static(plan) and bool(plan.semaphores) and not exclusive
