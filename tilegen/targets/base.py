"""What a target is: one object, asked by graph rewrites and the planner (tilegen.graph.forms) and by what
makes kernels.

A folder below tilegen/targets is a slice, with its object as TARGET in target.py: nothing else names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from tilegen import targets
from tilegen.arch.machine import Machine
from tilegen.errors import FormError, PlanError
from tilegen.graph.forms import Forms
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance
from tilegen.schedule.order import op_major
from tilegen.schedule.plan import Plan

if TYPE_CHECKING:
    from tilegen.runtime.launch import Launch


@dataclass(frozen=True)
class Emitted:
    """A kernel as text. architecture: what CUDA text is compiled for; launch: what a launch is; neither for
    C++."""

    text: str
    source_name: str
    architecture: str = ""
    launch: Launch | None = None


class Target(Forms):
    """A vertical slice: what it has forms for, the text that it emits, the binary that it loads."""

    emits: ClassVar[bool] = True  # whether it writes source
    runs_others: ClassVar[bool] = False  # whether it runs what the machine's own target emits

    @abstractmethod
    def check(self, plan: Plan, b: OpInstance) -> None:
        """PlanError where it has no form for an op with its tile. Asks nothing of the plan's waits."""

    def check_together(self, plan: Plan) -> None:
        """PlanError where ops that have a form each have none in one kernel."""

    @abstractmethod
    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        """The kernel of a plan. Needs no device."""

    @abstractmethod
    def load(self, plan: Plan, architecture: str = "") -> Any:
        """The compiled kernel, to be run here. CompilerMissing where there is no compiler."""

    def problem(self, plan: Plan, b: OpInstance) -> str:
        """Why it has no form for an op, or an empty string."""
        try:
            self.check(plan, b)
        except PlanError as error:
            return str(error)
        return ""

    def refuse(self, graph: Graph, machine: Machine, static: bool) -> None:
        """FormError that names every op that it has no form for, and the targets that have one for all of
        them."""
        plan = unproved(graph, machine, static)
        problems = [(b.op, problem) for b in plan.bounds if (problem := self.problem(plan, b))]
        if not problems:
            return self.check_together(plan)
        first, why = problems[0]
        ops = ", ".join(f"{op.name!r} ({op.kind})" for op, _ in problems)
        others = [t for t in known().values() if t.emits and t is not self]
        able = [t.name for t in others if not any(t.problem(plan, b) for b in plan.bounds)]
        raise FormError(
            f"{self.name} has no form for {ops} of {graph.name}, {' and '.join(able) or 'no target'} can; "
            f"{why.removeprefix(f'{first.where}: ')}",
            first.where,
            tuple(op.name for op, _ in problems),
        )


def unproved(graph: Graph, machine: Machine, static: bool = False) -> Plan:
    """The graph as a plan without semaphores: enough to ask a target for its forms."""
    scheduling = ((),) if static else "dynamic"
    return Plan(graph.name, (), machine, graph, (), (), (), op_major(graph), scheduling, "multi_launch")


@lru_cache(maxsize=1)
def known() -> Mapping[str, Target]:
    """Name -> target, of all folders here: those for GPUs first, the newest of them before others, those that
    write no source last."""
    folders = [m.name for m in pkgutil.iter_modules(targets.__path__) if m.ispkg]
    found = [
        importlib.import_module(f"{targets.__name__}.{name}.target").TARGET
        for name in sorted(folders, reverse=True)
    ]
    return {t.name: t for t in sorted(found, key=lambda t: (not t.on_gpu, not t.emits))}
