"""An op that threads compute (tilegen.codegen.thread_op) as one of a portable kernel: all threads of the
CTA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilegen.analysis.regions import to_c
from tilegen.arch import gpus
from tilegen.codegen.cuda_op import refuse
from tilegen.codegen.op_text import OpText
from tilegen.codegen.thread_op import ThreadOp
from tilegen.targets.sm80.block import SLOT


@dataclass(frozen=True)
class Need:
    """A wait of thread 0 for an operand at a step of a CTA rank, as C; end: one for each step from it to
    before that one."""

    operand: int
    cta_rank: int | str
    step: str
    end: str = ""


def needs(op: OpText, kinds: Sequence[str]) -> Iterator[Need]:
    """The waits of these kinds (tilegen.ops.base.Access) for all that a tile reads, in the order of steps."""
    cluster, steps = op.bound.op.cluster_shape, to_c(op.bound.steps)
    for cta_rank in range(cluster.size):
        first, end = "0", steps
        if cluster.k > 1:
            first, end = (f"{n} * ({steps}) / {cluster.k}" for n in (cta_rank, cta_rank + 1))
        for kind in kinds:
            for operand in op.waiting(kind):
                if kind == "step":
                    many = op.stepped(operand) or cluster.k > 1
                    yield Need(operand, cta_rank, first, end if many else "")
                else:
                    yield Need(operand, cta_rank, "-1" if kind == "first" else steps)


@dataclass(frozen=True)
class ThreadTile(ThreadOp):
    """It waits for all that its steps and its epilogue read before it begins."""

    architecture: str

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.bound, self.architecture, self._no_form())

    @property
    def room(self) -> int:
        return gpus.architecture(self.architecture).shared_block - SLOT

    def _no_form(self) -> str:
        if self.scratch_bytes > self.room:
            room = f"expected at most {self.room:,}"
            return f"the tile takes {self.scratch_bytes:,} bytes of shared memory, {room}"
        return ""

    @property
    def shared_bytes(self) -> int:
        return self.scratch_bytes

    @property
    def needs(self) -> Iterator[Need]:
        """The waits, in the order of steps."""
        return needs(self, ("first", "step", "epilogue"))
