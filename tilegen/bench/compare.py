"""Contenders side by side: rows and notes of each size, ratios, the table, the result file; and the CPU's
ladder."""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilegen
from tilegen import api
from tilegen.arch.machine import Machine
from tilegen.bench.accuracy import WRONG, Accuracy, accuracy
from tilegen.bench.baselines import eager
from tilegen.config import write_whole
from tilegen.errors import PlanError
from tilegen.frontend.program import DTYPES, Program, numbers_of
from tilegen.graph.fuse_epilogues import fuse
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes, GroupedConvAttributes
from tilegen.ops.conv_transpose2d import ConvTransposeAttributes
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes
from tilegen.options import Options
from tilegen.runtime import timing
from tilegen.runtime.data import random_arguments
from tilegen.runtime.request import settled_lowering
from tilegen.targets.select import place

PEERS = (  # what people use today
    "eager",
    "graph",
    "addmm-gelu",
    "cublaslt",
    "cudnn",
    "sdpa-flash",
    "sdpa-cudnn",
    "sdpa-efficient",
    "graph-flash",
    "cublaslt-flash",
    "cublaslt-cudnn",
    "flashinfer",
    "flash-attn-3",
    "inductor",
    "inductor-flash",
)
INDUCTOR = ("inductor", "inductor-flash")  # those that torch.compile makes
STREAMS = ("tilegen-kernel", "tilegen-pdl")  # a launch for each op, on a GPU
OWN = (*STREAMS, "tilegen-barrier")  # tilegen without tile sync
# one launch with tile sync, where `tilegen` is launches of single ops because they were measured to be faster
PERSISTENT = "tilegen-persistent"
# exclusive=True: the user's word that nothing else that waits inside runs at the same time
EXCLUSIVE = "tilegen-exclusive"
UNPREPARED = "tilegen-unprepared"  # weights given with each call, not bound and packed by prepare()
MOVING = "tilegen-moving"  # the one kernel of a spec whose size moves, at this size
GPU_ALONE = (*STREAMS, PERSISTENT, EXCLUSIVE, UNPREPARED)
OVER_PEERS, OVER_OWN = "best peer/tilegen", "best without tile sync/one launch"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One contender at one size. us: median over rounds; spread: (max - min) / median; error: relative
    Frobenius to float32 torch.

    element: the worst element's error over its bound (tilegen.bench.accuracy); rounds_us: round by round, so
    that contenders can be paired;
    sets: of arguments that take turns; in_l2: all of them stay in the L2 cache; launches: of a call, where
    tilegen says it.
    """

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
    element: float = 0.0
    rounds_us: tuple[float, ...] = ()
    sets: int | None = None
    in_l2: bool = False
    launches: int | None = None

    @property
    def wrong(self) -> bool:
        return not (self.error <= WRONG and self.element <= 1)  # NaN too


@dataclass(frozen=True)
class Note:
    """A contender that could not be measured, and why."""

    workload: str
    sizes: dict[str, Any]
    variant: str
    error: str


@dataclass(frozen=True)
class Cell:
    """What was found for one program at one size. clock: SM clock in MHz at the middle of the run."""

    rows: tuple[Row, ...]
    notes: tuple[Note, ...] = ()
    clock: int | None = None


@dataclass(frozen=True)
class Ratio:
    """How many times faster tilegen is than the best of others in the same cell; None where one of the two is
    missing or wrong."""

    workload: str
    sizes: dict[str, Any]
    over_peers: float | None
    over_own: float | None  # here tilegen in one launch, beside its ways without tile sync


Key = tuple[str, tuple[tuple[str, Any], ...]]


def key(r: Row | Note | Ratio) -> Key:
    """Names the cell that it belongs to."""
    return r.workload, tuple(r.sizes.items())


def sizes_of(program: Program) -> dict[str, Any]:
    return {k: v for k, v in program.sizes if isinstance(v, (int, float, str))}


def note(program: Program, variant: str, error: Exception) -> Note:
    """The first line of the error is enough to name it; compilers' logs are long."""
    text = str(error).strip()
    return Note(
        program.name,
        sizes_of(program),
        variant,
        f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:400],
    )


def own_variants(
    program: Program, options: Options, moving: Program | None = None, on: Machine | None = None
) -> dict[str, Options]:
    """tilegen as tg.compile gives it on a machine, by default the GPU that is here or an H200; and beside it,
    under names of their own, its other ways.

    Where there is anything to synchronise, without tile sync: launches of single ops; one semaphore per
    tensor. Where tilegen's own choice is launches of single ops, its one launch with tile sync; where
    it is one launch, that with exclusive=True. Where the spec's size moves, its one kernel.
    """
    if moving is not None:
        return {**own_variants(program, options, on=on), MOVING: options}
    pdl = {"tilegen-pdl": replace(options, policies=())}
    if len(fuse(program).ops) == 1 and not options.split_k and not options.split_kv:
        return {**pdl, "tilegen": options, UNPREPARED: options}
    launches = {"tilegen-kernel": replace(options, policies=()), **pdl}
    found = {**launches, "tilegen-barrier": replace(options, policies=(("*", "kernel"),)), "tilegen": options}
    lowering, _ = settled_lowering(program, place(on, "sm_90a"), options, "auto", False)
    besides = PERSISTENT if lowering == "multi_launch" else EXCLUSIVE
    return {**found, besides: options, UNPREPARED: options}


# --- one size -----------------------------------------------------------------------------------------------


def compare(
    program: Program,
    variants: Mapping[str, Options],
    select: Sequence[str],
    threads: int | None = None,
    rounds: int = 5,
    progress: Progress = lambda _: None,
    moving: Program | None = None,
) -> Cell:
    """The CPU ladder: torch eager, then tilegen's variants. Same threads, random data, interleaved. moving:
    the program whose size moves, for the variant of that name."""
    refuse_open(program)
    count = threads or torch.get_num_threads()

    def compiled(name: str) -> Callable[..., Any]:
        chosen = moving if name == MOVING and moving is not None else program
        return api.compile(chosen, "cpu", on=f"cpu:{count}", options=variants[name], threads=count)

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        arguments = random_arguments(program)
        fresh = [a.clone() for a in arguments]
        expected = api.reference(program, *arguments)
        runs: dict[str, Callable[[], Any]] = {}
        for name in (n for n in select if n == "eager" or n in variants):
            progress(f"{program.name} {name}")
            runs[name] = functools.partial(
                eager(program, fresh) if name == "eager" else compiled(name), *fresh
            )
        refuse_none(program, runs, select)
        # the first run warms up
        errors = {
            name: accuracy(program, outcome(program, run(), fresh), expected) for name, run in runs.items()
        }
        once = {name: 1 for name in runs}
        times = timing.interleave(
            runs,
            once,
            timing.host_seconds,
            rounds,
            lambda n: progress(f"{program.name} round {n + 1} of {rounds}"),
        )
    finally:
        torch.set_num_threads(before)
    return Cell(tuple(row(program, name, times[name], errors[name]) for name in runs))


def refuse_open(program: Program) -> None:
    if program.symbolic:
        raise PlanError(f"{program.name}: sizes are left open; comparing needs all of them")


def refuse_none(program: Program, offered: Collection[str], select: Sequence[str]) -> None:
    if not offered:
        raise PlanError(f"{program.name}: none of {', '.join(select)} is offered for it")


def row(
    program: Program,
    variant: str,
    seconds: Sequence[float],
    error: Accuracy,
    floor_us: float | None = None,
    **more: Any,
) -> Row:
    """A row of these rounds. more: sets, in_l2, launches."""
    median = statistics.median(seconds)
    flops, moved = work(program)
    us, spread = round(1e6 * median, 2), round(timing.spread(seconds), 3)
    rates = flops / median / 1e12, moved / median / 1e12
    rounds = tuple(round(1e6 * t, 3) for t in seconds)
    of_it = {"element": error.element, "rounds_us": rounds, **more}
    return Row(
        program.name,
        sizes_of(program),
        variant,
        us,
        spread,
        len(seconds),
        error.frobenius,
        *rates,
        floor_us,
        **of_it,
    )


def outcome(program: Program, result: Any, arguments: Sequence[torch.Tensor]) -> Any:
    """What a run gave: its outputs, or the states that it wrote where it has none."""
    return (
        result
        if program.outputs
        else tuple(a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state")
    )


def work(program: Program) -> tuple[float, float]:
    """(FLOPs of the multiplying ops, bytes of arguments and outputs)."""
    bounds = [OpInstance.of_call(program, c) for c in program.calls]
    flops = sum(2.0 * math.prod(b.out) * _inner(b) for b in bounds)
    outside = [t for t in program.tensors if t.role in ("input", "weight", "state", "output")]
    return flops, float(sum(math.prod(t.shape) * DTYPES[t.dtype] for t in outside))


def _inner(b: OpInstance) -> float:
    """Multiply-adds for one element of the result."""
    match b.attributes:
        case LinearAttributes():
            return float(b.shape(0)[1] * numbers_of(b.dtype(0)))
        case MatmulAttributes(k=k):
            return float(k)
        case ConvAttributes() | GroupedConvAttributes():
            return float(math.prod(b.shape(1)[1:]))
        case ConvTransposeAttributes(stride=stride):
            # every stride-th line and column of a filter
            return float(math.prod(b.shape(1)[1:])) / math.prod(stride)
        case AttentionAttributes(q_len=queries, k_len=keys, causal=causal):
            # scores and values; under a causal mask query i sees k_len - q_len + i + 1 keys
            return 2.0 * (keys - (queries - 1) / 2 if causal else keys)
    return 0.0


# --- what it says -------------------------------------------------------------------------------------------


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """best of others / tilegen, of each cell."""
    cells: dict[Key, list[Row]] = {}
    for r in rows:
        cells.setdefault(key(r), []).append(r)
    found = []
    for of_cell in cells.values():
        compared = (PEERS, best_us(of_cell, ["tilegen"])), (OWN, best_us(of_cell, [one_launch(of_cell)]))
        best = [(best_us(of_cell, others), it) for others, it in compared]
        found.append(
            Ratio(of_cell[0].workload, of_cell[0].sizes, *(b / it if b and it else None for b, it in best))
        )
    return found


def one_launch(rows: Sequence[Row]) -> str:
    """The variant of a cell that is one launch with tile sync; where tilegen is several launches and no other
    was measured, none."""
    if any(r.variant == PERSISTENT for r in rows):
        return PERSISTENT
    return next(("tilegen" for r in rows if r.variant == "tilegen" and r.launches in (None, 1)), "")


def best_us(rows: Sequence[Row], variants: Sequence[str]) -> float | None:
    """The least time of these variants among those that are right."""
    return min((r.us for r in rows if r.variant in variants and not r.wrong), default=None)


def geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.geometric_mean(known) if known else None


def failed(cells: Sequence[Cell]) -> bool:
    """Whether a variant of tilegen gave a wrong result, or none."""
    return any(r.wrong and ours(r.variant) for c in cells for r in c.rows) or any(
        ours(n.variant) for c in cells for n in c.notes
    )


def ours(variant: str) -> bool:
    return variant not in PEERS


def size_labels(rows: Sequence[Row | Note]) -> dict[Key, str]:
    """A short text for each cell's sizes: those that differ among the cells of the workload; the first if
    none does."""
    values: dict[tuple[str, str], set[Any]] = {}
    for r in rows:
        for k, v in r.sizes.items():
            values.setdefault((r.workload, k), set()).add(v)
    found = {}
    for r in rows:
        shown = [k for k in r.sizes if len(values[r.workload, k]) > 1] or list(r.sizes)[:1]
        found[key(r)] = " ".join(f"{k}={r.sizes[k]}" for k in shown)
    return found


def table(cells: Sequence[Cell]) -> str:
    """A line per row, the ratios of each cell, their geometric means, and what could not be measured."""
    rows = [r for c in cells for r in c.rows]
    notes = [n for c in cells for n in c.notes]
    labels = size_labels([*rows, *notes])
    wide = max([5, *map(len, labels.values())]) + 2

    def start(r: Row | Note | Ratio) -> str:
        return f"{r.workload:<16}{labels[key(r)]:<{wide}}"

    peers = {k: best_us([r for r in rows if key(r) == k], PEERS) for k in labels}
    rates = f"{'TFLOP/s':>9}{'TB/s':>7}{'/floor':>8}{'best peer/it':>14}"
    lines = [f"{'workload':<16}{'sizes':<{wide}}{'variant':<20}{'µs':>10}{'spread':>9}{'error':>10}{rates}"]
    for r in rows:
        floor = f"{r.us / r.floor_us:>8.2f}" if r.floor_us else f"{'-':>8}"
        rates = f"{r.tflops:>9.3f}{r.tbs:>7.3f}{floor}"
        peer = peers[key(r)]
        ratio = f"{'ERROR: wrong' if r.wrong else f'{peer / r.us:.2f}' if peer else '-':>14}"
        lines.append(
            f"{start(r)}{r.variant:<20}{r.us:>10.1f}{r.spread:>9.1%}{r.error:>10.1e}{rates}{ratio}"
            f"{'  in L2' if r.in_l2 else ''}"
        )
    found = ratios(rows)
    if any(r.over_peers is not None or r.over_own is not None for r in found):
        lines += ["", f"{'':<{16 + wide}}{OVER_PEERS:>20}  {OVER_OWN}"]
        lines += [f"{start(r)}{_ratio(r.over_peers):>20}  {_ratio(r.over_own)}" for r in found]
        means = [geometric_mean([getattr(r, over) for r in found]) for over in ("over_peers", "over_own")]
        lines.append(f"{'geometric mean':<{16 + wide}}{_ratio(means[0]):>20}  {_ratio(means[1])}")
    lines += [f"not measured: {start(n)}{n.variant}: {n.error}" for n in notes]
    return "\n".join(lines)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# --- the result file ----------------------------------------------------------------------------------------


def heading(run: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What every result file begins with: when, which code, on what, by what."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        **environment,
        "run": run,
    }


def result_file(cells: Sequence[Cell], run: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of benchmarks/results: enough to know what was measured, with what, on what. clocks_mhz: one a
    cell."""
    rows = [r for c in cells for r in c.rows]
    found = ratios(rows)
    return {
        **heading(run, environment),
        "clocks_mhz": [c.clock for c in cells] if any(c.clock for c in cells) else None,
        "rows": [{**asdict(r), "error": _finite(r.error), "element": _finite(r.element)} for r in rows],
        "notes": [asdict(n) for c in cells for n in c.notes],
        "ratios": [
            {"workload": r.workload, "sizes": r.sizes, OVER_PEERS: r.over_peers, OVER_OWN: r.over_own}
            for r in found
        ],
        "geometric_means": {
            OVER_PEERS: geometric_mean([r.over_peers for r in found]),
            OVER_OWN: geometric_mean([r.over_own for r in found]),
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def rows_of(data: Mapping[str, Any]) -> list[Row]:
    """The rows of a result file; what else it says of them is left out."""
    names = {f.name for f in fields(Row)}
    found = []
    for r in ({k: v for k, v in given.items() if k in names} for given in data["rows"]):
        errors = {
            name: math.nan if r[name] is None else r[name] for name in ("error", "element") if name in r
        }
        found.append(Row(**{**r, **errors, "rounds_us": tuple(r.get("rounds_us", ()))}))
    return found


def commit() -> str | None:
    """The commit that is measured: TILEGEN_COMMIT where the caller says it of a copy without git; None where
    nobody knows."""
    if given := os.environ.get("TILEGEN_COMMIT"):
        return given
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def cpu_environment() -> dict[str, Any]:
    return {"device": cpu_name(), "versions": versions()}


def versions() -> dict[str, Any]:
    return {"python": platform.python_version(), "torch": torch.__version__, "tilegen": tilegen.__version__}


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )


def save(data: Mapping[str, Any], path: Path) -> None:
    write_whole(path, json.dumps(data, indent=1) + "\n")
