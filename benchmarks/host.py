"""What a call costs the host, and what compiling costs, cold and from the cache: GPT-3's feed-forward block
on this GPU.

python -m benchmarks.host [DIR]

A call's cost is the host's time of enqueueing it, torch's own three calls beside ours in the same loop.
Compiling is timed in processes of their own, after imports and CUDA's set-up: first with an empty cache
folder, then with the one that it has filled; there a second size too, when all modules are loaded.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from benchmarks.workloads import tag
from tilegen.bench.environment import environment
from tilegen.bench.results import heading, save
from tilegen.frontend.loader import load_program
from tilegen.runtime import timing
from tilegen.runtime.data import random_arguments

ROOT = Path(__file__).resolve().parent
MLP = str(ROOT.parent / "examples" / "gpt3_mlp.py")
CALLS, ROUNDS = 20, 101  # few enough calls in a row that the GPU's queue never fills


def program(rows: int = 16) -> tg.Program:
    return load_program(MLP, {"M": rows})


def contenders() -> dict[str, Callable[[], Any]]:
    mlp = program()
    kernel = tg.compile(mlp, "cuda")
    x, w1, w2 = random_arguments(mlp, device="cuda")
    bound, out = kernel.prepare(w1=w1, w2=w2), torch.empty_like(x)
    moving = tg.compile(load_program(MLP, {"M": tg.dim("M", max=64)}), "cuda").prepare(w1=w1, w2=w2)
    layer = tg.module(mlp, w1=w1, w2=w2)
    operators = [getattr(torch.ops.tilegen, k.operator).default for k in (kernel, bound)]
    linear, gelu = torch.nn.functional.linear, functools.partial(torch.nn.functional.gelu, approximate="tanh")
    return {
        "torch: linear, gelu, linear": lambda: linear(gelu(linear(x, w1)), w2),
        "kernel(x, w1, w2)": lambda: kernel(x, w1, w2),
        "bound(x)": lambda: bound(x),
        "bound(x, out=y)": lambda: bound(x, out=out),
        "moving(x)": lambda: moving(x),
        "module(x)": lambda: layer(x),
        "operator(x, w1, w2)": lambda: operators[0](x, w1, w2),
        "operator of bound(x)": lambda: operators[1](x),
    }


def enqueueing(call: Callable[[], Any], count: int) -> float:
    """The host's seconds, beginning with an idle GPU."""
    torch.cuda.synchronize()
    return timing.host_seconds(call, count)


def calls() -> list[dict[str, Any]]:
    with torch.no_grad():
        runs = contenders()
        times = timing.interleave(runs, dict.fromkeys(runs, CALLS), enqueueing, ROUNDS)
    us = {name: [1e6 * t for t in found] for name, found in times.items()}
    return [
        {
            "call": name,
            "host_us": round(statistics.median(t), 2),
            "least_us": round(min(t), 2),
            "rounds": ROUNDS,
        }
        for name, t in us.items()
    ]


def compile_seconds(rows: int) -> float:
    """Of tg.compile and of loading the kernel's code."""
    mlp = program(rows)
    start = time.perf_counter()
    tg.compile(mlp, "cuda")
    return time.perf_counter() - start


def compiles() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for what in ("cold", "from the cache"):
            command = [sys.executable, "-m", "benchmarks.host", "--compile"]
            answer = subprocess.run(
                command,
                env={**os.environ, "TILEGEN_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            first, second = (round(float(s), 4) for s in answer.stdout.split())
            rows.append({"compile": what, "seconds": first, "second_size": second})
    return rows


def main() -> None:
    if "--compile" in sys.argv:
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        print(compile_seconds(16), compile_seconds(64))
        return
    rows = [*calls(), *compiles()]
    for row in rows:
        print("  ".join(f"{k} {v}" for k, v in row.items()))
    out, found = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results", environment()
    save(
        {**heading("python -m benchmarks.host", found), "rows": rows},
        out / f"host-{tag(found['device'])}.json",
    )


if __name__ == "__main__":
    main()
