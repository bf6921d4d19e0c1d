"""What every target's templates ask about an op."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.codegen.schedule import enum, locals_text
from tilegen.ops.base import Bound
from tilegen.plan import Plan


@dataclass(frozen=True)
class OpText:
    """An op of a plan; targets add what their own templates need."""

    plan: Plan
    bound: Bound

    @property
    def name(self) -> str:
        return self.bound.op.name

    @property
    def enum(self) -> str:
        return enum(self.name)

    @property
    def locals(self) -> str:
        return locals_text(self.bound)

    @property
    def parts(self) -> int:
        return self.bound.op.parts

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.bound.grid)
