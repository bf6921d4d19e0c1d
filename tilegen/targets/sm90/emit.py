"""CUDA for sm_90a: one persistent kernel for all ops of a plan, around the shared schedule
(templates/cuda/sm90/kernel.cu.j2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilegen.codegen.environment import Source, render
from tilegen.codegen.tidy import tidied
from tilegen.frontend.dims import most
from tilegen.graph.positions import Position, positions
from tilegen.schedule.alike import written_as
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.kernel import Kernel
from tilegen.targets.sm90.ops import hopper_op, layout_of, refuse_parameters
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.shared_bodies import bodies
from tilegen.targets.sm90.stage import AnyMap

KERNEL = "tg_kernel"
THREADS = 384
REGISTERS, ROOMY = (40, 232), (56, 224)  # of a thread that loads, of one that computes


@dataclass(frozen=True)
class HopperSource(Source):
    """The text, and what the host must know to launch it."""

    # the text with more registers for threads that load: many ops with waits need them
    roomy: Callable[[], str]
    maps: tuple[AnyMap, ...]
    # whose addresses the kernel is given: the plan's, then those that shared bodies see under other names
    tensors: tuple[str, ...]
    packed: tuple[tuple[str, Product], ...]  # map -> the op whose weight it packs
    shared_bytes: int
    cluster: int
    turns: int  # the most tiles that a CTA may run
    positions: tuple[Position, ...]  # whose number and value the kernel reports where they leave no room
    lists: int = 0  # of tiles that CTAs take by their SM; 0: each has that of its own number
    threads: int = THREADS


def generate(plan: Plan, packed: frozenset[str] = frozenset(), variant: str = "") -> HopperSource:
    """The kernel of a plan. `packed` weights come packed tile by tile where an op reads each only once, and
    do not change (Kernel.prepare).

    variant: "trace" notes times; "jitter" sleeps for random times before waits and posts and after products,
    to stress the order. PlanError where an op has no form on sm_90a.
    """
    kernel = _kernel(plan, packed, variant)
    layout, found = kernel.layout, kernel.bodies
    write = partial(_text, kernel, packed)
    return HopperSource(
        partial(write, REGISTERS),
        partial(write, ROOMY),
        tuple(m for body in found for same in body.maps for m in same),
        (
            *plan.graph.tensors,
            *(tensor for body in found for member in body.tensors for _, _, tensor in member),
        ),
        tuple((f"{op.name}_b", op) for op in layout.products if op.packing),
        layout.bytes,
        layout.cluster,
        kernel.turns,
        positions(plan.graph),
        plan.machine.sms if layout.by_gpc else 0,
    )


def _kernel(plan: Plan, packed: frozenset[str], variant: str) -> Kernel:
    plan.refuse_other("sm_90a")
    ops = tuple(hopper_op(plan, b, packed) for b in plan.bounds)
    layout = layout_of(plan, ops)
    found = bodies(ops)
    refuse_parameters(plan, found)
    turns = (
        most(plan.order.count)
        if isinstance(plan.scheduling, str)
        else max(len(ranks) for ranks in plan.scheduling)
    )
    return Kernel(plan, found, layout, variant, turns)


def _text(kernel: Kernel, packed: frozenset[str], registers: tuple[int, int]) -> str:
    written = written_as(kernel.plan)
    if written.plan is not kernel.plan:
        kernel = _kernel(written.plan, frozenset(written.names[name] for name in packed), kernel.variant)
    text = render(
        "cuda/sm90/kernel.cu.j2",
        kernel=kernel,
        plan=kernel.plan,
        layout=kernel.layout,
        registers=registers,
        jitter=kernel.jitter,
    )
    return tidied(text, KERNEL)
