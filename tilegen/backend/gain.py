"""How much faster than Inductor's kernels a region is, by formulas.

    ours   = min(one launch, Σ over ops of a launch of each)               tilegen.schedule.lowering
    theirs = Σ over ops of max(FLOPs / rate, bytes / memory's) + launch    and a pass for an epilogue

On a CPU nothing is compared: the backend is right there, not fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilegen.arch.machine import Machine
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.program import Program, element_bytes
from tilegen.graph.cost_model import on_wgmma
from tilegen.graph.forms import Place
from tilegen.ops.base import OpInstance
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.schedule.lowering import alone_us, one_launch_us
from tilegen.schedule.planner import plan
from tilegen.targets.select import gpu_machine, place

SHARE = 0.85  # of its peak rates that a library's kernel reaches
LAUNCH_US = 2.0  # of a kernel in a CUDA graph, from the end of the one before
BIAS = ("acc0", "acc0 + e0")  # epilogues that a library's product has


@dataclass(frozen=True)
class Gain:
    """Modelled µs of both."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours if self.ours else math.inf

    def __str__(self) -> str:
        if not self.ours:
            return "on a CPU every region is taken"
        return f"by the model {self.ours:.1f} µs as a region, {self.theirs:.1f} µs left to Inductor"


def gain(program: Program, device: torch.device) -> Gain:
    """Of a region on a device.

    Raises:
        PlanError: there is no plan of it.
        TargetError: the device is neither a CPU nor a GPU that tilegen has kernels for.
    """
    if device.type == "cpu":
        return Gain(0.0, 0.0)
    if device.type != "cuda":
        raise TargetError(f"regions run on cuda and cpu, the model is on {device.type}")
    where = place(gpu_machine())
    ways, found = [], []
    for way in (_of_one_launch, _of_launches):
        try:
            us, bounds = way(program, where)
        except PlanError as error:
            failure = error
            continue
        ways.append(us)
        found.append(bounds)
    if not ways:
        raise failure
    return Gain(min(ways), sum(_inductor_us(b, where.machine) for b in found[0]))


def _of_one_launch(program: Program, where: Place) -> tuple[float, Sequence[OpInstance]]:
    made = plan(program, where, Options())
    return one_launch_us(made, len(made.bounds)), made.bounds


def _of_launches(program: Program, where: Place) -> tuple[float, Sequence[OpInstance]]:
    each = launches_of(program, where, Options()).each
    return sum(map(alone_us, each)), [launch.bounds[0] for launch in each]


def _inductor_us(b: OpInstance, machine: Machine) -> float:
    """Of an op that Inductor runs: a library's kernel, and one over its result for what that cannot do."""
    rate = machine.flops32 if b.dtype(0) == "float32" else machine.flops16
    seconds = max(b.kind.flops(b) * math.prod(b.grid) / rate, b.operand_bytes / machine.memory)
    us = seconds * 1e6 / SHARE + LAUNCH_US
    epilogue = b.op.epilogue
    if on_wgmma(b, machine) and epilogue is not None and epilogue.expression not in BIAS:
        us += 2e6 * math.prod(b.out) * element_bytes(b.result.dtype) / machine.cache + LAUNCH_US
    return us
