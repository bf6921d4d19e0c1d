"""launcher.cpp: a program that loads generated cubins and launches them, over the CUDA driver API alone
(templates/cuda/common/launcher.cpp.j2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegen.codegen.environment import render
from tilegen.runtime.launch import MISPLACED, RECORD_BYTES, Buffer, Launch
from tilegen.schedule.plan import Plan
from tilegen.targets.facts import KERNEL, patience_ns


@dataclass(frozen=True)
class Kernel:
    """A launch, and the file of its machine code."""

    cubin: str
    launch: Launch


def text(plan: Plan, kernels: Sequence[Kernel]) -> str:
    """The program that launches these kernels in order, on tensors of the plan."""
    buffers = [Buffer.of(t) for t in plan.graph.tensors.values()] + [
        p.buffer for k in kernels for p in k.launch.packed
    ]
    return render(
        "cuda/common/launcher.cpp.j2",
        plan=plan,
        sizes=", ".join(f"{k}={v}" for k, v in plan.sizes),
        buffers=buffers,
        at={b.name: n for n, b in enumerate(buffers)},
        kernels=kernels,
        function=KERNEL,
        record_bytes=RECORD_BYTES,
        misplaced=MISPLACED,
        patience_ns=patience_ns(),
    )
