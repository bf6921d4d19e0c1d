"""How long planning takes, on this machine's CPU: cold, in a process with its imports, and warm, from the
cache. Needs no GPU.

python -m benchmarks.planning [-o FILE.json]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilegen as tg
from benchmarks.workloads import EXAMPLES, example
from tilegen.bench.contenders import knobs
from tilegen.bench.results import cpu_environment, heading, save

COLD = """
import time
start = time.perf_counter()
import tilegen as tg
from tilegen.frontend.loader import load_program
made = tg.plan(load_program({path!r}, {sizes!r}), "h200", **{options!r})
print(time.perf_counter() - start, made.order.count)
"""
CASES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("gpt3_mlp", {"M": 2048}, {"tiles": {"up": (128, 256, 64), "down": (128, 256, 64)}}),
    ("llama_layer", {}, {}),
    ("resnet38", {}, {}),
)


def cold(name: str, sizes: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    code = COLD.format(path=str(EXAMPLES / f"{name}.py"), sizes=sizes, options=options)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, tiles = done.stdout.split()
    return {
        "cold": name,
        "tiles": int(tiles),
        "seconds": round(float(seconds), 3),
        "process": round(time.perf_counter() - start, 3),
    }


def warm() -> dict[str, Any]:
    """tg.compile of a plan and binary that are in the cache."""
    program = example("gpt3_mlp", M=64, H=512, I=256, dtype="float32")
    times = []
    with tempfile.TemporaryDirectory() as folder, knobs(TILEGEN_CACHE_DIR=folder):
        tg.compile(program, "cpu", on="cpu:2")
        for _ in range(5):
            start = time.perf_counter()
            tg.compile(program, "cpu", on="cpu:2")
            times.append(time.perf_counter() - start)
    return {"warm": "gpt3_mlp, from the cache", "seconds": round(min(times), 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        "planning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("-o", "--out", type=Path)
    o = p.parse_args(arguments)
    rows = []
    for row in (*(cold(*case) for case in CASES), warm()):
        print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
        rows.append(row)
    if o.out:
        save({**heading("python -m benchmarks.planning", cpu_environment()), "rows": rows}, o.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
