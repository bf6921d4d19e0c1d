"""Hopper as a target: TMA, wgmma, pairs of CTAs, a ring of stages. What writes and loads kernels is imported
by those who do: planning needs none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegen.arch.machine import Machine
from tilegen.codegen.thread_product import conv_tiles, product_tiles
from tilegen.graph.forms import SUPER_TILE, Config, Proxies
from tilegen.graph.gathered import by_threads
from tilegen.graph.graph import Graph
from tilegen.graph.linear_time import by_gpc
from tilegen.graph.product_time import ROWS_OF_GPC
from tilegen.ops.attention import FEW, AttentionAttributes, over_caches
from tilegen.ops.base import OpInstance
from tilegen.ops.gemm import MatmulAttributes
from tilegen.ops.patches import Patches
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted, Target, unproved
from tilegen.targets.sm90.heuristics import attention_tile, best_configs, best_splits
from tilegen.targets.sm90.ops import hopper_op, layout_of, refuse_parameters
from tilegen.targets.sm90.shared_bodies import bodies
from tilegen.targets.sm90.stage import im2col_problem


class Sm90(Target):
    name, on_gpu, any_linear = "sm_90a", True, False
    fuses_norms = forwards_kv = multiplies_patches = launches_early = takes_turns = True

    def fits(self, machine: Machine) -> bool:
        return machine.architecture.tma and machine.architecture.wgmma

    def configs(self, b: OpInstance, machine: Machine) -> Sequence[tuple[int, ...]]:
        if isinstance(b.attributes, AttentionAttributes):
            return [attention_tile(b, machine)]
        if isinstance(b.attributes, MatmulAttributes):
            return product_tiles(b)
        return conv_tiles(b) if by_threads(b) else b.kind.tiles(b, machine)

    def choose(self, graph: Graph, machine: Machine) -> Mapping[str, Config]:
        return best_configs(graph, machine)

    def patches_problem(self, b: OpInstance, seen: Patches) -> str:
        return seen.problem or im2col_problem(seen)

    def faster_in_rows(self, rows: Graph, boxes: Graph, machine: Machine) -> bool:
        (op,) = boxes.ops
        in_rows, in_boxes = (best_configs(g, machine).get(op.name) for g in (rows, boxes))
        return bool(in_rows and in_boxes and in_rows.us < in_boxes.us)

    def super_tile(self, graph: Graph, machine: Machine) -> int:
        """With lists by GPC a block of tiles that is as high as it is wide: 16 SMs load four rows and four
        columns of them."""
        (op, *others) = graph.ops
        return SUPER_TILE if others or not by_gpc(graph.bound(op), machine) else ROWS_OF_GPC

    def kv_splits(self, b: OpInstance, machine: Machine) -> int:
        few = over_caches(b) and b.tile[0] * b.tile[2] <= FEW
        return best_splits(b, machine) if few else 1

    def check(self, plan: Plan, b: OpInstance) -> None:
        hopper_op(plan, b)

    def check_together(self, plan: Plan) -> None:
        ops = [hopper_op(plan, b) for b in plan.bounds]
        layout_of(plan, ops)
        refuse_parameters(plan, bodies(ops))

    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        plan = unproved(graph, machine)
        return {b.op.name: hopper_op(plan, b).proxies for b in plan.bounds}

    def emit(self, plan: Plan, architecture: str = "", programmatic: bool | None = None) -> Emitted:
        """What is generated first; with a compiler at hand it might turn out to need more registers for
        loading."""
        from tilegen.targets.sm90.emit import generate
        from tilegen.targets.sm90.launch import hopper_launch
        from tilegen.targets.sm90.library import HopperLibrary, texts

        source = generate(plan)
        launch = hopper_launch(plan, source, programmatic=programmatic)
        return Emitted(texts(plan, source)[0](), HopperLibrary.source_name, self.name, launch)

    def load(self, plan: Plan, architecture: str = "") -> Any:
        from tilegen.targets.sm90.library import HopperLibrary

        return HopperLibrary(plan)


TARGET = Sm90()
