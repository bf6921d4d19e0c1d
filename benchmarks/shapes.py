"""Programs and sizes drawn at random, which nobody tuned for, beside the best of their peers.

python -m benchmarks.shapes --seed 7 --count 300 -o DIR      measured on this GPU (benchmarks.ladders shapes)
python -m benchmarks.shapes --seed 7 --count 300 --plan      what is refused while it is planned; needs no GPU

The draw holds feed-forward blocks, single and several linears, attention, pairs of convolutions and whole
layers, and besides those encoder layers, decoding at any batch over any cache, strided and 1x1 convolutions,
LoRA, vocabulary heads, bottlenecks of ResNet-50, eight narrow layers and cross attention.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import tilegen as tg
from benchmarks import ladders
from benchmarks.workloads import SEED, Task, tasks
from tilegen.errors import TilegenError

COUNT = 300


@dataclass(frozen=True)
class Planned:
    """A cell, why it was refused or an empty string, and the seconds that this took."""

    cell: str
    refused: str
    seconds: float


def planned(task: Task) -> Planned:
    """Whether a Hopper GPU's plan and text can be made of a cell."""
    from tilegen.targets.sm90.emit import generate

    start, why = time.perf_counter(), ""
    try:
        plan = tg.plan(task.program, "h200", target="sm_90a")
        weights = {t.name for t in task.program.arguments if t.role == "weight"}
        generate(plan, frozenset(weights))  # type: ignore[arg-type]
    except TilegenError as error:
        why = f"{type(error).__name__}: {error}"
    return Planned(str(task), why, time.perf_counter() - start)


def all_planned(found: Sequence[Task], jobs: int) -> Iterator[Planned]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(planned, found, chunksize=4)


def main(arguments: Sequence[str]) -> int:
    p = argparse.ArgumentParser(
        "shapes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seed", type=int, default=SEED)
    p.add_argument("--count", type=int, default=COUNT)
    p.add_argument("--plan", action="store_true", help="plan only")
    p.add_argument("--jobs", type=int, default=2, help="processes that plan")
    o, rest = p.parse_known_args(arguments)
    if not o.plan:
        return ladders.main(["shapes", "--seed", str(o.seed), "--count", str(o.count), *rest])
    told = list(all_planned(tasks("shapes", o.seed, o.count), o.jobs))
    for cell in (c for c in told if c.refused):
        print(f"{cell.cell}: {cell.refused}")
    slowest = max(told, key=lambda c: c.seconds)
    refused = sum(bool(c.refused) for c in told)
    print(f"{len(told)} cells, {refused} refused; slowest {slowest.seconds:.1f} s, {slowest.cell}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
