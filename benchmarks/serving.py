"""A batch that moves at every step: eight gated layers, each one kernel for all batches, on this GPU.

python -m benchmarks.serving [DIR]

The batch is drawn from 1 … 64 at each of 2,000 steps, after each was there three times. Told are the host's
time of a layer's call, what was compiled and what memory was asked of the driver meanwhile, and the largest
error of any step against float32; and beside it the same layers as calls of PyTorch, five a layer, and one
small op of PyTorch's own in a layer's place, what a launch costs this host at least; in turns of 100 steps.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tilegen as tg
import tilegen.runtime.nvrtc
from benchmarks.workloads import tag
from tilegen.bench.compare import heading, save
from tilegen.bench.environment import environment

ROOT = Path(__file__).resolve().parent
LAYERS, STEPS, MOST, WIDTH, INNER, TURN = 8, 2000, 64, 4096, 11008, 100


@tg.spec
def gated(M=64, H=WIDTH, I=INNER, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    gate, up = tg.linear(x, tg.weight("w1", (2 * I, H), dtype), name="gate_up").chunk(2)
    h = tg.mul(tg.silu(gate), up, name="h")
    return tg.add(tg.linear(h, tg.weight("w2", (H, I), dtype), name="down"), x, name="y")


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


@torch.no_grad()
def trace() -> dict[str, Any]:
    torch.manual_seed(0)
    layers = weights()
    modules = [tg.module(gated(M=tg.dim("M", max=MOST)), **w) for w in layers]
    rows = torch.randn(MOST, WIDTH, device="cuda").bfloat16()
    wanted = exact(rows, layers)
    kept = torch.empty(STEPS, MOST, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled: list[int] = []
    compile_cuda = tilegen.runtime.nvrtc.compile_cuda
    tilegen.runtime.nvrtc.compile_cuda = lambda *a, **k: compiled.append(0) or compile_cuda(*a, **k)
    host: dict[str, list[float]] = {"": [], "torch_": [], "one_op_": []}
    scratch = torch.zeros(1, device="cuda")

    def step(
        n: int, batch: int, run: Sequence[Callable[[torch.Tensor], torch.Tensor]], host: list[float]
    ) -> None:
        x = rows[:batch]
        if n % 64 == 0:
            torch.cuda.synchronize()  # so that no queue is full
        for layer in run:
            start = time.perf_counter()
            x = layer(x)
            host.append(time.perf_counter() - start)
        kept[n, :batch].copy_(x)

    def one_op(x: torch.Tensor) -> torch.Tensor:
        scratch.zero_()
        return x

    in_torch = [functools.partial(called, **w) for w in layers]
    runs = {"torch_": in_torch, "one_op_": [one_op] * LAYERS, "": modules}
    for batch in [*range(1, MOST + 1)] * 3:
        step(0, batch, in_torch, [])
        step(0, batch, modules, [])
    compiled.clear()
    asked = torch.cuda.memory_stats()["num_device_alloc"]
    batches = torch.randint(1, MOST + 1, (STEPS,)).tolist()
    for first in range(0, STEPS, TURN):
        for name, run in runs.items():
            torch.cuda.synchronize()
            for n in range(first, first + TURN):
                step(n, batches[n], run, host[name])
    asked = torch.cuda.memory_stats()["num_device_alloc"] - asked
    found = [(kept[n, :b].float() - wanted[:b]).norm() / wanted[:b].norm() for n, b in enumerate(batches)]
    for module in modules:
        module.kernel.check()
    told = {}
    for name, times in host.items():
        us = sorted(1e6 * t for t in times)
        told[f"{name}host_us"] = round(statistics.median(us), 2)
        told[f"{name}host_us_p99"] = round(us[int(0.99 * len(us))], 2)
    return {
        "layers": LAYERS,
        "steps": STEPS,
        "batches": f"1 … {MOST}",
        **told,
        "compilations": len(compiled),
        "device_allocations": asked,
        "largest_error": float(torch.stack(found).max()),
    }


def main(folder: Path) -> None:
    row, found = trace(), environment()
    print("  ".join(f"{k} {v}" for k, v in row.items()))
    save(
        {**heading("python -m benchmarks.serving", found), "rows": [row]},
        folder / f"serving-{tag(found['device'])}.json",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results")
