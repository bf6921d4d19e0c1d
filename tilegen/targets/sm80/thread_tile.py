"""An op that threads compute (tilegen.codegen.thread_op) as one of a portable kernel: all threads of the CTA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilegen.codegen.cuda_op import refuse
from tilegen.codegen.thread_op import ThreadOp
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes, CombineAttributes


@dataclass(frozen=True)
class Need:
    """A wait of thread 0 for an operand at a step of a CTA rank; last: one for each step from it to that one."""

    operand: int
    cta_rank: int
    step: int
    last: int | None = None


@dataclass(frozen=True)
class ThreadTile(ThreadOp):
    """It waits for all that its steps and its epilogue read before it begins."""

    architecture: str

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.bound, self.architecture, self._no_form())

    def _no_form(self) -> str:
        match self.bound.attributes:
            case AttentionAttributes() | CombineAttributes():
                return "no template for attention yet"
            case AppendAttributes(at=at) if at < 0:
                return "it does not tell the host where a position leaves no room in a cache"
        return ""

    @property
    def shared_bytes(self) -> int:
        return self.scratch_bytes

    @property
    def needs(self) -> Iterator[Need]:
        """The waits, in the order of steps."""
        cluster, steps = self.bound.op.cluster_shape, int(self.bound.steps)
        for cta_rank in range(cluster.size):
            for operand in self.waiting("first"):
                yield Need(operand, cta_rank, -1)
            first, end = 0, steps
            if cluster.k > 1:
                first, end = cta_rank * steps // cluster.k, (cta_rank + 1) * steps // cluster.k
            for operand in self.waiting("step") if end > first else ():
                yield Need(
                    operand, cta_rank, first, end - 1 if self.stepped(operand) and end - 1 > first else None
                )
            for operand in self.waiting("epilogue"):
                yield Need(operand, cta_rank, steps)
