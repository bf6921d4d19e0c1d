"""Contenders side by side: interleaved rounds, medians, the error beside each time, and a result file."""

from __future__ import annotations

import functools
import json
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilegen
from tilegen import api
from tilegen.bench.baselines import eager
from tilegen.data import random_arguments, relative_error
from tilegen.errors import PlanError
from tilegen.plan import Plan
from tilegen.planner import Options
from tilegen.spec import DTYPES, Program


@dataclass(frozen=True)
class Row:
    """One contender at one size. us: median over rounds; spread: (max - min) / median; error: relative Frobenius to float32 torch."""

    workload: str
    sizes: dict[str, Any]
    variant: str
    us: float
    spread: float
    rounds: int
    error: float
    tflops: float
    tbs: float
    floor_us: float | None = None  # what the machine's ceilings allow, where they are known


def compare(
    program: Program, options: Options, threads: int | None, rounds: int = 5, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """The CPU ladder: torch eager; tilegen with one semaphore per tensor (a barrier); tilegen. Same threads, random data, interleaved."""
    if program.symbolic:
        raise PlanError(f"{program.name}: sizes are left open; comparing needs all of them")
    count = threads or torch.get_num_threads()
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        arguments = random_arguments(program)
        fresh = [a.clone() for a in arguments]
        expected = api.reference(program, *arguments)
        barrier = Options(options.tiles, (("*", "kernel"),), options.split, options.parts, options.order, options.placement)
        kernels = {}
        for name, o in {"tilegen-barrier": barrier, "tilegen": options}.items():
            progress(f"{program.name} {name}")
            kernels[name] = api.compile(program, on=f"cpu:{count}", options=o, threads=count)
        contenders: dict[str, Callable[[], Any]] = {"eager": eager(program, fresh)}
        contenders |= {name: functools.partial(k, *fresh) for name, k in kernels.items()}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        errors = {name: error_of(call(), expected) for name, call in contenders.items()}  # the first run warms up
        for n in range(rounds):
            progress(f"{program.name} round {n + 1} of {rounds}")
            for name, call in contenders.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    flops, moved = work(kernels["tilegen"].plan)
    sizes = {k: v for k, v in program.sizes if isinstance(v, int)}
    return [row(program.name, sizes, name, t, errors[name], flops, moved) for name, t in times.items()]


def row(workload: str, sizes: dict[str, Any], variant: str, seconds: Sequence[float], error: float, flops: float, moved: float) -> Row:
    median = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / median
    return Row(
        workload,
        sizes,
        variant,
        round(1e6 * median, 2),
        round(spread, 3),
        len(seconds),
        error,
        flops / median / 1e12,
        moved / median / 1e12,
    )


def error_of(result: Any, expected: Any) -> float:
    """The largest error over the outputs; states that the reference gives after them are left out."""
    results = result if isinstance(result, tuple) else (result,)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    return max(relative_error(r, w) for r, w in zip(results, wanted, strict=False))


def work(plan: Plan) -> tuple[float, float]:
    """(FLOPs of the multiplying ops, bytes of arguments and outputs)."""
    flops = 0.0
    for b in plan.bounds:
        if b.op.kind in ("linear", "matmul", "conv2d", "attention"):
            inner = {
                "linear": lambda b=b: b.shape(0)[1] * b.groups,
                "matmul": lambda b=b: b.k,
                "conv2d": lambda b=b: math.prod(b.shape(1)[1:]),
                "attention": lambda b=b: 2 * b.k_len,
            }[b.op.kind]()
            flops += 2.0 * math.prod(b.out) * inner
    outside = [t for t in plan.graph.tensors.values() if t.role in ("input", "weight", "state", "output")]
    return flops, float(sum(math.prod(t.plan_shape) * DTYPES[t.dtype] for t in outside))


def result_file(rows: Sequence[Row], run: str) -> dict[str, Any]:
    """The JSON of benchmarks/results: enough to know what was measured, with what, on what."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or None,
        "device": cpu_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "tilegen": tilegen.__version__},
        "run": run,
        "clocks_mhz": None,
        "rows": [asdict(r) for r in rows],
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine()
    )


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'workload':<18}{'sizes':<26}{'variant':<18}{'µs':>12}{'spread':>8}{'error':>10}{'TFLOP/s':>9}{'eager / it':>12}"]
    for r in rows:
        base = next(x.us for x in rows if (x.workload, x.sizes, x.variant) == (r.workload, r.sizes, "eager"))
        sizes = " ".join(f"{k}={v}" for k, v in list(r.sizes.items())[:3])
        lines.append(
            f"{r.workload:<18}{sizes:<26}{r.variant:<18}{r.us:>12.1f}{r.spread:>8.1%}{r.error:>10.1e}{r.tflops:>9.3f}{base / r.us:>12.2f}"
        )
    return "\n".join(lines)


def save(data: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
