"""Any GPU from Ampere on as a target: linears by mma.sync and cp.async, most other ops by threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.codegen.thread_attention import attention_tiles
from tilegen.codegen.thread_product import conv_tiles, product_tiles
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes, of_groups
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted, Target
from tilegen.targets.sm80.emit import generate, portable_op
from tilegen.targets.sm80.launch import portable_launch
from tilegen.targets.sm80.library import PortableLibrary, here
from tilegen.targets.sm80.pixels import pixel_tiles
from tilegen.targets.sm80.product import multiplies_pixels

TILES = [(128, tn, 64) for tn in (256, 192, 128, 64)]  # a CTA's registers hold no more sums than 128 x 256
FEW = 64
# of few rows, whose time is that of their weights: those that all SMs have a part of
NARROW = [(FEW, tn, 64) for tn in range(256, 15, -16)]


class Sm80(Target):
    name, on_gpu, any_linear, odd_results = "sm_80", True, False, False

    def fits(self, machine: Machine) -> bool:
        return machine.architecture.mma_sync

    def configs(self, b: OpInstance, machine: Machine) -> Sequence[tuple[int, ...]]:
        if isinstance(b.attributes, MatmulAttributes):
            return product_tiles(b)
        if isinstance(b.attributes, ConvAttributes):
            return pixel_tiles(b, machine) if multiplies_pixels(b) else conv_tiles(b)
        if isinstance(b.attributes, AttentionAttributes):
            return attention_tiles(b, machine.sms)
        if not isinstance(b.attributes, LinearAttributes):
            return b.kind.tiles(b, machine)
        few = isinstance(b.out[0], int) and b.out[0] <= FEW
        return of_groups(NARROW if few else TILES, b.attributes.groups)

    def check(self, plan: Plan, b: OpInstance) -> None:
        portable_op(plan, b, plan.machine.architecture.portable)

    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        """cp.async, unlike its bulk forms, goes through the generic proxy."""
        return {}

    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        architecture = architecture or plan.machine.architecture.portable
        source = generate(plan, architecture)
        launch = portable_launch(plan, source, architecture, programmatic=programmatic)
        return Emitted(source.text, PortableLibrary.source_name, architecture, launch)

    def load(self, plan: Plan, architecture: str = "") -> Any:
        return PortableLibrary(plan, architecture=architecture or here())


TARGET = Sm80()
