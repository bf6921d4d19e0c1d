"""CUDA text around the shared schedule. So far the skeleton: a kernel that runs a plan's synchronisation on a
GPU, and nothing else."""

from __future__ import annotations

from typing import Any

from tilegen.analysis.regions import to_c
from tilegen.codegen.environment import render
from tilegen.codegen.schedule import enum, locals_text, schedule_text
from tilegen.ops.base import Bound
from tilegen.schedule.plan import Plan


def skeleton(plan: Plan) -> str:
    """templates/cuda/skeleton.cu.j2 filled for a plan: takes, waits and posts of every tile."""
    sizes = ", ".join(f"{k}={v}" for k, v in plan.sizes)
    return render(
        "cuda/skeleton.cu.j2",
        plan=plan,
        sizes=sizes,
        schedule=schedule_text(plan),
        ops=[_op(b) for b in plan.bounds],
    )


def _op(b: Bound) -> dict[str, Any]:
    return {
        "enum": enum(b.op.name),
        "locals": locals_text(b),
        "steps": to_c(b.steps),
        "parts": b.op.parts,
        "operands": len(b.op.operands),
    }
