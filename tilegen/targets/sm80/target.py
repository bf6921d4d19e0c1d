"""Any GPU from Ampere on as a target: linears by mma.sync and cp.async, most other ops by threads. What knows
its tiles and writes and loads its kernels is imported where it is asked: planning for another GPU needs none
of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance
from tilegen.ops.patches import Patches
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted, Target


class Sm80(Target):
    name, on_gpu, any_linear, odd_results = "sm_80", True, False, False
    multiplies_patches = patches_in_chains = True

    def fits(self, machine: Machine) -> bool:
        return machine.architecture.mma_sync

    def configs(self, b: OpInstance, machine: Machine) -> Sequence[tuple[int, ...]]:
        from tilegen.targets.sm80.configs import tiles_worth_trying

        return tiles_worth_trying(b, machine)

    def patches_problem(self, b: OpInstance, seen: Patches) -> str:
        from tilegen.targets.sm80.product import multiplies_pixels

        return "" if multiplies_pixels(b) else "its filter reaches too far for a product of patches"

    def faster_in_rows(self, rows: Graph, boxes: Graph, machine: Machine) -> bool:
        from tilegen.targets.sm80.pixels import clocks

        return clocks(rows, machine) < clocks(boxes, machine)

    def check(self, plan: Plan, b: OpInstance) -> None:
        from tilegen.targets.sm80.emit import portable_op

        portable_op(plan, b, plan.machine.architecture.portable)

    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        """cp.async, unlike its bulk forms, goes through the generic proxy."""
        return {}

    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        from tilegen.targets.sm80.emit import generate
        from tilegen.targets.sm80.launch import portable_launch
        from tilegen.targets.sm80.library import PortableLibrary

        architecture = architecture or plan.machine.architecture.portable
        source = generate(plan, architecture)
        launch = portable_launch(plan, source, architecture, programmatic=programmatic)
        return Emitted(source.text, PortableLibrary.source_name, architecture, launch)

    def load(self, plan: Plan, architecture: str = "") -> Any:
        from tilegen.targets.sm80.library import PortableLibrary, here

        return PortableLibrary(plan, architecture=architecture or here())


TARGET = Sm80()
