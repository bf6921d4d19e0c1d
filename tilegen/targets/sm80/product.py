"""A product of a portable kernel by mma.sync from a ring of stages that cp.async fills
(templates/cuda/sm80/gemm.cuh.j2): a linear, or a convolution whose pixels are whole 16-byte units.

Y[row, n] = Σ_k A[row, k] · B[n, k]. A row of A is one of x, or what the filter sees from a pixel of the
result; k then counts the filter's positions and channels, k = (r·S + s)·C + c, as the filters lie in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tilegen.analysis.regions import to_c
from tilegen.arch import gpus
from tilegen.codegen.cuda_op import TYPES, mma_problem, refuse
from tilegen.codegen.epilogue import EpilogueText
from tilegen.codegen.op_text import OpText
from tilegen.frontend.program import DTYPES
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import groups, k_range, seen_by
from tilegen.ops.patches import Patches
from tilegen.targets.sm80.block import SLOT, Block, best_block
from tilegen.targets.sm80.thread_tile import Need, needs

STAGES = 16  # more than this hides nothing more
LARGEST_FILTER = 27  # lines or pixels: a thread has a bit for each (tg_pixels)


@dataclass(frozen=True)
class PortableProduct(OpText):
    """Such an op of a plan, as numbers and C text. PlanError where it has no form here."""

    architecture: str

    of_pixels: ClassVar[bool] = False  # whether rows of A are gathered from images

    def __post_init__(self) -> None:
        refuse(self.bound, self.architecture, self._problem())

    def _problem(self) -> str:
        b = self.bound
        if problem := mma_problem(b):
            return problem
        if b.result.dtype not in (b.dtype(0), "float32"):
            return f"the result is {b.result.dtype}, expected {b.dtype(0)} or float32"
        for n in (0, 1):
            for what, size in (("rows of", self.pitch(n)), ("first column", self.first_column(n))):
                if size % 8:
                    padded = math.ceil(size / 8) * 8
                    return (
                        f"{b.op.operands[n].tensor!r} has {what} {size}: rows must be whole 16-byte units;"
                        f" pad to {padded}"
                    )
        for what, size in (("result columns", self.columns), ("tile columns", self.tile[1])):
            if size % 8:
                return f"{what} are {size}, expected a multiple of 8"
        return ""

    # --- the product ----------------------------------------------------------------------------------------

    @property
    def groups(self) -> int:
        return groups(self.bound)

    @property
    def type(self) -> str:
        return TYPES[self.bound.dtype(0)]

    @property
    def columns(self) -> int:
        return int(self.bound.out[-1])

    @property
    def result_type(self) -> str:
        return TYPES[self.bound.result.dtype]

    @property
    def tile(self) -> tuple[int, int]:
        """The most rows and columns of a tile."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """Of K."""
        raise NotImplementedError

    def pitch(self, n: int) -> int:
        """Elements from row to row of operand n."""
        raise NotImplementedError

    def first_column(self, n: int) -> int:
        """That operand n gives to the sum."""
        return (self.bound.op.operands[n].columns or (0, 0))[0]

    def pointer(self, n: int) -> str:
        """First element that operand n gives to the sum."""
        first = self.first_column(n)
        return f"T.{self.bound.op.operands[n].tensor}" + (f" + {first}" if first else "")

    # --- how a tile is computed -----------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return gpus.architecture(self.architecture).shared_block - SLOT

    @cached_property
    def block(self) -> Block:
        return best_block(*self.tile, self.groups, self.depth, self._room, self.of_pixels)

    @cached_property
    def panel(self) -> int:
        """Columns of K of a panel."""
        return self.block.panel(self._room)

    @property
    def chunk(self) -> int:
        """Columns of K in a stage."""
        return self.panel * self.block.deep

    @property
    def chunks(self) -> int:
        return math.ceil(self.depth / self.chunk)

    @property
    def stage_bytes(self) -> int:
        return 2 * self.chunk * self.block.loaded

    @property
    def stages(self) -> int:
        return min(self._room // self.stage_bytes, STAGES)

    @property
    def shared_bytes(self) -> int:
        return max(self.stages * self.stage_bytes, self.block.summed_bytes)

    # --- waits ----------------------------------------------------------------------------------------------

    @property
    def step_operands(self) -> list[int]:
        """Operands whose loads wait."""
        return self.waiting("step")

    @property
    def late_operands(self) -> list[int]:
        """Operands of the epilogue that are waited for."""
        return self.waiting("epilogue")

    @property
    def step(self) -> int:
        """Columns of K in a step of the plan, where steps go by K."""
        return self.bound.tile[-1]

    @property
    def box_text(self) -> str:
        """Where the tile's rows lie in the result, if not one behind the other, as C."""
        return ""

    @property
    def any_stepped(self) -> bool:
        """Whether later chunks wait for more than the first did."""
        raise NotImplementedError

    @property
    def step_needs(self) -> Iterator[Need]:
        """What the first chunk waits for, or where later ones wait for more, that of `step`."""
        raise NotImplementedError

    @property
    def late_needs(self) -> Iterator[Need]:
        """What the epilogue waits for."""
        return (Need(operand, 0, str(self.bound.steps)) for operand in self.late_operands)

    # --- text -----------------------------------------------------------------------------------------------

    @cached_property
    def epilogue(self) -> EpilogueText:
        return EpilogueText(self.bound)

    @property
    def cut(self) -> str:
        """tile 256 x 384 x 64, grid 4 x 16, in blocks of 128 x 128: …"""
        b, block = self.bound, self.block
        tile, grid = (" x ".join(str(int(n)) for n in x) for x in (b.tile, b.grid))
        cluster = (
            f", for {self.cluster} parts that share its {b.op.cluster_split}" if self.cluster > 1 else ""
        )
        deep = f"{block.deep} x " if block.deep > 1 else ""
        warps = f"{deep}{block.down} x {block.across} warps of {16 * block.m} x {8 * block.n}"
        return f"tile {tile}, grid {grid}{cluster}; blocks of {block.rows} x {block.columns}, {warps}"


@dataclass(frozen=True)
class PortableLinear(PortableProduct):
    def _problem(self) -> str:
        if self.normed:
            return "it has no form for a norm that is fused into a linear; plan with norms='separate'"
        return super()._problem()

    @property
    def tile(self) -> tuple[int, int]:
        rows, columns = self.bound.tile[:2]
        return min(rows, int(self.bound.out[0])), columns

    @cached_property
    def k_range(self) -> tuple[int, int]:
        lo, hi = k_range(self.bound)
        return int(lo), int(hi)

    @property
    def depth(self) -> int:
        return self.k_range[1] - self.k_range[0]

    def pitch(self, n: int) -> int:
        return math.prod(int(s) for s in self.bound.tensors[self.bound.op.operands[n].tensor].plan_shape[1:])

    def first_column(self, n: int) -> int:
        return super().first_column(n) + self.k_range[0]

    @property
    def begin(self) -> str:
        return ", ".join(to_c(i.lo) for i in self.bound.write)

    @property
    def end(self) -> str:
        return ", ".join(to_c(i.hi) for i in self.bound.write)

    # --- waits ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return int(self.bound.steps)

    @property
    def splits_k(self) -> bool:
        return self.bound.op.cluster_shape.k > 1

    @property
    def any_stepped(self) -> bool:
        return any(w.stepped for w in self.plan.waits_of(self.name))

    @property
    def step_needs(self) -> Iterator[Need]:
        for operand in self.step_operands:
            if self.any_stepped:
                yield Need(operand, self.cta_of_step, "step")
            else:
                yield from (Need(operand, part, str(step)) for part, step in self.first_steps)

    @property
    def cta_of_step(self) -> str:
        """The part whose share of the steps holds `step`. Parts that share rows or columns wait for the same,
        which one does for all."""
        return f"((step + 1) * {self.cluster} - 1) / {self.steps}" if self.splits_k else "0"

    @property
    def first_steps(self) -> list[tuple[int, int]]:
        """(CTA rank, its first step) of every CTA that has steps."""
        if not self.splits_k:
            return [(0, 0)]
        starts = [self.steps * p // self.cluster for p in range(self.cluster + 1)]
        return [(p, starts[p]) for p in range(self.cluster) if starts[p] < starts[p + 1]]


@dataclass(frozen=True)
class GatheredProduct(PortableProduct):
    """A row of A is what a filter sees from a pixel of the result. A tile waits for all that its steps read
    before its first chunk, since K goes by positions of the filter, steps by channels."""

    of_pixels: ClassVar[bool] = True

    @cached_property
    def seen(self) -> Patches:
        return seen_by(self.bound)

    @property
    def any_stepped(self) -> bool:
        return False

    @property
    def step_needs(self) -> Iterator[Need]:
        return needs(self, ("step",))

    @property
    def late_needs(self) -> Iterator[Need]:
        return needs(self, ("epilogue",))


@dataclass(frozen=True)
class PortableConv(GatheredProduct):
    """A row of a tile is a pixel of its box, image by image, line by line."""

    @property
    def box(self) -> tuple[int, ...]:
        """The most images, lines and pixels of a tile."""
        return tuple(min(t, int(n)) for t, n in zip(self.bound.tile[:3], self.bound.out[:3], strict=True))

    @property
    def tile(self) -> tuple[int, int]:
        return math.prod(self.box), min(self.bound.tile[3], self.columns)

    @property
    def depth(self) -> int:
        return math.prod(int(n) for n in self.bound.shape(1)[1:])

    def pitch(self, n: int) -> int:
        return self.depth if n == 1 else int(self.bound.pitch(0))

    @property
    def box_text(self) -> str:
        return ", ".join(to_c(end) for i in self.bound.write[:3] for end in (i.lo, i.hi))

    @property
    def begin(self) -> str:
        return f"0, {to_c(self.bound.write[3].lo)}"

    @property
    def end(self) -> str:
        return f"{math.prod(self.box)}, {to_c(self.bound.write[3].hi)}"


@dataclass(frozen=True)
class PortablePatches(GatheredProduct, PortableLinear):
    """A convolution that is a linear over all pixels (tilegen.graph.pixels): a row of a tile is one of the
    result's."""


def multiplies_pixels(b: OpInstance) -> bool:
    """Whether a convolution is such a product: numbers of two bytes, its channels whole 16-byte units, its
    filter not too large."""
    if not isinstance(b.attributes, ConvAttributes) or DTYPES[b.dtype(0)] != 2:
        return False
    lines, pixels, channels = map(int, b.shape(1)[1:])
    down, right = ConvAttributes.of(b).dilation
    reach = ((lines - 1) * down * int(b.shape(0)[2]) + (pixels - 1) * right) * int(b.pitch(0)) + channels
    if max(lines, pixels) > LARGEST_FILTER or reach >= 1 << 31:  # an int says how far a place of it is
        return False
    first = (b.op.operands[0].columns or (0, 0))[0]
    sizes = (channels, b.pitch(0), first, b.out[3], b.tile[3] if b.tile else 8)
    return all(int(n) % 8 == 0 for n in sizes)
