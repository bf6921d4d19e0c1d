"""An op that the math warps of a Hopper kernel compute without tensor cores: it takes no stage of the ring, which goes on filling for the next tile."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.codegen.hopper_stage import Load, Loads, Map, Wait
from tilegen.codegen.thread_op import ThreadOp


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
        waits = [*(Wait(n, False) for n in self.waiting("step")), *(Wait(n, True) for n in self.waiting("epilogue"))]
        return Loads((Load(waits=tuple(waits), staged=False),) if waits else (), after=Load(), first=tuple(self.waiting("first")))

    @property
    def b(self) -> Loads:
        return Loads()

    @property
    def warm(self) -> list[str]:
        """Statements before a norm's tile may begin: bring what no other op writes near. The first look at a page costs an SM microseconds."""
        if self.bound.op.kind not in ("rms_norm", "layer_norm"):
            return []
        given = [n for n, o in enumerate(self.bound.op.operands) if self.bound.tensors[o.tensor].role in ("input", "weight")]
        (lo, hi), lines, each = self.box[0], [], f"64 * (int)(128 * warpgroup + thread); column < {self.columns}; column += {64 * self.THREADS}"
        for n in given:
            pointer, pitch = self.operands[n].pointer, self.operands[n].pitch
            if len(self.operands[n].shape) == 1:
                lines += [f"for (int column = {each}) tg_warm({pointer} + column);"]
            elif n == 0:
                lines += [f"for (int row = {lo}; row < {hi}; ++row)", f"  for (int column = {each}) tg_warm({pointer} + (long long)row * {pitch} + column);"]
        return lines
