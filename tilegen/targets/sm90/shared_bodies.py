"""Convolutions of a Hopper kernel that differ in their tensors alone, as those of a residual stage do, share their code.

Where an op has a tile or two for each SM, code is a cost of its own: what an SM runs for the first time comes from L2 or memory, a few hundred bytes at a
time, between the last tile of one op and the first of the next. And a net of forty convolutions compiles as fast as one of ten.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilegen.codegen.cuda_op import TYPES
from tilegen.targets.sm90.attention import HopperAttention
from tilegen.targets.sm90.conv2d import HopperConv
from tilegen.targets.sm90.op import HopperOp
from tilegen.targets.sm90.stage import BoxMap, Map
from tilegen.targets.sm90.threads import HopperThreads

Op = HopperOp | HopperAttention | HopperThreads


@dataclass(frozen=True)
class Family:
    """Ops that share their code; most are alone."""

    members: tuple[Op, ...]

    @cached_property
    def code(self) -> Op:
        """The op that the code is generated from."""
        first = self.members[0]
        return replace(first, twins=tuple(op.name for op in self.members)) if self.shared and isinstance(first, HopperConv) else first

    @property
    def shared(self) -> bool:
        return len(self.members) > 1

    @property
    def maps(self) -> tuple[tuple[Map | BoxMap, ...], ...]:
        """Each tensor map of the code, as all members have it."""
        return tuple(zip(*(op.maps for op in self.members), strict=True))

    @property
    def tensors(self) -> tuple[tuple[tuple[str, str, str], ...], ...]:
        """Of each member of a shared code: (name there, type, tensor) of its result and of what its epilogue reads. The rest comes through maps."""
        shared = [op for op in self.members if self.shared and isinstance(op, HopperConv)]
        return tuple(
            (("y", op.result_type, op.result_name), *((e.name, TYPES[e.dtype], e.tensor) for e in op.epilogue.operands)) for op in shared
        )


def families(ops: Sequence[Op]) -> tuple[Family, ...]:
    """The ops by the code that they share, in the order of their first. Their numbers rise in even steps, so that a tile's op says which of them it is of."""
    found: list[list[int]] = []
    last: dict[Hashable, list[int]] = {}
    for n, op in enumerate(ops):
        likeness = likeness_of(op)
        family = last.get(likeness, [])
        if family and (len(family) == 1 or n - family[-1] == family[1] - family[0]):
            family.append(n)
            continue
        found.append([n])
        last[likeness] = found[-1]
    return tuple(Family(tuple(ops[n] for n in family)) for family in found)


def likeness_of(op: Op) -> Hashable:
    """All that the code of an op depends on but for its tensors and waits; of ops that share no code, the op."""
    if not isinstance(op, HopperConv):
        return op.name
    b = op.bound
    operands = tuple(replace(o, tensor="") for o in b.op.operands)
    shapes: tuple[Any, ...] = tuple((t.dtype, t.plan_shape) for t in (b.result, *(b.tensors[o.tensor] for o in b.op.operands)))
    epilogue = op.held, op.holds_late, op.epilogue_is_older, tuple(e.stays for e in op.epilogue.operands)
    return replace(b.op, name="", result="", operands=operands), shapes, epilogue
