"""Faults drawn at random over the text of generated kernels, each run on the emulator.

    python -m tests.emulated.mutants --seed 1 --count 600 [--out FILE]
    python -m tests.emulated.mutants --count 60 --kernel "one token"    of these kernels alone
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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from tests.emulated.examples import HEADS, program_of
from tests.emulated.kernels import Runs, library_of
from tests.emulated.test_faults import BESIDE, BULK, FIRST, LAST, OTHERS, ROWS, STEPS, TURNS
from tests.emulated.test_kernels import PORTABLE
from tests.gpu.gemms import Case, gemm, mlp
from tests.gpu.ops import attended, pair
from tilegen.errors import CompileError, HangError, RaceError, TargetError
from tilegen.schedule.plan import Plan
from tilegen.targets.emulated.library import Adversary, same
from tilegen.targets.select import named
from tilegen.targets.sm90 import layout

FEW, EVERY = 48, 200
SECONDS = 240  # of a core, for all runs of a mutant, after which it has no end
STAGES = 4  # of a ring at most, so that each is filled again and again
TILES = {"up": (64, 64, 64), "down": (64, 64, 64)}
LAYER = Case(
    "llama_layer",
    partial(program_of, "llama_layer", {"B": 1, "S": 1, "S_max": 200, "I": 328, **HEADS}, "bfloat16"),
    {},
)
BLOCKS = Case(
    "causal, blocks of keys",
    attended,
    {"S": 130, "B": 1, "heads": 2, "kv_heads": 1},
    {"tiles": {"attn": (64, 64, 1)}},
)
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
    (BLOCKS, "auto", 1),
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
    (TURNS, "auto", 1),
    (BESIDE, "auto", 1),
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
WEAKER = [  # all of it PTX, or C++, that says less
    (r"(?<=atom|.red)\.(acq_rel|release)\b", ".relaxed"),
    (r"atom\.acq_rel\b", "atom.acquire"),
    (r"atom\.acq_rel\b", "atom.release"),
    (r"ld\.acquire\b", "ld.relaxed"),
    (r"(ld|st)\.relaxed\.gpu\b", r"\1"),
    (r"(?<=acquire|release|acq_rel|relaxed)\.gpu\b", ".cta"),
    (r"cluster\.arrive\.release\b", "cluster.arrive.relaxed"),
    (r"mbarrier\.arrive\.shared::cta", "mbarrier.arrive.relaxed.cta.shared::cta"),
    (r"_wait\.parity\.shared", "_wait.parity.relaxed.cta.shared"),
    (r"wait_group (0|%0)", r"wait_group.read \1"),
    (r'"n"\((N|PENDING)\)', r'"n"(\1 + 1)'),
    (r"proxy\.async\.global", "proxy.async.shared::cta"),
    (r"proxy\.async\.shared::cta", "proxy.async.global"),
    (r"ld\.global\.cg", "ld.global.nc"),
    (r"ld\.global\.cg", "ld.global"),
    (r"barrier\.cta\.sync", "barrier.cta.arrive"),
    (r"__syncthreads\(\)", "__syncwarp()"),
    (r"tg_math_meet\(\);", "tg_warpgroup_meet(warpgroup);"),
    (r"tg_(math|warpgroup)_meet\(\w*\);", "__syncwarp();"),
]
NUMBER = re.compile(r"(?<![\w.%\[x])(\d+)(?![\w.x\]])")


@dataclass(frozen=True)
class Change:
    kind: str  # dropped, swapped, weakened, off by one
    line: int  # the first of those that change, from 0 on
    old: str
    new: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    case: int
    change: Change

    @property
    def text(self) -> str:
        lines, at, new = original(self.case).splitlines(), self.change.line, self.change.new
        return "\n".join([*lines[:at], *new, *lines[at + len(new) :]]) + "\n"


def plan_of(case: int) -> Plan:
    program, target, _ = CASES[case]
    return program.plan(4 if target == "auto" else 6, target)  # pairs of the portable kernel are one CTA


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


@lru_cache
def changes(case: int) -> dict[str, list[Change]]:
    """All faults of a kernel, by kind."""
    lines = original(case).splitlines()
    found = defaultdict[str, list[Change]](list)
    for n in range(body_of(original(case)) + 1, len(lines) - 1):
        if not lines[n].lstrip().startswith(("//", "#")):
            for kind, new in faults(lines[n], lines[n + 1]):
                found[kind].append(Change(kind, n, lines[n].strip(), new))
    return found


def faults(line: str, following: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(kind, what stands there instead of the line, or of both)."""
    code = line.partition("//")[0]
    if first := STATEMENT.match(line):
        yield "dropped", ("",)
        second = STATEMENT.match(following)
        if second and first[1] == second[1] and line != following:
            yield "swapped", (following, line)
    for old, new in WEAKER:
        weaker = re.sub(old, new, code)
        if weaker != code:
            yield "weakened", (weaker,)
    if "printf" not in line:
        for number in NUMBER.finditer(code):
            if not code[: number.start()].count('"') % 2:
                for by in (1, -1):
                    new = str(int(number[1]) + by)
                    yield "off by one", (code[: number.start()] + new + code[number.end() :],)


def mutants(case: int, draw: random.Random) -> Iterator[Mutant]:
    """The kinds in turn, each of them as often as the others while it lasts; no fault twice."""
    left = {kind: draw.sample(found, len(found)) for kind, found in sorted(changes(case).items())}
    while left:
        for kind in list(left):
            yield Mutant(case, left[kind].pop())
            if not left[kind]:
                del left[kind]


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
    sources = {case: mutants(case, random.Random(f"{seed} {CASES[case][0].name}")) for case in cases}
    return [next(sources[cases[n % len(cases)]]) for n in range(count)]


def false_alarms(case: int, runs: int) -> list[str]:
    """What the emulator finds in a kernel that nobody changed."""
    made = runs_of(case, original(case))
    found = [f"run {seed}: {what}" for seed in range(runs) if (what := seen(made, case, seed))]
    print(f"{CASES[case][0].name}: {runs} runs, {len(found)} alarms", file=sys.stderr, flush=True)
    return found


def record(mutant: Mutant, seed: int, what: str) -> dict[str, Any]:
    """For the results file."""
    change = mutant.change
    how = {-2: "no kernel", -1: "equal"}.get(seed, "caught" if seed < FEW else "late")
    return {
        "kernel": CASES[mutant.case][0].name,
        "line": change.line + 1,
        "kind": change.kind,
        "old": change.old,
        "new": " ".join(line.strip() for line in change.new),
        "outcome": how,
        "run": seed,
        "seen": what[:300] if how != "no kernel" else "",
    }


def all_outcomes(seed: int, count: int, jobs: int, cases: Sequence[int]) -> list[dict[str, Any]]:
    found, start = [], time.time()
    for mutant, run, what in outcomes(drawn(seed, count, cases), jobs):
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
    names = [case.name for case, _, _ in CASES]
    p.add_argument("--kernel", action="append", default=[], choices=names, metavar="NAME")
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
        found: Any = all_clean(o.clean, o.jobs) if o.clean else all_outcomes(
            o.seed, o.count, o.jobs, [n for n, name in enumerate(names) if name in (o.kernel or names)]
        )
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
