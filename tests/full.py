"""The full draw: thousands of random pairs of ops and hundreds of random programs, each checked. `python -m
tests.full`

Prints a report and writes it to tests/full.log; ends with 1 when anything is wrong.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.oracles.dependences import by_isl, derived, disagreement
from tests.oracles.programs import planned, wrong_in, wrong_in_json, wrong_in_lattice, wrong_in_numbers
from tests.random_pairs import Pair, draw_pair
from tests.random_programs import draw_case
from tilegen.targets.interpret.interpreter import STRATEGIES

SEED, PAIRS, PROGRAMS = 1, 5000, 500
Found = tuple[Counter[str], list[str]]


def wrong_in_pair(pair: Pair, counts: Counter[str]) -> str:
    """What loops or isl have against the dependences of a pair."""
    if wrong := disagreement(pair.graph):
        return wrong
    for e in pair.graph.edges:
        uses = derived(e)
        counts["pairs: edges"] += 1
        counts["pairs: edges marked as not exact"] += not e.access.exact
        counts["pairs: (consumer tile, producer tile, first step)"] += len(uses)
        if uses != by_isl(e):
            return f"{e.name} by operand {e.access.operand}: isl has other dependences"
    return ""


def one_pair(number: int) -> Found:
    pair, counts = draw_pair(f"{SEED}:{number}"), Counter[str]()
    wrong = wrong_in_pair(pair, counts)
    counts[f"producer {pair.producer}"] += 1
    counts[f"consumer {pair.consumer}"] += 1
    counts["pairs: with clusters"] += any(op.cluster > 1 for op in pair.graph.ops)
    counts["pairs: with split sums"] += any(
        getattr(op.attributes, "k_range", None) is not None for op in pair.graph.ops
    )
    return counts, [f"pair {number}, {pair.producer} -> {pair.consumer}: {wrong}"] if wrong else []


def one_program(number: int) -> Found:
    case, counts = draw_case(f"{SEED}:{number}"), Counter[str]()
    plan, as_asked = planned(case)
    strategy = STRATEGIES[number % len(STRATEGIES)]
    lattice, points = wrong_in_lattice(plan)
    found = {
        "proof": wrong_in(plan),
        "JSON": wrong_in_json(plan),
        "numbers": wrong_in_numbers(case, plan, strategy, number),
        "lattice": lattice,
    }
    counts["programs: ops"] += len(plan.graph.ops)
    counts["programs: tiles"] += plan.order.count
    counts["programs: semaphores"] += len(plan.targets)
    counts["programs: lattice points"] += points
    counts["programs: orders refused, phase order taken"] += not as_asked
    counts[f"machine {case.machine}"] += 1
    counts[f"order {case.options.order}"] += 1
    counts[f"scheduling {case.options.scheduling}"] += 1
    counts[f"strategy {strategy}"] += 1
    for op in plan.graph.ops:
        counts[f"op {op.kind}"] += 1
        counts[f"programs: clusters sharing {op.cluster_split}"] += op.cluster > 1
    return counts, [f"program {number}, {what}: {wrong}" for what, wrong in found.items() if wrong]


def guarded(job: tuple[str, int]) -> Found:
    what, number = job
    try:
        return one_pair(number) if what == "pair" else one_program(number)
    except Exception as error:  # a crash is a finding too
        return Counter(), [f"{what} {number}: {type(error).__name__}: {error}"]


def report(counts: Counter[str], wrong: list[str], seconds: float) -> str:
    lines = [
        (
            f"seed {SEED}: {PAIRS} pairs of ops, {PROGRAMS} programs, {len(wrong)} wrong, {seconds / 60:.0f}"
            " minutes on 2 cores"
        ),
        "",
    ]
    lines += [f"{name}: {count}" for name, count in sorted(counts.items())]
    return "\n".join([*lines, *(["", *wrong] if wrong else [])]) + "\n"


def main() -> int:
    start, counts, wrong = time.time(), Counter[str](), list[str]()
    jobs = [("pair", n) for n in range(PAIRS)] + [("program", n) for n in range(PROGRAMS)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(2) as pool:
        for found, problems in pool.map(guarded, jobs, chunksize=25):
            counts.update({k: v for k, v in found.items() if v})
            wrong += problems
    text = report(counts, wrong, time.time() - start)
    (Path(__file__).parent / "full.log").write_text(text)
    print(text, end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
