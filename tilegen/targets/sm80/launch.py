"""A launch of the kernel for sm_80 and later."""

from __future__ import annotations

from tilegen.errors import TargetError
from tilegen.runtime.launch import Launch, cooperative
from tilegen.schedule.plan import Plan
from tilegen.targets.sm80.emit import PortableSource


def portable_launch(
    plan: Plan,
    source: PortableSource,
    architecture: str,
    exclusive: bool = False,
    programmatic: bool | None = None,
) -> Launch:
    if programmatic:
        raise TargetError(
            f"programmatic: the kernel for sm_90a waits for the one before, that for {architecture} does not"
        )
    ctas, whole = portable_ctas(plan), cooperative(plan, exclusive)
    return Launch(
        ctas,
        source.threads,
        1,
        source.shared_bytes,
        whole,
        False,
        len(plan.targets),
        tuple(plan.graph.tensors),
        None,
        positions=source.positions,
    )


def portable_ctas(plan: Plan) -> int:
    """One for each static list; where ranks are drawn, one an SM, clusters or not."""
    return (
        min(plan.machine.sms, plan.order.count) if isinstance(plan.scheduling, str) else len(plan.scheduling)
    )
