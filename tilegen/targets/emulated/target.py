"""A GPU on the CPU as a target: it runs the text that the machine's own target emits, by the rules of the
GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.errors import TargetError
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted, Target, known


class Emulated(Target):
    name, emits, runs_others = "cuda-emulated", False, True

    def fits(self, machine: Machine) -> bool:
        return False

    def check(self, plan: Plan, b: OpInstance) -> None:
        known()[plan.machine.target].check(plan, b)

    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        return known()[machine.target].proxies(graph, machine)

    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        raise TargetError(f"target {self.name} runs what {plan.target} emits, and writes no source")

    def load(self, plan: Plan, architecture: str = "") -> Any:
        from tilegen.targets.emulated.library import EmulatedLibrary

        return EmulatedLibrary(plan, known()[plan.target].emit(plan, architecture))


TARGET = Emulated()
