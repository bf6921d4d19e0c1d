"""An op that the math warps of a Hopper kernel compute without tensor cores: it takes no stage of the ring, which goes on filling for the next tile."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.targets.sm90.stage import Load, Loads, Map, Wait
from tilegen.targets.sm90.thread_op import ThreadOp


@dataclass(frozen=True)
class HopperThreads(ThreadOp):
    """A ThreadOp among the roles of a Hopper kernel: it needs no shared memory of the ring, no maps, no result buffers."""

    form = "threads"
    stage_bytes = overrun = sums_bytes = b_at = 0
    staged = exchanges = splits_columns = packed = False
    multicast = a_policy = b_policy = ""
    maps: tuple[Map, ...] = ()

    @property
    def range(self) -> str:
        return f"const int first = 0, last = {self.steps};"

    @property
    def a(self) -> Loads:
        """Each step waits for its operands, the last one also for what the epilogue reads."""
        waits = [*(Wait(n, "each") for n in self.waiting("step")), *(Wait(n, "last") for n in self.waiting("epilogue"))]
        return Loads((Load(waits=tuple(waits), staged=False),) if waits else (), after=Load(), first=tuple(self.waiting("first")))

    @property
    def b(self) -> Loads:
        return Loads()

    @property
    def looks_early(self) -> bool:
        """Whether a tile reads anything before it may begin, or what L1 may hold: then not before the launch before has ended."""
        near = any(e.stays for e in self.epilogue.operands)  # through L1
        return self.early or near or bool(self.gather) or self.bound.op.kind == "rope" or self.turns
