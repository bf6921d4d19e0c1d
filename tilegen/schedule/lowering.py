"""One launch of all ops with tile sync, or a launch of each: which the cost model says is faster.

    one launch = longer · (makespan + launch + start) + entry - hidden · (ops - 1), of whole nets of many rows
                 nothing is hidden; entry: of convolutions
    launches   = Σ over ops of the op alone

In one launch all ops have the clusters and the ring that suit them together; in launches of their own each
has those that suit it. The host starts many launches as one graph (runtime/launch_graph.py), so it does not
matter here how many there are. docs/perf-log.md says how often the choice was right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.errors import PlanError
from tilegen.frontend.program import Program
from tilegen.graph import attention_time
from tilegen.graph.cost_model import on_wgmma, product_time
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.product_time import rates_of
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.schedule.simulate import simulate

# ops of a launch that hide anything; of more, where the weights that they load ahead are what takes time
MOST_HIDDEN, FEW_ROWS = 20, 64
# fitted to programs that were timed both ways (benchmarks.calibrate measure --mixed and --nets)
LEAST_US = 2.8  # from one launch to the next, however little it does
LAUNCH_US, START_US = 0.14, 1.4  # of a launch of an op by threads; and besides where all SMs have a CTA
# of an op after another in one launch, which the simulator does not see; of more than MANY_ROWS rows; of
# convolutions, of which a launch takes longer to begin and end, too
HIDDEN_US, HIDDEN_OF_MANY_US, MANY_ROWS = 1.4, 0.7, 256
HIDDEN_OF_CONVOLUTIONS_US, ENTRY_OF_CONVOLUTIONS_US = 1.8, 1.5
LONGER, LONGER_OF_CONVOLUTIONS = 1.08, 1.06  # of its modelled time one launch takes


@dataclass(frozen=True)
class Lowering:
    """persistent or multi_launch, and why."""

    name: str
    reason: str


def modelled_lowering(program: Program, place: Place, made: Plan | None = None) -> Lowering:
    """That of a program for which nothing is asked. made: the plan of one launch, if known."""
    graph = fuse(program)
    if program.symbolic:
        return Lowering("persistent", "sizes are left open")
    if len(graph.ops) == 1:
        return Lowering("persistent", "there is one op")
    try:
        launches = launches_of(program, place, Options()).each
    except PlanError as error:
        return Lowering("persistent", f"an op has no launch of its own: {error}")
    try:
        made = made or plan(program, place, Options())
    except PlanError as error:
        return Lowering("multi_launch", f"there is no one launch of all ops: {error}")
    us, one = sum(map(alone_us, launches)), one_launch_us(made, len(launches))
    told = f"by the model {len(launches)} launches of single ops take {us:.1f} µs, one launch {one:.1f} µs"
    return Lowering("multi_launch" if us < one else "persistent", told)


def one_launch_us(made: Plan, ops: int) -> float:
    """A launch of all ops, of which there are so many."""
    rates, hidden = rates_of(made.machine), _hidden_us(made, ops) * (ops - 1)
    us = simulate(made).makespan + rates.launch + rates.start
    if made.graph.ops_of(ConvAttributes):
        return us * LONGER_OF_CONVOLUTIONS + ENTRY_OF_CONVOLUTIONS_US - hidden
    return us * LONGER - hidden


def _hidden_us(made: Plan, ops: int) -> float:
    """Of each op but the first."""
    rows = [math.prod(map(int, b.out[:-1])) for b in made.bounds if on_wgmma(b, made.machine)]
    if ops > MOST_HIDDEN and (not rows or max(rows) > FEW_ROWS):
        return 0.0
    if made.graph.ops_of(ConvAttributes):
        return HIDDEN_OF_CONVOLUTIONS_US
    return HIDDEN_OF_MANY_US if rows and max(rows) > MANY_ROWS else HIDDEN_US


def alone_us(launch: Plan) -> float:
    """A launch of a single op, programmatic; a convolution by its formula alone, as the ops of one launch are
    timed, a linear as its config is chosen."""
    if on_wgmma(b := launch.bounds[0], launch.machine):
        time = product_time(b, launch.machine)
        linear = isinstance(b.attributes, LinearAttributes)
        return max(LEAST_US, time.alone(time.stages) if linear else time.formula(time.stages))
    if attention_time.by_tensor_cores(b, launch.machine):
        return max(LEAST_US, attention_time.alone_us(b, launch.machine))
    busy = launch.order.count * launch.cluster / launch.machine.sms
    return max(LEAST_US, simulate(launch).makespan + LAUNCH_US + START_US * min(1.0, busy))
