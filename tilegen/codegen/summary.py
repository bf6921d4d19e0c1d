"""The head of a generated file: what the plan does, in lines of text."""

from __future__ import annotations

from tilegen.analysis.regions import pretty_box
from tilegen.codegen.op_text import equation
from tilegen.codegen.schedule import policy_words
from tilegen.schedule.plan import Plan


def summary(plan: Plan) -> list[str]:
    """What the plan does, line by line, for the head of the generated file."""
    lines = [equation(b) for b in plan.bounds]
    if plan.edges:
        lines.append("")
    for w in plan.waits:
        e = w.edge
        lines.append(
            f"{e.name}: {e.tensor}{pretty_box(e.box)} <- {e.formula()}; {policy_words(plan, w.semaphores)}"
        )
    return lines
