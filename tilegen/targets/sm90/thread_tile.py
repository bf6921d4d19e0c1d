"""An op that threads compute (tilegen.codegen.thread_op) as one of a Hopper kernel: the threads of the math
warps, while the loaders go on with the next tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilegen.codegen.thread_op import ThreadOp
from tilegen.graph.forms import Proxies
from tilegen.targets.sm90.code import Needs
from tilegen.targets.sm90.stage import Load, Loads, Map, Wait, step_waits


@dataclass(frozen=True)
class ThreadTile(ThreadOp):
    """It takes no stage of the ring: the activations' loader waits for it, and tells the math warps."""

    form: ClassVar[str] = "threads"
    maps: ClassVar[tuple[Map, ...]] = ()
    proxies: ClassVar[Proxies] = Proxies()

    def _problem(self) -> str:
        if self.bound.op.cluster > 1:
            return (
                "on sm_90a the threads of one CTA compute it, expected no cluster, not"
                f" {self.bound.op.cluster_option!r}"
            )
        return super()._problem()

    @property
    def needs(self) -> Needs:
        """It takes no stage of the ring, which goes on filling for the next tile."""
        return Needs(scratch=self.scratch_bytes)

    @property
    def range(self) -> str:
        return f"const int first = 0, last = {self.steps};" if self.a.looped else "const int first = 0;"

    @property
    def a(self) -> Loads:
        """Each step waits for its operands; what the epilogue reads is awaited before them."""
        waits = [
            *(w for n in self.waiting("step") for w in step_waits(self, n)),
            *(Wait(n, "steps", late=True) for n in self.waiting("epilogue")),
        ]
        return Loads(
            (Load(waits=tuple(waits), staged=False),) if waits else (),
            after=Load(),
            first=tuple(self.waiting("first")),
        )

    @property
    def b(self) -> Loads:
        return Loads()

    @property
    def looks_early(self) -> bool:
        """Whether a tile reads anything before it may begin, or what L1 may hold: then not before the launch
        before has ended."""
        near = any(e.stays for e in self.epilogue.operands)  # through L1
        ahead = self.held.early or (self.held.late and self.held.constant_vectors)
        return ahead or near or bool(self.gather) or self.turning
