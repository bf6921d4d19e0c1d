"""CUDA for sm_80 and later: one persistent kernel for all ops of a plan, linears with mma.sync and cp.async,
the others by threads (templates/cuda/sm80/kernel.cu.j2).

The schedule text is that of every other target; a cluster's CTAs run as one tile of one CTA, which waits and
posts for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

from tilegen.analysis.regions import to_c
from tilegen.arch import gpus
from tilegen.codegen.cuda_op import TYPES, mma_problem, refuse
from tilegen.codegen.environment import Source, refuse_missing_macro, render
from tilegen.codegen.epilogue import EpilogueText
from tilegen.codegen.op_text import OpText
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.summary import summary
from tilegen.codegen.thread_kernel import ThreadKernel
from tilegen.codegen.tidy import tidied
from tilegen.errors import PlanError
from tilegen.graph.positions import Position, positions
from tilegen.ops.base import OpInstance
from tilegen.ops.gemm import LinearAttributes, groups, k_range
from tilegen.schedule.plan import Plan
from tilegen.targets.sm80.thread_tile import ThreadTile

WARPS = 8
THREADS = 32 * WARPS
STAGES = 8  # more than this hides nothing more
REGISTERS = 200  # of a thread for sums and fragments; the rest holds addresses
ROWS = 512  # of activations and weights in a stage: three stages of 32 columns then fit everywhere


@dataclass(frozen=True)
class Block:
    """What a CTA multiplies at a time: 8 warps, `across` of them side by side, each with m x 16 rows and n x
    8 columns of each group."""

    across: int
    m: int
    n: int
    groups: int

    @property
    def rows(self) -> int:
        return WARPS // self.across * 16 * self.m

    @property
    def columns(self) -> int:
        return self.across * 8 * self.n

    @property
    def loaded(self) -> int:
        """Rows of activations and weights."""
        return self.rows + self.groups * self.columns

    @property
    def registers(self) -> int:
        """Sums, and two sets of fragments."""
        return 4 * self.m * self.n * self.groups + 2 * (4 * self.m + 2 * self.n * self.groups)

    def cost(self, tm: int, tn: int) -> float:
        """Clocks for 16 columns of K of a tile: the slowest of multiplying, reading fragments and loading;
        and a little of all three."""
        blocks = math.ceil(tm / self.rows) * math.ceil(tn / self.columns)
        multiply = WARPS * self.m * self.n * self.groups * 1.6  # 2,500 FLOP a clock
        fragments = WARPS * (self.m * 512 + self.n * self.groups * 256) / 128
        # 32 bytes a row; an SM gets 32 bytes a clock from L2
        load = min(tm, self.rows) + self.groups * min(tn, self.columns)
        return blocks * (max(multiply, fragments, load) + 0.1 * (multiply + fragments + load))


def best_block(tm: int, tn: int, groups: int) -> Block:
    """The cheapest block that fits registers and stages; larger than the tile, whose edge then bounds it, or
    smaller and repeated."""
    found = [
        Block(across, m, n, groups)
        for across in (1, 2, 4, 8)
        for m in range(1, math.ceil(tm * across / (16 * WARPS)) + 1)
        for n in range(1, math.ceil(tn / (8 * across)) + 1)
    ]
    return min(
        (b for b in found if b.registers <= REGISTERS and b.loaded <= ROWS),
        key=lambda b: (b.cost(tm, tn), b.registers, b.across),
    )


@dataclass(frozen=True)
class PortableOp(OpText):
    """A linear of a plan, as numbers and C text. PlanError where it has no form here."""

    architecture: str

    def __post_init__(self) -> None:
        refuse(self.bound, self.architecture, self._problem())

    def _problem(self) -> str:
        b = self.bound
        if self.normed:
            return "it has no form for a norm that is fused into a linear; plan with norms='separate'"
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
        for what, size in (("result columns", self.columns), ("tile columns", b.tile[1])):
            if size % 8:
                return f"{what} are {size}, expected a multiple of 8"
        return self.epilogue.problem

    # --- the product ----------------------------------------------------------------------------------------

    @property
    def groups(self) -> int:
        return groups(self.bound)

    @property
    def type(self) -> str:
        return TYPES[self.bound.dtype(0)]

    @property
    def columns(self) -> int:
        return int(self.bound.out[1])

    @property
    def result_type(self) -> str:
        return TYPES[self.bound.result.dtype]

    @property
    def result_name(self) -> str:
        return self.bound.op.result

    @cached_property
    def k_range(self) -> tuple[int, int]:
        lo, hi = k_range(self.bound)
        return int(lo), int(hi)

    @property
    def depth(self) -> int:
        return self.k_range[1] - self.k_range[0]

    def pitch(self, n: int) -> int:
        """Elements from row to row of operand n."""
        return math.prod(int(s) for s in self.bound.tensors[self.bound.op.operands[n].tensor].plan_shape[1:])

    def first_column(self, n: int) -> int:
        return (self.bound.op.operands[n].columns or (0, 0))[0] + self.k_range[0]

    def pointer(self, n: int) -> str:
        """First element that operand n gives to the sum."""
        first = self.first_column(n)
        return f"T.{self.bound.op.operands[n].tensor}" + (f" + {first}" if first else "")

    # --- how a tile is computed -----------------------------------------------------------------------------

    @cached_property
    def block(self) -> Block:
        return best_block(self.bound.tile[0], self.bound.tile[1], self.groups)

    @property
    def _shared(self) -> int:
        return gpus.architecture(self.architecture).shared_block - 128  # the next tile's rank

    @cached_property
    def chunk(self) -> int:
        """Columns of K in a stage: 64, or 32 where only that leaves three stages."""
        return 64 if self._shared // (128 * self.block.loaded) >= 3 else 32

    @property
    def chunks(self) -> int:
        return math.ceil(self.depth / self.chunk)

    @property
    def stage_bytes(self) -> int:
        return 2 * self.chunk * self.block.loaded

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def stages(self) -> int:
        return min(self._shared // self.stage_bytes, STAGES)

    @property
    def begin(self) -> str:
        return ", ".join(to_c(i.lo) for i in self.bound.write)

    @property
    def end(self) -> str:
        return ", ".join(to_c(i.hi) for i in self.bound.write)

    # --- waits and posts ------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return int(self.bound.steps)

    @property
    def splits_k(self) -> bool:
        return self.bound.op.cluster_shape.k > 1

    @property
    def step_operands(self) -> list[int]:
        """Operands whose loads wait."""
        return self.waiting("step")

    @property
    def late_operands(self) -> list[int]:
        """Operands of the epilogue that are waited for."""
        return self.waiting("epilogue")

    @property
    def any_stepped(self) -> bool:
        """Whether later steps wait for more than the first did."""
        return any(w.stepped for w in self.plan.waits_of(self.name))

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
        warps = f"{WARPS // block.across} x {block.across} warps of {16 * block.m} x {8 * block.n}"
        return f"tile {tile}, grid {grid}{cluster}; blocks of {block.rows} x {block.columns}, {warps}"


@dataclass(frozen=True)
class PortableSource(Source):
    """The text, and what the host must know to launch it."""

    shared_bytes: int
    positions: tuple[Position, ...]  # whose number and value the kernel reports where they leave no room
    threads: int = THREADS


def generate(plan: Plan, architecture: str) -> PortableSource:
    """The kernel of a plan for `sm_80` or later. PlanError where an op has no form there."""
    plan.refuse_other("sm_80")
    if plan.dim:
        raise PlanError(
            f"sm_80 has no form for a size that moves ({plan.dim.name}), sm_90a and cpu have; give it a"
            " number"
        )
    ops = tuple(portable_op(plan, b, architecture) for b in plan.bounds)
    ring = max(op.shared_bytes for op in ops)
    text = partial(_text, plan, architecture, ops, ring)
    return PortableSource(text, ring + 128, positions(plan.graph))


def portable_op(plan: Plan, b: OpInstance, architecture: str) -> PortableOp | ThreadTile:
    """An op as the kernel computes it. PlanError where it has no form here."""
    if isinstance(b.attributes, LinearAttributes):
        return PortableOp(plan, b, architecture)
    refuse_missing_macro("cuda/threads", "cu", b)
    return ThreadTile(plan, b, architecture)


@dataclass(frozen=True)
class PortableKernel(ThreadKernel):
    """What the templates ask of the kernel besides its linears."""

    tiles: tuple[ThreadTile, ...]
    positions: tuple[Position, ...]  # that the kernel reports where they leave no room in a cache

    by_ones: ClassVar[bool] = False  # whether epilogues of linears read odd rows
    joins_lanes: ClassVar[bool] = False

    @property
    def thread_tiles(self) -> tuple[ThreadTile, ...]:
        return self.tiles

    @property
    def turns(self) -> bool:
        """Whether any op turns rows by their position."""
        return any(op.turning for op in self.thread_tiles)


def _text(plan: Plan, architecture: str, ops: tuple[PortableOp | ThreadTile, ...], ring: int) -> str:
    tiles = tuple(op for op in ops if isinstance(op, ThreadTile))
    text = render(
        "cuda/sm80/kernel.cu.j2",
        plan=plan,
        architecture=architecture,
        sizes=", ".join(f"{k}={v}" for k, v in plan.sizes),
        summary=summary(plan),
        schedule=schedule_text(plan),
        ops=ops,
        linears=[op for op in ops if isinstance(op, PortableOp)],
        kernel=PortableKernel(tiles, positions(plan.graph)),
        threads=THREADS,
        jitter=False,
        slot_at=ring,
        tensors=[_tensor(plan, name) for name in plan.graph.tensors],
    )
    return tidied(text, "tg_kernel")


def _tensor(plan: Plan, name: str) -> dict[str, Any]:
    t = plan.graph.tensors[name]
    return {
        "name": name,
        "type": TYPES[t.dtype],
        "comment": f"{t.role} [{', '.join(str(s) for s in t.plan_shape)}]",
    }
