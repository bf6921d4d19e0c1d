"""A program in which a size moves, at one size or another, and what the sizes of a range are planned with."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilegen.errors import PlanError
from tilegen.frontend.dims import Dim, filled
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.ops.gemm import LinearAttributes, groups
from tilegen.ops.pad import PadAttributes
from tilegen.options import Options
from tilegen.schedule.launches import whole_plan
from tilegen.schedule.moving import Ranges
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.schedule.simulate import simulate

FEW_ROWS, SOME_ROWS = 64, 256  # norms are fused up to there, weights packed up to there

Settle = Callable[[Program], Options]  # what was measured best for a program, else no options
# the lowering of a program, whose plan in one launch is this, if it is known
Lower = Callable[[Program, Plan | None], str]


@dataclass(frozen=True)
class Regime:
    """The sizes in `ranges`, and what they are planned with, at the last of them."""

    ranges: Ranges
    options: Options
    lowering: str = "persistent"

    @property
    def most(self) -> int:
        return self.ranges[-1][1]


@dataclass(frozen=True)
class Sized:
    """A program at one size or another. rows: for each of what moves."""

    program: Program
    dim: Dim
    rows: int
    place: Place
    settle: Settle
    lower: Lower

    @cached_property
    def groups(self) -> Mapping[str, int]:
        """Of each op's accumulators (ops/gemm.py, groups)."""
        graph = fuse(self.at(self.dim.most))
        return {op.name: groups(graph.bound(op)) for op in graph.ops}

    def at(self, size: int) -> Program:
        made: Program = filled(self.program, self.dim, size)
        return made

    def plan(self, size: int) -> Plan:
        """That of tg.compile at this size: of one launch, or of launches of single ops."""
        program, measured = self.at(size), self.settle(self.at(size))
        one = plan(program, self.place, measured)
        if self.lower(program, one) == "persistent":
            return one
        return whole_plan(program, self.place, replace(measured, policies=()))

    def us(self, size: int, options: Options) -> float:
        """By the simulated run; infinite where the options do not fit."""
        try:
            return simulate(plan(self.at(size), self.place, options)).makespan
        except PlanError:
            return math.inf

    def takes(self, size: int, lowering: str, options: Options) -> bool:
        """Whether there is a plan with these tiles."""
        program = self.at(size)
        try:
            if lowering == "persistent":
                plan(program, self.place, options)
            else:
                whole_plan(program, self.place, options)
        except PlanError:
            return False
        return True

    def upto(self, limits: Sequence[int]) -> list[int]:
        """The sizes with so many rows, and the largest where it has fewer."""
        sizes = sorted({n for limit in limits if 1 <= (n := limit // self.rows) < self.dim.most})
        return sizes + [self.dim.most] * (self.dim.most * self.rows <= limits[-1])


def copies_of(made: Plan, own: Collection[str]) -> set[str]:
    """The padded copies of a plan that are none of the program's own ops (tilegen.graph.pad_rows)."""
    return {b.op.result for b in made.graph.ops_of(PadAttributes) if b.op.name not in own}


def tiles_of(made: Plan, program: Program) -> Options:
    """The options that give a plan's tiles of this program again. Ops that were split, of which there are
    several in the plan, are cut anew at each size. So are linears of padded copies: one that options name is
    a matmul by threads, which has other tiles."""
    kinds = {op.name: op.kind for op in fuse(program).ops}
    copies = copies_of(made, kinds)
    split = {
        b.op.name for b in made.bounds if isinstance(b.attributes, LinearAttributes) and b.attributes.k_range
    }
    cut = [op for op in made.graph.ops if kinds.get(op.name) == op.kind and op.name not in split]
    ops = [op for op in cut if not copies & {o.tensor for o in op.operands}]
    return replace(
        Options(),
        tiles=tuple((op.name, op.tile) for op in ops),
        cluster=tuple((op.name, op.cluster_option) for op in ops if op.cluster > 1),
        pingpong=tuple((op.name, True) for op in ops if op.pingpong),
    )
