"""A batch that moves at every step: eight gated layers, for all batches, on this GPU.

python -m benchmarks.serving [DIR]

The batch is drawn from 1 … 64 at each of 2,000 steps, after each was there three times. The layers are eight
modules, each for all batches, called one by one; and one module of all eight, launched as the cost model has
it, and in one launch, which asks least of the host. Told are the host's time of a call and of a step by the
number of layers, what was compiled and what memory was asked of the driver meanwhile, and the largest error
of any step against float32; beside them the same layers as calls of PyTorch, five a layer, and one small op
of PyTorch's own in a layer's place, what a launch costs this host at least; in turns of 500 steps, since the
first of a turn finds its code out of the host's caches, which is no part of a trace.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tilegen as tg
from benchmarks.workloads import tag
from tilegen.bench.environment import environment
from tilegen.bench.results import heading, save
from tilegen.kernels.moving import MovingKernel
from tilegen.runtime import timing
from tilegen.targets import cubin

ROOT = Path(__file__).resolve().parent
LAYERS, STEPS, MOST, WIDTH, INNER, TURN = 8, 2000, 64, 4096, 11008, 500
QUEUE = 250  # launches after which the GPU's queue is emptied, before a call has to wait for it


@tg.spec
def gated(M=64, H=WIDTH, I=INNER, layers=1, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    for n in range(layers):
        w1, w2 = tg.weight(f"w1_{n}", (2 * I, H), dtype), tg.weight(f"w2_{n}", (H, I), dtype)
        gate, up = tg.linear(x, w1, name=f"gate_up{n}").chunk(2)
        h = tg.mul(tg.silu(gate), up, name=f"h{n}")
        x = tg.add(tg.linear(h, w2, name=f"down{n}"), x, name=f"y{n}")
    return x


def weights() -> list[dict[str, torch.Tensor]]:
    shapes = {"w1": (2 * INNER, WIDTH), "w2": (WIDTH, INNER)}
    return [
        {n: (torch.randn(s, device="cuda") * s[1] ** -0.5).bfloat16() for n, s in shapes.items()}
        for _ in range(LAYERS)
    ]


def exact(x: torch.Tensor, layers: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """All layers in float32."""
    x = x.float()
    for w in layers:
        gate, up = (x @ w["w1"].float().T).chunk(2, dim=-1)
        x = (F.silu(gate) * up) @ w["w2"].float().T + x
    return x


def called(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """A layer as PyTorch is written."""
    gate, up = F.linear(x, w1).chunk(2, dim=-1)
    return torch.addmm(x, F.silu(gate) * up, w2.T)


Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Contender:
    """The layers as so many calls, of at most so many launches each; the host's seconds of each call, step by
    step. right: whether it computes the layers."""

    name: str
    calls: Sequence[Call]
    launches: int
    right: bool = True
    steps: list[list[float]] = field(default_factory=list)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        seconds = []
        for call in self.calls:
            start = time.perf_counter()
            x = call(x)
            seconds.append(time.perf_counter() - start)
        self.steps.append(seconds)
        return x

    def told(self) -> dict[str, float]:
        """Medians and 99th percentiles in µs: of a call, and of a step by the number of layers."""
        calls = [t for step in self.steps for t in step]
        layers = [sum(step) / LAYERS for step in self.steps]
        return {
            f"{what}_us{name}": round(1e6 * of(times), 2)
            for what, times in (("call", calls), ("layer", layers))
            for name, of in (("", statistics.median), ("_p99", p99))
        }


def error(found: torch.Tensor, wanted: torch.Tensor, batch: int) -> torch.Tensor:
    """Of the first rows, against float32."""
    return (found[:batch].float() - wanted[:batch]).norm() / wanted[:batch].norm()


def p99(times: Sequence[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


def contenders(layers: list[dict[str, torch.Tensor]]) -> list[Contender]:
    batch, scratch = tg.dim("M", max=MOST), torch.zeros(1, device="cuda")

    def one_op(x: torch.Tensor) -> torch.Tensor:
        scratch.zero_()
        return x

    def modules(name: str, each: Sequence[Sequence[dict[str, torch.Tensor]]], **options: str) -> Contender:
        made = []
        for of in each:
            named = {f"{name}_{n}": w[name] for n, w in enumerate(of) for name in w}
            made.append(tg.module(gated(M=batch, layers=len(of)), options=options, **named))
        return Contender(name, made, launches(made[0].kernel))

    return [
        Contender("torch", [functools.partial(called, **w) for w in layers], 5),
        Contender("one op of torch", [one_op] * LAYERS, 1, right=False),
        modules("a module for each layer", [[w] for w in layers]),
        modules("one module", [layers]),
        modules("one module in one launch", [layers], lowering="persistent"),
    ]


def launches(kernel: MovingKernel) -> int:
    """The most of a call at any size."""
    return max(timing.launch_count(r.largest) for r in kernel.regimes)


@torch.no_grad()
def trace() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    layers = weights()
    rows = torch.randn(MOST, WIDTH, device="cuda").bfloat16()
    wanted = exact(rows, layers)
    kept = torch.empty(STEPS, MOST, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled: list[int] = []
    compile_cuda = cubin.compile_cuda

    def counted(*given: Any, **named: Any) -> Any:
        compiled.append(0)
        return compile_cuda(*given, **named)

    cubin.compile_cuda = counted
    found = contenders(layers)
    for batch in [*range(1, MOST + 1)] * 3:
        for contender in found:
            contender.run(rows[:batch])
    for contender in found:
        contender.steps.clear()
    batches = torch.randint(1, MOST + 1, (STEPS,)).tolist()
    told: dict[str, dict[str, Any]] = {c.name: {"compilations": 0, "device_allocations": 0} for c in found}
    errors: dict[str, list[torch.Tensor]] = {c.name: [] for c in found}
    for first in range(0, STEPS, TURN):
        turn = range(first, first + TURN)
        for contender in found:
            torch.cuda.synchronize()
            compiled.clear()
            asked = torch.cuda.memory_stats()["num_device_alloc"]
            for n in turn:
                if n % (QUEUE // (contender.launches * len(contender.calls) + 1)) == 0:
                    torch.cuda.synchronize()
                kept[n, : batches[n]].copy_(contender.run(rows[: batches[n]]))
            row = told[contender.name]
            row["compilations"] += len(compiled)
            row["device_allocations"] += torch.cuda.memory_stats()["num_device_alloc"] - asked
            errors[contender.name] += [error(kept[n], wanted, batches[n]) for n in turn]
    for contender in found:
        for call in contender.calls:
            if isinstance(call, tg.module):
                call.kernel.check()
    return [
        {
            "contender": c.name,
            "launches": c.launches,
            **c.told(),
            **told[c.name],
            "largest_error": float(torch.stack(errors[c.name]).max()) if c.right else None,
        }
        for c in found
    ]


def main(folder: Path) -> None:
    rows, found = trace(), environment()
    for row in rows:
        print("  ".join(f"{k} {v}" for k, v in row.items()))
    save(
        {**heading("python -m benchmarks.serving", found), "rows": rows},
        folder / f"serving-{tag(found['device'])}.json",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results")
