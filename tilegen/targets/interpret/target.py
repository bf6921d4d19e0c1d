"""The interpreter as a target: it has a form for every op, and writes no source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.errors import TargetError
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted, Target


class Interpret(Target):
    name, emits = "interpret", False

    def fits(self, machine: Machine) -> bool:
        return False

    def check(self, plan: Plan, b: OpInstance) -> None:
        """It computes every op from its equation."""

    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        return {}

    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        raise TargetError("target interpret runs a plan and writes no source")

    def load(self, plan: Plan, architecture: str = "") -> Any:
        from tilegen.targets.interpret.interpreter import Interpreter

        return Interpreter(plan)


TARGET = Interpret()
