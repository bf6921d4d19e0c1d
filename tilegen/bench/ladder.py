"""All contenders on one program in one interleaved run on a GPU: each right on every argument set, then timed
in turns.

Right: called once with poisoned outputs and intermediates; as the graph that is timed, with NaN in its
outputs and in the rows of caches that it appends, on every argument set; and its outputs once more after
timing.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilegen.arch.machine import H200
from tilegen.bench import contenders
from tilegen.bench.accuracy import Accuracy, accuracy, tensors
from tilegen.bench.compare import Progress, refuse_none, refuse_open, row, work
from tilegen.bench.contenders import Sets, builders, knobs
from tilegen.bench.rows import Cell, Note, Row, note
from tilegen.frontend.program import Program
from tilegen.ops.append import AppendAttributes
from tilegen.ops.reference import run as run_reference
from tilegen.options import Options
from tilegen.runtime import timing
from tilegen.runtime.data import argument_bytes, random_arguments
from tilegen.runtime.timing import Contender, ContenderDied, Runner

cudnn: Any = torch.backends.cudnn  # carries no types


def ladder(
    program: Program,
    variants: Mapping[str, Options],
    select: Sequence[str],
    rounds: int = 9,
    progress: Progress = lambda _: None,
    constant: float | None = None,
    target: str = "cuda",
    moving: Program | None = None,
) -> Cell:
    """All selected contenders at one size. One that cannot be built, hangs or cannot be captured becomes a
    note.

    constant: the value of all arguments, where they are not random. moving: the program whose size moves.
    ContenderDied where one leaves the GPU unusable to this process.
    """
    refuse_open(program)
    try:
        with torch.no_grad(), best_convolutions():
            return _measured(program, variants, select, rounds, progress, constant, target, moving)
    finally:
        # the next size needs the memory: contenders, graphs and argument sets go, then the blocks they held
        gc.collect()
        if usable():
            torch.cuda.empty_cache()


def _measured(
    program: Program,
    variants: Mapping[str, Options],
    select: Sequence[str],
    rounds: int,
    progress: Progress,
    constant: float | None,
    target: str,
    moving: Program | None,
) -> Cell:
    progress(f"{program.name} arguments and reference")
    sets = argument_sets(program, constant)
    expected = [on_device_reference(program, arguments) for arguments in sets]
    builds = {
        name: build
        for name, build in builders(program, variants, sets, target, moving).items()
        if name in select
    }
    refuse_none(program, builds, select)
    runners: dict[str, Runner] = {}
    errors: dict[str, Accuracy] = {}
    notes: list[Note] = []
    for name, build in builds.items():
        progress(f"{program.name} {name}")
        try:
            contender = build()
            first = first_call(program, contender, sets, expected)
            runner = timing.ready(contender)
            errors[name] = first.and_also(replayed(program, runner, sets, expected))
            runners[name] = runner
        except (
            Exception
        ) as error:  # whatever a contender raises is its own result: the others are still measured
            notes.append(note(program, name, error))
            if not usable():
                raise ContenderDied(name, notes[-1].error) from error
    if not runners:
        return Cell((), tuple(notes))
    times, clock = _timed(program, runners, rounds, progress)
    rows: list[Row] = []
    of_all = {"sets": len(sets), "in_l2": timing.fits_l2(argument_bytes(program), len(sets))}
    for name, runner in runners.items():
        try:
            runner.check()
        except Exception as error:  # it hung while it was timed: its times mean nothing
            notes.append(note(program, name, error))
            continue
        after = errors[name].and_also(_compared(program, runner.results, sets, expected))
        seconds = [t / len(sets) for t in times[name]]
        rows.append(row(program, name, seconds, after, floor_us(program), launches=runner.launches, **of_all))
    return Cell(tuple(rows), tuple(notes), clock)


def _timed(
    program: Program, runners: Mapping[str, Runner], rounds: int, progress: Progress
) -> tuple[dict[str, list[float]], int | None]:
    """(seconds of a run of all sets in each round, SM clock before the middle round)."""
    runs = {name: r.run for name, r in runners.items()}
    clocks: list[int | None] = []

    def before(n: int) -> None:
        progress(f"{program.name} round {n + 1} of {rounds}")
        if n == rounds // 2:
            clocks.append(timing.clock_under(list(runs.values())[-1]))

    counts = timing.counted(runs, timing.event_seconds)
    return timing.interleave(runs, counts, timing.event_seconds, rounds, before), clocks[0]


# --- what they are given ------------------------------------------------------------------------------------


def argument_sets(program: Program, constant: float | None = None) -> Sets:
    """As many as pass the L2 cache together, each drawn with a seed of its own."""
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    sets = [
        random_arguments(program, seed, contenders.DEVICE)
        for seed in range(timing.set_count(argument_bytes(program), free))
    ]
    if constant is not None:
        for t in (t for a in sets for t in a if t.is_floating_point()):
            t.fill_(constant)
    return sets


@contextmanager
def best_convolutions() -> Iterator[None]:
    """Inside, cuDNN tries all its plans for a convolution, not its first guess or the ten that torch's
    default allows."""
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = True, 0
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before


# --- right or wrong -----------------------------------------------------------------------------------------


def on_device_reference(program: Program, arguments: Sequence[torch.Tensor]) -> Any:
    """The float32 reference on the GPU, with no multiply in TF32. The device context moves what the ops'
    references make themselves."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = False
    try:
        with torch.device(arguments[0].device):
            return run_reference(program, arguments)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def first_call(program: Program, c: Contender, sets: Sets, expected: Sequence[Any]) -> Accuracy:
    """Of the first set, with NaN in outputs, in tilegen's intermediates and in the rows to append before
    it."""
    poison_states(program, sets[:1])
    with knobs(TILEGEN_POISON="1"):
        result = c.calls[0]()
        torch.cuda.synchronize()
    c.check()
    return _compared(program, (result,), sets[:1], expected, states=True)


def replayed(program: Program, runner: Runner, sets: Sets, expected: Sequence[Any]) -> Accuracy:
    """Of every set, by one run of what will be timed, with NaN in its outputs and in the rows to append
    before it."""
    poison_states(program, sets)
    if runner.captured:
        held = {a.untyped_storage().data_ptr() for arguments in sets for a in arguments}
        for t in (t for result in runner.results for t in tensors(result)):
            if t.untyped_storage().data_ptr() not in held:  # a cache that is given back is an argument
                t.fill_(math.nan)
        runner.run()
        results = runner.results
    else:
        results = tuple(call() for call in runner.calls)
    torch.cuda.synchronize()
    runner.check()
    return _compared(program, results, sets, expected, states=True)


def _compared(
    program: Program, results: Sequence[Any], sets: Sets, expected: Sequence[Any], states: bool = False
) -> Accuracy:
    """The worst over the sets. states: those of the sets too, which the contender has just written."""
    found = Accuracy()
    for result, arguments, wanted in zip(results, sets, expected, strict=False):
        written = [a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state"]
        given = (
            *(tensors(result) if program.outputs else ()),
            *(written if states or not program.outputs else ()),
        )
        found = found.and_also(accuracy(program, given, wanted))
    return found


def poison_states(program: Program, sets: Sets) -> None:
    """NaN in the rows of caches that a run appends: whoever leaves them so, or reads them before they are
    written, is seen."""
    places = {t.name: n for n, t in enumerate(program.arguments)}
    for c in program.calls:
        a = c.attributes
        if isinstance(a, AppendAttributes):
            cache, _, *position = (places.get(o.tensor) for o in c.operands)
            for arguments in sets:
                first = int(arguments[position[0]][0]) if position and position[0] is not None else a.at
                arguments[cache][:, first : first + a.seq] = math.nan  # type: ignore[index]


def usable() -> bool:
    """Whether this process can still use the GPU: some CUDA errors stick to it, others are told once."""
    for _ in range(2):
        try:
            torch.cuda.synchronize()
        except (RuntimeError, AssertionError):
            continue
        return True
    return False


def floor_us(program: Program) -> float | None:
    """max(FLOPs / rate, bytes / bandwidth) by the measured ceilings; None on GPUs whose ceilings were not
    measured."""
    if "H200" not in torch.cuda.get_device_name():
        return None
    half = any(t.dtype in ("bfloat16", "float16") for t in program.tensors)
    flops, moved = work(program)
    return 1e6 * max(flops / (H200.flops16 if half else H200.flops32), moved / H200.memory)
