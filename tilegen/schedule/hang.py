"""A rank in the plan's words, and who waits for what where a launch hangs."""

from __future__ import annotations

from tilegen.frontend.dims import most
from tilegen.schedule.plan import Plan


def describe_hang(
    plan: Plan,
    rank: int,
    cta_rank: int,
    operand: int,
    step: int,
    semaphore: int,
    seen: int,
    target: int,
    *,
    over: Plan | None = None,
) -> str:
    """Who waits for what, in the plan's words. over: the plan over what moves, whose text counts semaphores
    as at the largest size, where `plan` is that at one size."""
    if over:
        semaphore = _numbered(over, plan, semaphore)
    op, coord = tile_at(plan, rank)
    producer = next(m for m in plan.semaphores if m.base <= semaphore < m.base + m.count)
    what = next(o for o in plan.graph.ops if o.name == op).operands[operand].tensor
    return (
        f"{op}{coord} (rank {rank}, CTA {cta_rank}) waits before step {step} for {what!r}: semaphore"
        f" {semaphore} of {producer.producer} has {seen} of {target} posts"
    )


def _numbered(over: Plan, plan: Plan, semaphore: int) -> int:
    """The plan's number of a semaphore of the text."""
    for of_text, here in zip(over.semaphores, plan.semaphores, strict=True):
        place = semaphore - most(of_text.base)
        if 0 <= place < most(of_text.count):
            return int(here.base) + place
    raise IndexError(semaphore)


def tile_at(plan: Plan, rank: int) -> tuple[str, tuple[int, ...]]:
    """(op, coordinates) of a rank."""
    for segment, start, end in zip(
        plan.order.segments, plan.order.starts, plan.order.starts[1:], strict=False
    ):
        if rank < end:
            return segment.op, tuple(int(c[rank - start]) for c in segment.coords())
    raise IndexError(rank)
