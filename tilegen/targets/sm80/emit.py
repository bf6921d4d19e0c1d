"""CUDA for sm_80 and later: one persistent kernel for all ops of a plan, linears with mma.sync and cp.async,
the others by threads (templates/cuda/sm80/kernel.cu.j2).

The schedule text is that of every other target; a cluster's CTAs run as one tile of one CTA, which waits and
posts for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tilegen.codegen.cuda_op import TYPES
from tilegen.codegen.environment import Source, refuse_missing_macro, render
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.summary import summary
from tilegen.codegen.thread_kernel import ThreadKernel
from tilegen.codegen.tidy import tidied
from tilegen.errors import PlanError
from tilegen.graph.positions import Position, positions
from tilegen.ops.base import OpInstance
from tilegen.ops.gemm import LinearAttributes, patches
from tilegen.schedule.alike import written_as
from tilegen.schedule.plan import Plan
from tilegen.targets.sm80.block import SLOT, WARPS
from tilegen.targets.sm80.product import (
    PortableConv,
    PortableLinear,
    PortablePatches,
    PortableProduct,
    multiplies_pixels,
)
from tilegen.targets.sm80.thread_tile import ThreadTile

THREADS = 32 * WARPS
Ops = tuple[PortableProduct | ThreadTile, ...]


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
    ops = _ops(plan, architecture)
    ring = max(op.shared_bytes for op in ops)
    text = partial(_text, plan, architecture, ops, ring)
    return PortableSource(text, ring + SLOT, positions(plan.graph))


def _ops(plan: Plan, architecture: str) -> Ops:
    return tuple(portable_op(plan, b, architecture) for b in plan.bounds)


def portable_op(plan: Plan, b: OpInstance, architecture: str) -> PortableProduct | ThreadTile:
    """An op as the kernel computes it. PlanError where it has no form here."""
    if isinstance(b.attributes, LinearAttributes):
        product = PortablePatches if patches(b) else PortableLinear
        return product(plan, b, architecture)
    if multiplies_pixels(b):
        return PortableConv(plan, b, architecture)
    refuse_missing_macro("cuda/threads", "cu", b)
    return ThreadTile(plan, b, architecture)


@dataclass(frozen=True)
class PortableKernel(ThreadKernel):
    """What the templates ask of the kernel besides its linears."""

    products: tuple[PortableProduct, ...]
    tiles: tuple[ThreadTile, ...]
    positions: tuple[Position, ...]  # that the kernel reports where they leave no room in a cache

    joins_lanes: ClassVar[bool] = False

    @property
    def thread_tiles(self) -> tuple[ThreadTile, ...]:
        return self.tiles

    @property
    def deep(self) -> bool:
        """Whether warps share the sum of any product."""
        return any(op.block.deep > 1 for op in self.products)

    @property
    def by_ones(self) -> bool:
        """Whether the epilogue of any product reads number by number."""
        return any(op.epilogue.by_ones for op in self.products)

    @property
    def multiplies_rows(self) -> bool:
        """Whether there is any linear."""
        return any(not op.of_pixels for op in self.products)

    @property
    def multiplies_pixels(self) -> bool:
        return any(op.of_pixels for op in self.products)

    @property
    def turns(self) -> bool:
        """Whether any op turns rows by their position."""
        return any(op.turning for op in self.thread_tiles)


def _text(plan: Plan, architecture: str, ops: Ops, ring: int) -> str:
    if (written := written_as(plan).plan) is not plan:
        plan, ops = written, _ops(written, architecture)
    products = tuple(op for op in ops if isinstance(op, PortableProduct))
    tiles = tuple(op for op in ops if isinstance(op, ThreadTile))
    text = render(
        "cuda/sm80/kernel.cu.j2",
        plan=plan,
        architecture=architecture,
        sizes=", ".join(f"{k}={v}" for k, v in plan.sizes),
        summary=summary(plan),
        schedule=schedule_text(plan),
        ops=ops,
        products=products,
        kernel=PortableKernel(products, tiles, positions(plan.graph)),
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
