"""A kernel that runs a plan's synchronisation on a GPU, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilegen.analysis.regions import to_c
from tilegen.codegen.environment import environment, roots
from tilegen.codegen.schedule import enum, locals_text, schedule_text
from tilegen.ops.base import OpInstance
from tilegen.schedule.plan import Plan

TEMPLATE = Path(__file__).with_name("skeleton.cu.j2")


def skeleton(plan: Plan) -> str:
    """skeleton.cu.j2 filled for a plan: takes, waits and posts of every tile."""
    sizes = ", ".join(f"{k}={v}" for k, v in plan.sizes)
    template = environment(tuple(map(str, roots()))).from_string(TEMPLATE.read_text())
    return template.render(
        plan=plan,
        sizes=sizes,
        schedule=schedule_text(plan),
        ops=[_op(b) for b in plan.bounds],
    )


def _op(b: OpInstance) -> dict[str, Any]:
    return {
        "enum": enum(b.op.name),
        "locals": locals_text(b),
        "steps": to_c(b.steps),
        "cluster": b.op.cluster,
        "operands": len(b.op.operands),
    }
