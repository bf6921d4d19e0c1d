"""How much faster than Inductor's kernels a region is, by formulas.

    ours   = min(one launch, Σ over ops of a launch of each)               tilegen.schedule.lowering
    theirs = Σ over ops of their kernel + launch, and a pass for an epilogue
    kernel = max(FLOPs / rate, bytes / memory's), no less than ours alone on tensor cores, and more where a
             group has few channels

An op whose own launch is far behind Inductor's kernel is a loser: a region without it is looked at instead.
Where a region as a whole does not pay, so is each op that is behind at all: what is left may pay.
On a CPU nothing is compared, unless a machine is named (tilegen.config.judge): the backend is right there,
not fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from tilegen import config
from tilegen.arch.machine import Machine, machine
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.program import Program, element_bytes
from tilegen.graph.attention_time import by_tensor_cores
from tilegen.graph.cost_model import on_wgmma
from tilegen.graph.forms import Place
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import GroupedConvAttributes
from tilegen.ops.grouped_conv2d import by_eights
from tilegen.ops.pad import PadAttributes
from tilegen.ops.rope import RotaryAttributes
from tilegen.ops.strided_copy import StridedCopyAttributes
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.schedule.lowering import alone_us, one_launch_us
from tilegen.schedule.planner import plan
from tilegen.targets.select import gpu_machine, place

SHARE = 0.85  # of its peak rates that a library's kernel reaches
LAUNCH_US = 2.0  # of a kernel in a CUDA graph, from the end of the one before
# of a convolution of few channels a group: its start, and the share of the CUDA cores' rate, by fifteen that
# were timed (docs/perf-log.md, 2026-11-30)
GROUPED_US, GROUPED_SHARE = 8.0, 0.25
BEHIND, BEHIND_US = 1.3, 4.0  # a loser takes so many times as long, and so much longer
BIAS = ("acc0", "acc0 + e0")  # epilogues that a library's product has


@dataclass(frozen=True)
class Gain:
    """Modelled µs of both. losers: ops of the program that had better be Inductor's."""

    ours: float
    theirs: float
    losers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours if self.ours else math.inf

    @property
    def saved(self) -> float:
        return self.theirs - self.ours

    def __str__(self) -> str:
        if not self.ours:
            return "on a CPU every region is taken"
        return _told(self.ours, self.theirs)


def _told(ours: float, theirs: float) -> str:
    return f"by the model {ours:.1f} µs as a region, {theirs:.1f} µs left to Inductor"


def gain(program: Program, device: torch.device, least: float, turned: Sequence[int] = ()) -> Gain:
    """Of a region on a device. least: one launch of all ops is looked at where launches of each gain less.
    turned: bytes of tensors that are laid out anew before the region or after it.

    Raises:
        PlanError: there is no plan of it.
        TargetError: the device is neither a CPU nor a GPU that tilegen has kernels for.
    """
    if device.type not in ("cuda", "cpu"):
        raise TargetError(f"regions run on cuda and cpu, the model is on {device.type}")
    if device.type == "cpu" and not config.judge:
        return Gain(0.0, 0.0)
    where = place(machine(config.judge) if config.judge else gpu_machine())
    beside = sum(2e6 * n / (SHARE * where.machine.memory) + LAUNCH_US for n in turned)
    try:
        launches = launches_of(program, where, Options()).each
    except PlanError:
        made = plan(program, where, Options())
        libraries = sum(_inductor_us(b, where.machine) for b in made.bounds)
        return Gain(one_launch_us(made, len(made.bounds)) + beside, libraries)
    ops = [launch.bounds[0] for launch in launches]
    ours = list(map(alone_us, launches))
    theirs = [_inductor_us(b, where.machine, us) for b, us in zip(ops, ours, strict=True)]
    each = list(zip(ops, ours, theirs, strict=True))
    losers = {b.op.name: _told(us, them) for b, us, them in each if _loses(b, us, them)}
    found = Gain(sum(ours) + beside, sum(theirs), losers)
    if losers or found.ratio >= least:
        return found
    found = replace(found, ours=min(found.ours, _one_launch(program, where) + beside))
    behind = [(b.op.name, us, them) for b, us, them in each if _loses(b, us, them, 1, 0)]
    rest = sum(theirs) - sum(them for _, _, them in behind), sum(ours) - sum(us for _, us, _ in behind)
    if found.ratio >= least or rest[0] < least * rest[1]:
        return found
    return replace(found, losers={name: _told(us, them) for name, us, them in behind})


def _loses(
    b: OpInstance, ours: float, theirs: float, times: float = BEHIND, longer: float = BEHIND_US
) -> bool:
    """Whether an op had better be Inductor's; not one without which others would have to copy."""
    behind = ours > max(times * theirs, theirs + longer)
    return behind and not isinstance(b.attributes, (StridedCopyAttributes, PadAttributes, RotaryAttributes))


def _one_launch(program: Program, where: Place) -> float:
    """Of all ops; it takes forever where there is none."""
    try:
        made = plan(program, where, Options())
    except PlanError:
        return math.inf
    return one_launch_us(made, len(made.bounds))


def _inductor_us(b: OpInstance, on: Machine, ours: float = 0.0) -> float:
    """Of an op that Inductor runs: a library's kernel, and one over its result for what that cannot do. ours:
    its own launch here, which on tensor cores no library was much ahead of where both were timed."""
    rate = on.flops32 if b.dtype(0) == "float32" else on.flops16
    flops = b.kind.flops(b) * math.prod(b.grid)
    seconds = max(flops / rate, b.operand_bytes / on.memory)
    us = seconds * 1e6 / SHARE
    if isinstance(b.attributes, GroupedConvAttributes) and by_eights(b):
        us = max(us, GROUPED_US + flops * 1e6 / (GROUPED_SHARE * on.flops32))
    if on_wgmma(b, on) or by_tensor_cores(b, on):
        us = max(us, ours)
    epilogue = b.op.epilogue
    if on_wgmma(b, on) and epilogue is not None and epilogue.expression not in BIAS:
        us += 2e6 * math.prod(b.out) * element_bytes(b.result.dtype) / on.cache + LAUNCH_US
    return us + LAUNCH_US
