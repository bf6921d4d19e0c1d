"""The CPU as a target: any plan as C++, whatever machine it was made for. What writes and loads kernels is
imported by those who do: planning needs none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted, Target
from tilegen.targets.cpu.configs import TILES


class Cpu(Target):
    name = "cpu"

    def fits(self, machine: Machine) -> bool:
        return machine.arch == "cpu"

    def configs(self, b: OpInstance, machine: Machine) -> Sequence[tuple[int, ...]]:
        found = TILES.get(type(b.attributes))
        return found(b) if found else b.kind.tiles(b, machine)

    def check(self, plan: Plan, b: OpInstance) -> None:
        from tilegen.codegen.environment import refuse_missing_macro

        refuse_missing_macro("cpu", "cpp", b)

    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        return {}

    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        from tilegen.targets.cpu.emit import generate
        from tilegen.targets.cpu.library import Library

        return Emitted(generate(plan), Library.source_name)

    def load(self, plan: Plan, architecture: str = "") -> Any:
        from tilegen.targets.cpu.library import Library

        return Library(plan)


TARGET = Cpu()
