"""The CUDA ladder with a CPU in the GPU's place: what it builds, checks and reports, all but the device itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilegen.api import compile as compile_for
from tilegen.bench import ladder, timing
from tilegen.bench.timing import Contender, Runner


def ready(c: Contender) -> Runner:
    """A graph's replay writes the same memory each time."""
    first = [t.clone() for t in tensors(c.calls[0]())]

    def run() -> None:
        for kept, new in zip(first, [tensors(call()) for call in c.calls][0], strict=True):
            kept.copy_(new)

    return Runner(run, c.check, c.captured, first, outputs=c.outputs)


def tensors(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]


class Checked:
    """A CPU kernel with the check of a CUDA one."""

    def __init__(self, kernel: Any):
        self.kernel, self.checks = kernel, 0

    def prepare(self, **weights: torch.Tensor) -> Checked:
        return Checked(self.kernel.prepare(**weights))

    def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
        return self.kernel(*arguments, out=out)

    def check(self) -> None:
        self.checks += 1


def compiled(program: Any, target: str, options: Any, exclusive: bool, lowering: str = "auto", programmatic: bool = False) -> Checked:
    """On a CPU no launch is a launch of its own: the rungs differ in name alone."""
    assert target == "cuda" and exclusive and (lowering == "streams" or not programmatic)
    return Checked(compile_for(program, "cpu", on="cpu:2", options=options, threads=2))


def stand_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ladder, "DEVICE", "cpu")
    patch.setattr(ladder.api, "compile", compiled)
    patch.setattr(ladder, "inductor", lambda traced: torch.compile(traced, backend="aot_eager", fullgraph=True, dynamic=False))
    patch.setattr(ladder, "floor_us", lambda program: 1.0)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(torch.cuda, "empty_cache", lambda: None)
    patch.setattr(timing, "ready", ready)
    patch.setattr(timing, "event_seconds", timing.host_seconds)
    patch.setattr(timing, "clock_under", lambda load: 1980)
    patch.setattr(timing, "MEASUREMENT_S", 1e-4)
