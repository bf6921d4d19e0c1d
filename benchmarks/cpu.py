"""Every example beside torch on this machine's CPU, same threads, interleaved: writes results/cpu.json and
prints the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilegen.bench.compare import own_variants
from tilegen.bench.contest import contest
from tilegen.bench.results import result_file, save
from tilegen.bench.table import table
from tilegen.frontend.loader import load_program
from tilegen.options import Options

ROOT = Path(__file__).resolve().parent
WORKLOADS: list[tuple[str, dict[str, Any]]] = [
    *(("gpt3_mlp", {"M": m, "dtype": d}) for m in (1, 64, 256) for d in ("float32", "bfloat16")),
    *(("llama_mlp", {"M": m}) for m in (1, 64, 256)),
    ("gpt3_attention", {"S": 512}),
    ("llama_attention", {"S": 512}),
    ("llama_layer", {"S": 1}),
    ("llama_layer", {"S": 256}),
    *(("resnet38", {"stage": s, "dtype": "float32"}) for s in (1, 2, 3, 4)),
    ("resnet38", {"dtype": "float32"}),
    *(("vgg19", {"block": b, "dtype": "float32"}) for b in (1, 3, 5)),
]


def main() -> None:
    ladder = contest("cpu", rounds=7)
    cells = []
    for example, sizes in WORKLOADS:
        program = load_program(str(ROOT.parent / "examples" / f"{example}.py"), sizes)
        cells.append(ladder.measure(program, own_variants(program, Options())))
        save(result_file(cells, "benchmarks/cpu.py", ladder.environment), ROOT / "results" / "cpu.json")
        print(table(cells[-1:]), flush=True)


if __name__ == "__main__":
    main()
