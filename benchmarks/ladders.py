"""The project's tables measured anew: every contender on every cell of the groups asked for, a result file
for each group.

python -m benchmarks.ladders chains decode -o benchmarks/results --seconds 500
python -m benchmarks.ladders random --count 100 --seed 7 -o DIR    other shapes
python -m benchmarks.ladders chains --compile-only                 fill the cache of kernels; needs no GPU
python -m benchmarks.ladders chains -o DIR --after DIR             what an earlier run had no time for

First all kernels are compiled by a pool of processes that touch no GPU (with --inductor-jobs those of
torch.compile, too, by processes that do), then a worker process measures cell after cell. Each file is
written anew after each cell; a contender that hangs or kills the worker becomes a note, and the rest goes on.
The time ends the run, whatever is done: the files name the cells that are missing. TILEGEN_COMMIT names the
commit where the folder is a copy without git.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inductor import compile_cells
from benchmarks.precompile import Compiled, gpu_here, precompile, variants_of
from benchmarks.supervisor import Job, Lines, jobs_from, serve, supervise
from benchmarks.workloads import DRAWN, GROUPS, SEED, Task, tag, tasks
from tilegen.bench.results import result_file, rows_of, save
from tilegen.bench.rows import EXCLUSIVE, INDUCTOR, PEERS, UNPREPARED, Cell, Key, Note, Row, key, sizes_of
from tilegen.bench.table import table
from tilegen.runtime.verify import load_json

# with torch.compile: up to a minute a cell where it is new
COMPILED = ("chains", "gemms", "graphs", "attention", "cached", "decode", "prefill")
OWN = (
    "tilegen-kernel",
    "tilegen-pdl",
    "tilegen-barrier",
    "tilegen",
    "tilegen-persistent",
    "tilegen-exclusive",
    "tilegen-unprepared",
    "tilegen-portable",
)
LEFT_OUT = ("eager", "tilegen-kernel")  # never the best: measured where --only asks for them
# without a sign of life, with and without torch.compile: its autotuner says nothing for long
PATIENCE_S = {False: 90.0, True: 300.0}
# cuSync's best policy on an H200, µs, each shape in a run of its own, constant inputs; LLaMA 2816 wide,
# without SwiGLU's second product
CUSYNC = {
    "gpt3_mlp": {512: 407, 1024: 684, 1792: 1083, 2048: 1193},
    "llama_mlp": {512: 196, 1024: 322, 1792: 512, 2048: 578},
}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        "ladders", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("groups", nargs="+", choices=GROUPS, metavar="GROUP", help=", ".join(GROUPS))
    p.add_argument("-o", "--out", type=Path, help="the folder of the result files")
    p.add_argument("--seconds", type=float, default=3600, help="everything ends by then (3600)")
    p.add_argument("--rounds", type=int, default=11)
    p.add_argument(
        "--only", nargs="*", default=[], metavar="NAMES", help="graph,cublaslt: these contenders alone"
    )
    p.add_argument(
        "--cells",
        nargs="*",
        default=[],
        metavar="WORDS",
        help="only cells whose name, as --list prints it, holds one of these",
    )
    p.add_argument(
        "--inductor",
        nargs="*",
        default=list(COMPILED),
        metavar="WORDS",
        help="cells with torch.compile, by group or words; none: nowhere",
    )
    p.add_argument("--seed", type=int, default=SEED, help="of the random shapes")
    p.add_argument("--count", type=int, default=DRAWN, help=f"of the random shapes ({DRAWN})")
    p.add_argument("--after", type=Path, metavar="DIR", help="keep the cells of the result files there")
    p.add_argument(
        "--jobs",
        type=int,
        default=max(1, min(14, len(os.sched_getaffinity(0)) - 2)),
        help="processes that compile",
    )
    p.add_argument(
        "--inductor-jobs", type=int, default=0, help="processes that compile with torch.compile, on the GPU"
    )
    p.add_argument("--compile-only", action="store_true")
    p.add_argument("--list", action="store_true", help="name the cells and end")
    p.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    o = p.parse_args(arguments)
    o.only = names = [name for words in o.only for name in words.split(",") if name]
    if unknown := [name for name in names if name not in (*PEERS, *OWN)]:
        p.error(f"--only: no contender {unknown[0]!r}; they are {', '.join((*PEERS, *OWN))}")
    if o.rounds < 1:
        p.error(f"--rounds {o.rounds}: expected at least 1")
    if o.out is None and not (o.compile_only or o.list or o.worker):
        p.error("-o DIR: where do the result files go?")
    return o


def asked(o: argparse.Namespace) -> list[Task]:
    """The cells, groups in turn: what was asked for first is measured first."""
    found = [t for group in dict.fromkeys(o.groups) if group != "host" for t in tasks(group, o.seed, o.count)]
    return [t for t in found if not o.cells or holds(t, o.cells)]


def holds(task: Task, wanted: Sequence[str]) -> bool:
    """Whether its name holds one of these, as whole words."""
    return any(f" {words.strip()} " in f" {task} " for words in wanted)


def selection(o: argparse.Namespace, task: Task) -> tuple[str, ...]:
    """The contenders of a cell, by name; a program offers those that it has a part for."""
    if o.only:
        return tuple(name for name in (*PEERS, *OWN) if name in o.only)
    without = (*LEFT_OUT, *(() if holds(task, o.inductor) else INDUCTOR))
    return tuple(name for name in (*PEERS, *OWN) if name not in without)


# --- the worker ---------------------------------------------------------------------------------------------


def work(o: argparse.Namespace) -> None:
    """In a process of its own: (jobs' file, lines' file, when to stop)."""
    jobs, lines, until = Path(o.worker[0]), Lines(Path(o.worker[1])), float(o.worker[2])
    from tilegen.bench.environment import environment

    lines.write(kind="environment", environment=environment())
    cells = asked(o)
    serve(
        jobs_from(jobs),
        lines,
        until,
        lambda job, say: measured(cells[job.cell], selection(o, cells[job.cell]), job, o.rounds, say),
    )


def measured(
    task: Task, select: Sequence[str], job: Job, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """One cell, as JSON. Contenders that killed a worker in it are left out, and noted."""
    from tilegen.bench.ladder import ladder

    start, program = time.perf_counter(), task.program
    names = tuple(name for name in select if name not in dict(job.without))
    cell = ladder(program, variants_of(task), names, rounds, say, task.constant)
    lost = [Note(program.name, sizes_of(program), variant, error) for variant, error in job.without]
    found = result_file([labelled(replace(cell, notes=(*cell.notes, *lost)), task)], "", {})
    return {
        "rows": found["rows"],
        "notes": found["notes"],
        "clock": cell.clock,
        "seconds": round(time.perf_counter() - start, 1),
    }


def labelled(cell: Cell, task: Task) -> Cell:
    """Its sizes with what tells it from the same program's other cells."""
    rows = tuple(replace(r, sizes={**r.sizes, **task.extra}) for r in cell.rows)
    return replace(
        cell, rows=rows, notes=tuple(replace(n, sizes={**n.sizes, **task.extra}) for n in cell.notes)
    )


def contender_of(text: str) -> str:
    """Whom a worker's words name: "PROGRAM CONTENDER"; "" where they name none."""
    word = text.split(" ")[-1]
    return word if word in (*PEERS, *OWN) else ""


# --- result files -------------------------------------------------------------------------------------------


class Files:
    """A result file for each group, written anew with each cell."""

    def __init__(self, o: argparse.Namespace, cells: Sequence[Task], command: str, start: float):
        self.o, self.cells, self.command, self.start = o, cells, command, start
        self.environment: dict[str, Any] = {}
        self.found: dict[int, Cell] = {}
        self.seconds: dict[int, float] = {}
        self.earlier: dict[str, Any] = {}
        self.lost: list[str] = []

    def keep(self, after: Path) -> None:
        """Take over the cells of an earlier run's files, with its heading: those in which anything was
        measured."""
        for group in {t.group for t in self.cells}:
            for path in sorted(after.glob(f"{group}-*.json")):
                data = load_json(path)
                rows, notes = rows_of(data), [Note(**n) for n in data["notes"]]
                clocks = data.get("clocks_by_cell") or {}
                mine = {
                    n: kept(t, rows, notes, clocks.get(str(t)))
                    for n, t in enumerate(self.cells)
                    if t.group == group
                }
                taken = {n: cell for n, cell in mine.items() if cell}
                self.found |= taken
                heading = {k: data.get(k) for k in ("date", "commit", "device", "versions", "run")}
                self.earlier[group] = [*data.get("earlier", []), heading] if taken else []
                self.environment = self.environment or {
                    k: data[k] for k in ("device", "versions", "remarks") if k in data
                }

    def add(self, n: int, found: Mapping[str, Any]) -> Cell:
        """A cell from the worker, into its group's file."""
        task = self.cells[n]
        if "error" in found:
            cell = labelled(
                Cell((), (Note(task.workload, sizes_of(task.program), "all", str(found["error"])),)), task
            )
        else:
            cell = Cell(tuple(rows_of(found)), tuple(Note(**note) for note in found["notes"]), found["clock"])
            self.seconds[n] = found["seconds"]
        self.found[n] = cell
        self.write(task.group)
        return cell

    def write(self, group: str) -> None:
        mine = [n for n, t in enumerate(self.cells) if t.group == group]
        done = [n for n in mine if n in self.found]
        data = result_file([self.found[n] for n in done], self.command, self.environment)
        data |= {
            "clocks_by_cell": {str(self.cells[n]): self.found[n].clock for n in done},
            "seconds_by_cell": {str(self.cells[n]): self.seconds.get(n) for n in done},
            "missing": [str(self.cells[n]) for n in mine if n not in self.found],
            "rounds": self.o.rounds,
            "earlier": self.earlier.get(group, []),
            "elsewhere": elsewhere() if group == "cusync" else [],
            "remarks": [*self.environment.get("remarks", []), *self.lost],
        }
        save(data, self.path(group))

    def path(self, group: str) -> Path:
        return Path(self.o.out) / f"{group}-{tag(self.environment.get('device', ''))}.json"


def kept(task: Task, rows: Sequence[Row], notes: Sequence[Note], clock: int | None) -> Cell | None:
    program = task.program
    wanted: Key = (program.name, tuple({**sizes_of(program), **task.extra}.items()))
    mine = [r for r in rows if key(r) == wanted], [n for n in notes if key(n) == wanted]
    return Cell(tuple(mine[0]), tuple(mine[1]), clock) if mine[0] else None


def elsewhere() -> list[dict[str, Any]]:
    """Times of others that were not taken in this run."""
    what = "cuSync's best policy, its CUTLASS kernels, in a run of its own on constant inputs"
    return [
        {"workload": name, "M": m, "variant": "cusync", "us": us, "what": what}
        for name, times in CUSYNC.items()
        for m, us in times.items()
    ]


# --- the run ------------------------------------------------------------------------------------------------


def main(
    arguments: Sequence[str] | None = None,
    worker: Sequence[str] = (sys.executable, "-m", "benchmarks.ladders"),
) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    o = parsed(given)
    if o.worker:
        work(o)
        return 0
    start = time.time()
    cells = asked(o)
    if o.list:
        print("\n".join(map(str, cells)))
        return 0
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "tilegen-inductor"))
    os.environ.setdefault("TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS", "0")
    files = Files(o, cells, f"python -m benchmarks.ladders {' '.join(shown(given))}", start)
    if o.after:
        files.keep(o.after)
    left = [n for n in range(len(cells)) if n not in files.found]
    compile_all([cells[n] for n in left], o)
    if o.compile_only:
        return 0
    if o.inductor_jobs:
        compile_with_torch([cells[n] for n in left], o)
    end = start + o.seconds
    with tempfile.TemporaryDirectory() as folder:
        measure_all(files, left, [*worker, *given], Path(folder), end)
    missing = [str(t) for n, t in enumerate(cells) if n not in files.found]
    if "host" in o.groups and not host(Path(o.out), end):
        missing.append("host")
    for group in {t.group for t in cells}:
        files.write(group)
    print(
        f"\n{table([files.found[n] for n in sorted(files.found)])}\n{time.time() - start:.0f} s,"
        f" {len(files.found)} of {len(cells)} cells"
    )
    for name in missing:
        print(f"missing: {name}")
    return 1 if missing or files.lost else 0


def shown(given: Sequence[str]) -> list[str]:
    """The words of the command, but for where its files are."""
    words, skip = [], False
    for word in given:
        if (
            not skip
            and word not in ("-o", "--out", "--after")
            and not word.startswith(("--out=", "--after="))
        ):
            words.append(word)
        skip = word in ("-o", "--out", "--after")
    return words


def compile_all(cells: Sequence[Task], o: argparse.Namespace) -> None:
    on = gpu_here()
    wanted = [(t, v) for t in cells for v in needed([v for v in variants_of(t, on) if v in selection(o, t)])]
    precompile(wanted, o.jobs, float("inf") if o.compile_only else 0.4 * o.seconds, counted(len(wanted)), on)


def compile_with_torch(cells: Sequence[Task], o: argparse.Namespace) -> None:
    wanted = [(t, name) for t in cells for name in INDUCTOR if name in selection(o, t)]
    compile_cells(wanted, o.inductor_jobs, 0.6 * o.seconds, counted(len(wanted)))


def counted(of: int) -> Callable[[Compiled], None]:
    """Prints what was compiled, and how many of all."""
    count = 0

    def say(c: Compiled) -> None:
        nonlocal count
        count += 1
        print(f"compiled {count} of {of}: {c.task} {c.variant}: {c.seconds} s {c.error}", flush=True)

    return say


def needed(variants: Sequence[str]) -> list[str]:
    """Those whose binaries no other's hold: what tilegen-exclusive and tilegen-unprepared run, tilegen runs
    too."""
    return [v for v in variants if v not in (EXCLUSIVE, UNPREPARED) or "tilegen" not in variants]


def measure_all(files: Files, left: Sequence[int], command: Sequence[str], folder: Path, end: float) -> None:
    def found(job: Job, data: dict[str, Any]) -> None:
        cell = files.add(job.cell, data)
        print(f"[{time.time() - files.start:.0f} s]\n{table([cell])}", flush=True)

    def heard(line: dict[str, Any]) -> None:
        if line["kind"] == "environment":
            files.environment = line["environment"]
        else:
            files.lost.append(line["error"])
            print(line["error"], flush=True)

    compiled = any(set(INDUCTOR) & set(selection(files.o, files.cells[n])) for n in left)
    supervise(
        [Job(n) for n in left],
        [*command, "--worker"],
        folder,
        end,
        PATIENCE_S[compiled],
        found,
        lambda _, text: contender_of(text),
        heard,
    )


def host(out: Path, end: float) -> bool:
    """benchmarks.host in the time that is left, into a file of its own; whether there is one."""
    command = [sys.executable, "-m", "benchmarks.host", str(out)]
    try:
        return subprocess.run(command, timeout=max(1.0, end - time.time()), check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
