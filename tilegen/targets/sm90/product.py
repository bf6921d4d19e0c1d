"""A product on tensor cores: a tile and its stage, a load role, a store role, an epilogue, put together by
linear.py and conv2d.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from tilegen.analysis.regions import Array
from tilegen.codegen.cuda_op import TYPES
from tilegen.frontend.dims import most
from tilegen.frontend.program import PAIRED
from tilegen.graph.forms import Proxies
from tilegen.ops.base import OpInstance
from tilegen.targets.sm90.code import Code, Needs
from tilegen.targets.sm90.extras import Extras, epilogue_is_older
from tilegen.targets.sm90.stage import AnyMap, Loads, Wait, step_waits
from tilegen.targets.sm90.store import PixelStore, RowStore, Steps, finish
from tilegen.targets.sm90.tile import TWO_BYTES, Stage, Tile

MMA_TYPES = {"bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3"}  # of wgmma


@dataclass(frozen=True)
class Norm:
    """A norm fused into a linear: its weight, and how many threads look at activations, how many of them at
    a row (a power of two), and how many eights of columns of a step each of these has."""

    weight: str
    type: str
    depth: int
    eps: float
    lookers: int
    of_row: int
    each: int


@dataclass(frozen=True)
class Packing:
    """Weights that come packed tile by tile: the tensors that they are made of, and which row of the weight
    lies in each row of a tile's block, -1 where there is none: (tiles, rows)."""

    tensors: tuple[str, ...]
    rows: Array = field(compare=False)


@dataclass(frozen=True)
class Product(Code):
    """A linear or a convolution of a plan.

    a, b: what the roles for activations and weights do. weights_once: each weight is used by one or two rows
    of tiles only, so that it need not stay in L2.
    """

    tile: Tile = field(kw_only=True)
    stage: Stage = field(kw_only=True)
    a: Loads = field(kw_only=True)
    b: Loads = field(kw_only=True)
    maps: tuple[AnyMap, ...] = field(kw_only=True)
    store: RowStore | PixelStore = field(kw_only=True)
    extras: Extras = field(kw_only=True)
    weights_once: bool = field(default=False, kw_only=True)
    norm: Norm | None = field(default=None, kw_only=True)
    packing: Packing | None = field(default=None, kw_only=True)

    form: ClassVar[str] = "product"

    @property
    def steps(self) -> str:
        return self.number("steps", self.tile.steps)

    @property
    def one_turn(self) -> bool:
        """Whether the main loop of a CTA is over after one turn. The compiler must not know: ptxas serialises
        the wgmma of an unrolled one (C7519)."""
        return self.a.positions * self.tile.steps // self.tile.cluster.k == 1

    @property
    def partly_occupied(self) -> tuple[int, ...]:
        """How many of a math warpgroup's blocks of 64 rows hold any, where not all do. An empty block is not
        multiplied."""
        if not isinstance(self.store, RowStore) or self.tile.warpgroups_split_n or self.tile.swapped:
            return ()
        height = self.tile.rows
        heights = (
            range(1, height + 1)
            if self.store.moves
            else (min(height, self.rows), self.rows % height or height)
        )
        return tuple(sorted(set[int]().union(*map(self.tile.occupied, heights)) - {self.tile.m64}))

    @property
    def range(self) -> str:
        if self.tile.exchanges:
            steps, k = self.steps, self.tile.cluster.k
            return (
                f"const int first = cta_rank * {steps} / {k}, last = (cta_rank + 1) * {steps} / {k};"
                "  // this CTA's part of the steps"
            )
        return f"const int first = 0, last = {self.steps};"

    @property
    def needs(self) -> Needs:
        """Scratch: a sum of squares for each row, or each warp that has a row of its own; sums that are
        swapped."""
        scratch = max(256 if self.norm else 0, self.tile.scratch_bytes)
        return Needs(self.stage.bytes, self.stage.overrun(self.tile), self.tile.sums_bytes, scratch)

    @property
    def proxies(self) -> Proxies:
        """Both factors and a residual come by TMA; a folded norm's weight and the epilogue's other operands
        by ld.global."""
        return Proxies((0, 1, *self.extras.by_tma), self.store.staged)

    @property
    def looks_early(self) -> bool:
        """Whether the math warps look at arguments before the role that loads activations tells that these
        are there."""
        return bool(self.extras.operands) or bool(self.norm and not self.packing)

    @property
    def loads_early(self) -> bool:
        """Whether the role that loads weights must wait for the launch before: not for packed ones, which do
        not change."""
        return not self.packing

    # --- text -----------------------------------------------------------------------------------------------

    @property
    def left_block(self) -> int:
        """Bytes of 64 columns of wgmma's left operand: of activations, or of weights where it is swapped."""
        return self.stage.b_block if self.tile.swapped else self.stage.a_block

    @property
    def right_block(self) -> int:
        return self.stage.a_block if self.tile.swapped else self.stage.b_block

    @property
    def right_at(self) -> int:
        """Where it starts in a stage."""
        return 0 if self.tile.swapped else self.stage.b_at

    @property
    def left_offset(self) -> str:
        """Where a warpgroup's part of the left operand starts, as C."""
        at = self.tile.a_offset
        return f"{self.stage.b_at} + {at}" if self.tile.swapped else at

    @property
    def valued(self) -> int:
        """Sums that an epilogue is given at a time: all that a thread has of a row, or where they are turned
        those of one fragment."""
        return 4 * self.tile.groups if self.tile.swapped else self.tile.registers

    @property
    def rows(self) -> int:
        """Of the result, at most; those of images are their pixels."""
        return most(math.prod(self.bound.out[:-1]))

    @property
    def columns(self) -> int:
        return int(self.bound.out[-1])

    @property
    def result_type(self) -> str:
        return TYPES[self.bound.result.dtype]

    @property
    def mma(self) -> str:
        return f"{MMA_TYPES[self.bound.dtype(0)]}_n{self.tile.columns_of_warpgroup}"

    @property
    def tile_text(self) -> str:
        return " x ".join(map(str, self.bound.tile))

    @property
    def cluster_text(self) -> str:
        if self.cluster <= 2:
            return f", by pairs that share its {self.bound.op.cluster_split}" if self.cluster > 1 else ""
        shape = self.tile.cluster
        if shape.k > 1:
            return f", by clusters of {shape.k} CTAs that share its k"
        return f", by clusters of {shape.m} x {shape.n} CTAs"

    @cached_property
    def finish(self) -> Steps:
        return finish(self.tile)


def types_problem(b: OpInstance) -> str:
    """Why wgmma cannot multiply an op's operands, or an empty string."""
    if b.dtype(0) not in MMA_TYPES:
        return f"wgmma takes {', '.join(MMA_TYPES)}, {b.op.operands[0].tensor!r} is {b.dtype(0)}"
    results = TWO_BYTES if b.dtype(0) in PAIRED else (b.dtype(0),)
    if b.result.dtype not in (*results, "float32"):
        return f"the result is {b.result.dtype}, expected {', '.join(results)} or float32"
    return ""


def waits_for_activations(code: Code) -> tuple[Wait, ...]:
    """Of the role that loads them: for the steps, and for what the epilogue reads, the older first.

    Whoever is awaited second stands inside the loop over steps. Two waits in a row before the loop cost a GPT
    layer 2.4 %, and the older one second cost ResNet-38 3.4 %, though it never waits (docs/perf-log.md)."""
    late = code.waiting("epilogue")
    if late and epilogue_is_older(code):
        inside = (replace(w, before="first") if w.before == "steps" else w for w in step_waits(code, 0))
        return (*(Wait(n, "steps", late=True) for n in late), *inside)
    return (*step_waits(code, 0), *(Wait(n, "last", late=True) for n in late))


def waits_for_weights(code: Code) -> tuple[Wait, ...]:
    return step_waits(code, 1)
