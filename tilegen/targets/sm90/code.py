"""The names of an op in a Hopper kernel: its own, or those of a body that several ops share
(shared_bodies)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tilegen.codegen.op_text import OpText, equation
from tilegen.codegen.schedule import enum


@dataclass(frozen=True)
class Needs:
    """Bytes of shared memory that an op's tiles take. overruns: how far wgmma may touch, from the start of a
    stage and of what is given."""

    stage: int = 0
    overrun: int = 0
    sums: int = 0  # of one math warpgroup, sent by the other CTA of a pair
    scratch: int = 0
    resident: int = 0  # outside of the ring: queries, which stay while keys and values pass through
    resident_overrun: int = 0


@dataclass(frozen=True)
class Code(OpText):
    """What an op's code is called, and what it calls the op's tensors.

    members: the ops that share the body, itself first; none: it has its own. numbered: whether members differ
    in their columns and steps too, which the body looks up.
    """

    members: tuple[str, ...] = field(default=(), kw_only=True)
    numbered: bool = field(default=False, kw_only=True)

    @property
    def served(self) -> tuple[str, ...]:
        return self.members or super().served

    @property
    def equations(self) -> list[str]:
        return [equation(self.plan.graph.bound(self.plan.graph.op(name))) for name in self.served]

    @property
    def locals(self) -> str:
        """The tile's coordinates, and which of the members the tile is of: by a table, unless their numbers
        rise in even steps."""
        if not self.members:
            return super().locals
        steps = {b - a for a, b in zip(self._numbers, self._numbers[1:], strict=False)}
        step = steps.pop() if len(steps) == 1 else 0
        even = f"t.op - {self.enum}" if step == 1 else f"(t.op - {self.enum}) / {step}"
        member = even if step else f"tg_member_by_op_{self.name}[t.op - {self.enum}]"
        return f"{super().locals.removesuffix(';')}, member = {member};"

    @cached_property
    def _numbers(self) -> list[int]:
        """The members' among the ops of the plan."""
        number = {op.name: n for n, op in enumerate(self.plan.graph.ops)}
        return [number[name] for name in self.members]

    @property
    def member_by_op(self) -> list[int]:
        """Of each op from the first member to the last; 0 for others."""
        first, last = self._numbers[0], self._numbers[-1]
        members = {number: n for n, number in enumerate(self._numbers)}
        return [members.get(number, 0) for number in range(first, last + 1)]

    def number(self, what: str, own: int) -> str:
        """Columns or steps, as C: looked up where members differ in them."""
        return f"tg_{what}_of_{self.name}[member]" if self.numbered else str(own)

    @property
    def seen(self) -> str:
        """Its tensors, where the kernel's are T."""
        if self.numbered:
            return f"tg_member_of_{self.name}{{T, member}}"
        return f"T.tg_of_{self.name}[member]" if self.members else "T"

    @property
    def tensors_type(self) -> str:
        if self.numbered:
            return f"tg_member_of_{self.name}"
        return f"tg_tensors_of_{self.name}" if self.members else "tg_tensors"

    @property
    def result_member(self) -> str:
        """The result among its tensors; those that its epilogue reads are called as the epilogue calls them
        where the body is shared."""
        return self.tensor_member("y", self.bound.op.result)

    def tensor_member(self, name: str, tensor: str) -> str:
        """A tensor among those that its code sees: by `name` where the body is shared."""
        return f"own().{name}" if self.numbered else name if self.members else tensor

    def map_address(self, name: str) -> str:
        """The tensor map of the first member's name, as C."""
        return f"&maps.{name}{'[member]' if self.members else ''}"

    @property
    def waits_function(self) -> str:
        """The function that makes its waits: where the body is shared, one for its members alone."""
        return f"tg_shared_waits_{self.name}" if self.waits_of else super().waits_function

    @property
    def waits_of(self) -> list[tuple[str, str]]:
        """That of each of the members that waits for anything."""
        return [(enum(name), f"tg_waits_{name}") for name in self.members if self.plan.waits_of(name)]

    @property
    def posts_function(self) -> str:
        return f"tg_shared_posts_{self.name}" if self.posts_of else super().posts_function

    @property
    def posts_of(self) -> list[tuple[str, str]]:
        return [(enum(name), f"tg_posts_{name}") for name in self.members if self.plan.posts_of(name)]
