"""tilegen on cuSync's MLP shapes, its own kernel and the portable one, beside cuBLAS in a CUDA graph, on random inputs and on constant ones.

python benchmarks/cusync.py -o benchmarks/results/cusync-h200.json

cuSync's own kernels (CUTLASS, mma.sync) ran on constant inputs, which take less power, so clocks stay higher: its times are to be held against the constant
ones of the portable kernel, which multiplies with the same instructions. CUSYNC holds its best policy's µs on an H200, each shape in a run of its own.
"""

from __future__ import annotations

import argparse
import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tilegen import api
from tilegen.bench import timing
from tilegen.bench.baselines import eager
from tilegen.bench.compare import Cell, error_of, result_file, row, save
from tilegen.bench.ladder import environment, floor_us, on_device_reference, over_sets, own, poisoned_outputs, weight_bytes
from tilegen.bench.timing import Contender
from tilegen.data import random_arguments
from tilegen.loader import load_program
from tilegen.planner import Options
from tilegen.spec import Program

ROOT = Path(__file__).resolve().parent
CUSYNC = {
    "gpt3_mlp": {512: 407, 1024: 684, 1792: 1083, 2048: 1193},
    "llama_mlp": {512: 196, 1024: 322, 1792: 512, 2048: 578},  # 2816 wide, and without SwiGLU's second product: two thirds of tilegen's first GeMM
}
CONSTANT = 2.0**-7


def program(name: str, rows: int) -> Program:
    wide = {"I": 2816} if name == "llama_mlp" else {}
    return load_program(str(ROOT.parent / "examples" / f"{name}.py"), {"M": rows, "dtype": "float16", **wide})


def portable(p: Program, sets: Sequence[Sequence[torch.Tensor]]) -> Contender:
    kernel: Any = api.compile(p, "cuda-portable")
    outputs = tuple(poisoned_outputs(p) for _ in sets)
    return Contender(tuple(functools.partial(kernel, *a, out=o) for a, o in zip(sets, outputs, strict=True)), check=kernel.check, outputs=outputs)


def measured(p: Program, inputs: str, rounds: int) -> Cell:
    """The three contenders interleaved, each right before it is timed."""
    sets = [random_arguments(p, seed, "cuda") for seed in range(timing.set_count(weight_bytes(p)))]
    for t in (t for a in sets for t in a) if inputs == "constant" else ():
        t.fill_(CONSTANT)
    expected = on_device_reference(p, sets[0])
    builds: dict[str, Callable[[], Contender]] = {
        "graph": lambda: over_sets(eager(p, sets[0]), sets),
        "tilegen": lambda: own(p, Options(), sets),
        "tilegen-portable": lambda: portable(p, sets),
    }
    contenders = {name: build() for name, build in builds.items()}
    errors = {name: error_of(c.calls[0](), expected) for name, c in contenders.items()}
    runners = {name: timing.ready(c) for name, c in contenders.items()}
    runs = {name: r.run for name, r in runners.items()}
    times = timing.interleave(runs, timing.counted(runs, timing.event_seconds), timing.event_seconds, rounds)
    for r in runners.values():
        r.check()
    rows = [row(p, name, [t / len(sets) for t in times[name]], errors[name], floor_us(p)) for name in runners]
    return Cell(tuple(replace(r, sizes={**r.sizes, "inputs": inputs}) for r in rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("cusync.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-o", "--out", default=str(ROOT / "results" / "cusync-h200.json"))
    o = parser.parse_args(arguments)
    found: list[Cell] = []
    for name, times in CUSYNC.items():
        for rows, cusync in times.items():
            for inputs in ("random", "constant"):
                with torch.no_grad():
                    found.append(measured(program(name, rows), inputs, o.rounds))
                save(result_file(found, "benchmarks/cusync.py", environment()), Path(o.out))
                us = {r.variant: r.us for r in found[-1].rows}
                ratios = ", ".join(f"{variant} {t:.1f} µs = {t / cusync:.3f}" for variant, t in us.items())
                print(f"{name} M={rows} {inputs}: {ratios} of cuSync's {cusync}; error {max(r.error for r in found[-1].rows):.1e}", flush=True)
                gc.collect()
                torch.cuda.empty_cache()
    return 1 if any(r.wrong for c in found for r in c.rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
