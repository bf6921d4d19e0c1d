"""Faults drawn at random over the text of generated kernels, each run on the emulator.

    python -m tests.emulated.mutants --seed 1 --count 600 [--out FILE]
    python -m tests.emulated.mutants --clean 500 [--out FILE]        the kernels as they are: no false alarm

A fault is one statement dropped, two statements swapped, an order or a path of an instruction weakened, a
constant off by one. It counts unless EVERY runs under all adversaries leave the same bits and no race; of
those that count, the first FEW runs are to catch 99.5 %.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from tests.emulated.examples import EXAMPLES, program_of
from tests.emulated.kernels import Runs, library_of
from tests.emulated.test_faults import BULK, FIRST, LAST, OTHERS, ROWS, STEPS
from tests.emulated.test_kernels import PORTABLE
from tests.gpu.gemms import Case, gemm, mlp
from tests.gpu.ops import pair
from tilegen.errors import CompileError, HangError, RaceError, TargetError
from tilegen.schedule.plan import Plan
from tilegen.targets.emulated.library import Adversary, same
from tilegen.targets.select import named
from tilegen.targets.sm90 import layout

FEW, EVERY = 24, 200
SECONDS = 240  # of a core, for all runs of a mutant, after which it has no end
STAGES = 4  # of a ring at most, so that each is filled again and again
TILES = {"up": (64, 64, 64), "down": (64, 64, 64)}
LAYER = Case("llama_layer", partial(program_of, *EXAMPLES[5], "bfloat16"), {})
CASES: list[tuple[Case, str, int]] = [  # the case, its target, launches that follow each other
    (STEPS, "auto", 1),
    (BULK, "auto", 1),
    (
        Case("in lists", mlp, {"M": 130, "H": 128, "I": 320}, {"tiles": TILES, "scheduling": "lists"}),
        "auto",
        2,
    ),
    (FIRST, "auto", 2),
    (Case("pairs", gemm, {"M": 17, "N": 520, "K": 512}, {**LAST.options, "scheduling": "lists"}), "auto", 1),
    (Case("pairs that draw", gemm, {"M": 17, "N": 520, "K": 512}, LAST.options), "auto", 1),
    (ROWS, "auto", 1),
    (OTHERS["mlp, M = 1"], "auto", 1),
    (OTHERS["fan, M = 1"], "auto", 1),
    (OTHERS["one token"], "auto", 1),
    (OTHERS["causal, shared heads"], "auto", 1),
    (OTHERS["caches"], "auto", 1),
    (OTHERS["new rows forwarded"], "auto", 1),
    (OTHERS["norm fused, M = 3"], "auto", 1),
    (Case("two convolutions", pair, {"B": 2, "HW": 14}), "auto", 1),
    (OTHERS["blocks"], "auto", 1),
    (OTHERS["rope"], "auto", 1),
    (Case("first layer", pair, {"B": 2, "HW": 21, "C": 3, "N": 64}), "auto", 1),
    (
        Case("a launch of its own", gemm, {"M": 130, "N": 200, "K": 320}, {"tiles": {"y": (64, 64, 64)}}),
        "auto",
        2,
    ),
    (LAYER, "auto", 1),
    (next(c for c in PORTABLE if c.name == "static, steps shared"), "sm_80", 1),
    (next(c for c in PORTABLE if c.name == "tile policy, clusters"), "sm_80", 1),
]
# one that declares nothing and leaves nothing
TYPES = r"int|unsigned|float|bool|half|__nv_bfloat16\w*|uint\w+|float\d|tg_\w+|auto|char|typename"
KEPT = (
    rf"return|break|using|struct|static|const |constexpr|extern|\[\[|(?:{TYPES})[ *&]+\*?\w+ *[\[{{;=(,]"
    r"|asm volatile\(\s*$|//|#|\}|case |default|[\"]|:{1,2} "
)
STATEMENT = re.compile(rf"^( +)(?! )((?!{KEPT})[^{{}}]*;)(?:  //.*)?$")
WEAKER = [
    (r"\.release\b", ".relaxed"),
    (r"\.acquire\b", ".relaxed"),
    (r"\.acq_rel\b", ".relaxed"),
    (r"wait_group (0|%0)", r"wait_group.read \1"),
    (r"ld\.global\.cg", "ld.global.nc"),
    (r"ld\.global\.cg", "ld.global"),
    (r"wait_group\.sync\.aligned %0", "wait_group.sync.aligned %0 + 1"),
]
NUMBER = re.compile(r"(?<![\w.%\[x])(\d+)(?![\w.x\]])")


@dataclass(frozen=True)
class Mutant:
    case: int
    kind: str  # dropped, swapped, weakened, off by one
    line: int
    old: str
    text: str


def plan_of(case: int) -> Plan:
    program, target, _ = CASES[case]
    return program.plan(4 if target == "auto" else 3, target)


@lru_cache
def original(case: int) -> str:
    plan = plan_of(case)
    return named(plan.target).emit(plan).text


def runs_of(case: int, text: str) -> Runs:
    program, _, launches = CASES[case]
    return Runs(program, plan_of(case), library_of(plan_of(case), lambda _: text, launches, launches > 1))


@lru_cache
def expected(case: int) -> list[torch.Tensor]:
    """What the kernel gives as it is: the same bits in each run."""
    runs = runs_of(case, original(case))
    return runs.results(Adversary.drawn(0, runs.library.launch.grid))


def body_of(text: str) -> int:
    """The first line of code: what stands before says what the kernel is."""
    return next(n for n, line in enumerate(text.splitlines()) if line.startswith("#define TG_FN"))


def mutants(case: int, draw: random.Random) -> Iterator[Mutant]:
    """Without end; a kind that fits few lines comes seldom."""
    lines = original(case).splitlines()
    start = body_of(original(case)) + 1
    while True:
        kind, n = (
            draw.choice(("dropped", "swapped", "weakened", "off by one")),
            draw.randrange(start, len(lines) - 1),
        )
        line, changed = lines[n], list(lines)
        if line.lstrip().startswith(("//", "#")):
            continue
        if kind == "dropped" and STATEMENT.match(line):
            changed[n] = ""
        elif (
            kind == "swapped"
            and (a := STATEMENT.match(line))
            and (b := STATEMENT.match(lines[n + 1]))
            and a[1] == b[1]
        ):
            changed[n], changed[n + 1] = lines[n + 1], line
        elif kind == "weakened" and "asm" in line:
            able = [(old, new) for old, new in WEAKER if re.search(old, line)]
            if not able:
                continue
            changed[n] = re.sub(*draw.choice(able), line)
        elif kind == "off by one":
            code = line.partition("//")[0]
            found = [m for m in NUMBER.finditer(code) if not code[: m.start()].count('"') % 2]
            if not found or "printf" in line:
                continue
            at = draw.choice(found)
            by = draw.choice((1, -1))
            changed[n] = line[: at.start()] + str(int(at[1]) + by) + line[at.end() :]
        if changed != lines:
            yield Mutant(case, kind, n + 1, line.strip(), "\n".join(changed) + "\n")


def seen(made: Runs, case: int, seed: int) -> str:
    """What one run sees: a race, a hang, or other bits than the kernel gives as it is; empty: nothing."""
    try:
        results = made.results(Adversary.drawn(seed, made.library.launch.grid))
    except (RaceError, HangError) as error:
        return str(error)
    return "" if all(map(same, results, expected(case))) else "other results"


def outcome(mutant: Mutant, runs: int = EVERY) -> tuple[int, str]:
    """(the run that saw it, what it saw); (-1, "") where none does, (-2, why) where it is no kernel."""
    try:
        made = runs_of(mutant.case, mutant.text)
    except (CompileError, TargetError) as error:
        return -2, str(error)
    for seed in range(runs):
        what = seen(made, mutant.case, seed)
        if what:
            return seed, what
    return -1, ""


def outcomes(found: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, int, str]]:
    """Each in a process of its own, which it may bring down; `jobs` side by side."""
    waiting, running = list(reversed(found)), dict[int, tuple[Mutant, int, bytes]]()  # by pipe
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            expected(mutant.case)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                seed, what = outcome(mutant)
                os.write(writing, f"{seed} {what[:3000]}".encode())
                os._exit(0)
            os.close(writing)
            running[reading] = (mutant, child, b"")
        for pipe in select.select(list(running), [], [])[0]:
            mutant, child, told = running[pipe]
            part = os.read(pipe, 1 << 16)
            if part:
                running[pipe] = (mutant, child, told + part)
                continue
            os.close(pipe)
            del running[pipe]
            _, status = os.waitpid(child, 0)
            seed, _, what = told.decode().partition(" ")
            yield (mutant, 0, f"ends with status {status}") if status else (mutant, int(seed), what)


def drawn(seed: int, count: int, cases: Sequence[int] = range(len(CASES))) -> list[Mutant]:
    draw = random.Random(seed)
    sources = {case: mutants(case, draw) for case in cases}
    return [next(sources[cases[n % len(cases)]]) for n in range(count)]


def false_alarms(case: int, runs: int) -> list[str]:
    """What the emulator finds in a kernel that nobody changed."""
    made = runs_of(case, original(case))
    found = [f"run {seed}: {what}" for seed in range(runs) if (what := seen(made, case, seed))]
    print(f"{CASES[case][0].name}: {runs} runs, {len(found)} alarms", file=sys.stderr, flush=True)
    return found


def record(mutant: Mutant, seed: int, what: str) -> dict[str, Any]:
    """For the results file."""
    lines = mutant.text.splitlines()
    new = lines[mutant.line - 1 : mutant.line + (mutant.kind == "swapped")]
    how = {-2: "no kernel", -1: "equal"}.get(seed, "caught" if seed < FEW else "late")
    return {
        "kernel": CASES[mutant.case][0].name,
        "line": mutant.line,
        "kind": mutant.kind,
        "old": mutant.old,
        "new": " ".join(line.strip() for line in new),
        "outcome": how,
        "run": seed,
        "seen": what[:300] if how != "no kernel" else "",
    }


def all_outcomes(seed: int, count: int, jobs: int) -> list[dict[str, Any]]:
    found, start = [], time.time()
    for mutant, run, what in outcomes(drawn(seed, count), jobs):
        found.append(record(mutant, run, what))
        told = " ".join(str(found[-1][key]) for key in ("outcome", "kernel", "line", "kind", "old", "seen"))
        print(f"{len(found)} {time.time() - start:.0f} s {told[:200]}", file=sys.stderr, flush=True)
    return found


def all_clean(runs: int, jobs: int) -> dict[str, list[str]]:
    """By kernel: the false alarms of so many runs."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        found = pool.map(false_alarms, range(len(CASES)), [runs] * len(CASES))
        return {program.name: alarms for (program, _, _), alarms in zip(CASES, found, strict=True)}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=600)
    p.add_argument(
        "--clean", type=int, default=0, metavar="RUNS", help="instead: runs of each kernel as it is"
    )
    p.add_argument("--out", type=Path, help="a JSON file for the results")
    p.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    o = p.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":  # torch's threads do not come along with a fork
        os.environ["OMP_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.emulated.mutants", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEGEN_CACHE_DIR"] = folder
        layout.MOST_STAGES = STAGES
        torch.set_num_threads(1)
        start = time.time()
        found: Any = all_clean(o.clean, o.jobs) if o.clean else all_outcomes(o.seed, o.count, o.jobs)
    what = {"clean": o.clean} if o.clean else {"seed": o.seed, "count": o.count}
    results = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python -m tests.emulated.mutants", *sys.argv[1:]]),
        "seconds": round(time.time() - start),
        **what,
        "found": found,
    }
    if o.out:
        o.out.write_text(json.dumps(results, indent=1) + "\n")
    if o.clean:
        return int(any(found.values()))
    counts = Counter(m["outcome"] for m in found)
    print(", ".join(f"{how}: {n}" for how, n in sorted(counts.items())))
    return int(counts["late"] > 0.005 * (counts["late"] + counts["caught"]))


if __name__ == "__main__":
    sys.exit(main())
