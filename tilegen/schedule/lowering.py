"""One launch of all ops with tile sync, or a launch of each: which the cost model says is faster.

    one launch = makespan + launch + start        launches = Σ over ops of the op alone, cut as is best for it

It is asked of few linears alone, which it was calibrated for. Of the 441 drawn feed-forward blocks that the
sweeps of benchmarks.calibrate timed both ways, the way taken so is slower than the other by 1.2 % on average,
launches always by 1.1 %, one launch always by 12 %. In one launch all ops have the clusters and the ring that
suit them together; in launches of their own each has those that suit it.
"""

from __future__ import annotations

from tilegen.frontend.program import Program
from tilegen.graph.cost_model import on_wgmma
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.linear_time import RATES
from tilegen.options import Options
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.schedule.simulate import simulate

MOST_LAUNCHES = 4  # each costs the host as much as a call


def modelled_lowering(program: Program, place: Place, made: Plan | None = None) -> str:
    """persistent or multi_launch, where nothing is asked for. made: the plan of one launch, if known."""
    graph = fuse(program)
    known = not program.symbolic and all(on_wgmma(graph.bound(op), place.machine) for op in graph.ops)
    launches = launches_us(graph, place) if known and 1 < len(graph.ops) <= MOST_LAUNCHES else 0.0
    if not launches:
        return "persistent"
    one = simulate(made or plan(program, place, Options())).makespan + RATES.launch + RATES.start
    return "multi_launch" if launches < one else "persistent"


def launches_us(graph: Graph, place: Place) -> float:
    """All ops one after the other, each in a launch of its own; 0 where the target has no config for one."""
    found = [place.forms.choose(graph.alone(op), place.machine).get(op.name) for op in graph.ops]
    return sum(c.us for c in found if c is not None) if all(found) else 0.0
