"""The CUDA ladder with a CPU in the GPU's place: what it builds, checks and reports, all but the device
itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilegen.api import compile as compile_for
from tilegen.bench import contenders, cublaslt, ladder
from tilegen.runtime import timing
from tilegen.runtime.timing import Contender, Runner


def ready(c: Contender) -> Runner:
    """A graph's replay writes the same memory each time."""
    kept = [[t.clone() for t in tensors(call())] for call in c.calls]

    def run() -> None:
        for of_set, call in zip(kept, c.calls, strict=True):
            for old, new in zip(of_set, tensors(call()), strict=True):
                old.copy_(new)

    return Runner(run, c.check, c.captured, tuple(kept), c.calls, c.launches)


def tensors(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]


@torch.fx.wrap
def on_cpu(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str, result: torch.dtype
) -> torch.Tensor:
    """cublasLt's part."""
    y = torch.nn.functional.linear(x.float(), w.float(), None if bias is None else bias.float())
    y = {
        "": lambda t: t,
        "relu": torch.relu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    }[activation](y)
    return y.to(result)


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


def compiled(
    program: Any,
    target: str,
    options: Any,
    exclusive: bool,
    lowering: str = "auto",
    programmatic: bool = False,
) -> Checked:
    """On a CPU no launch is a launch of its own: the contenders differ in name alone."""
    assert target in ("cuda", "sm_80") and (lowering == "multi_launch" or not programmatic)
    return Checked(compile_for(program, "cpu", on="cpu:2", options=options, threads=2))


def stand_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contenders, "DEVICE", "cpu")
    patch.setattr(contenders.api, "compile", compiled)
    patch.setattr(
        contenders,
        "inductor",
        lambda traced: torch.compile(traced, backend="aot_eager", fullgraph=True, dynamic=False),
    )
    patch.setattr(cublaslt, "linear", on_cpu)
    patch.setattr(ladder, "floor_us", lambda program: 1.0)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(torch.cuda, "empty_cache", lambda: None)
    patch.setattr(timing, "ready", ready)
    patch.setattr(timing, "event_seconds", timing.host_seconds)
    patch.setattr(timing, "clock_under", lambda load: 1980)
    patch.setattr(timing, "MEASUREMENT_S", 1e-4)
