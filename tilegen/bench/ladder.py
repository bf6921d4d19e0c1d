"""The CUDA ladder: torch eager, in a graph, cublasLt, inductor, and tilegen's variants, in one interleaved run on one GPU.

Each contender must be right twice: called once with poisoned outputs (tilegen's intermediates too), and as the graph that is timed.
tilegen's outputs of every argument set are compared again after timing.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.metadata
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilegen import api
from tilegen.bench import timing
from tilegen.bench.baselines import conv_chains, eager, gelu_pairs, inductor
from tilegen.bench.compare import (
    PERSISTENT,
    STREAMS,
    Cell,
    Note,
    Progress,
    error_of,
    note,
    outcome,
    refuse_none,
    refuse_open,
    row,
    versions,
    work,
    worst,
)
from tilegen.bench.timing import Contender, Runner
from tilegen.data import random_arguments
from tilegen.machine import H200
from tilegen.planner import Options
from tilegen.reference import run as run_reference
from tilegen.spec import DTYPES, Program

DEVICE = "cuda"
PATIENCE_MS = "1000"  # a launch takes a few ms: one that hangs should cost no more of a lent machine's time
EXCLUSIVE = "tilegen's kernels are compiled with exclusive=True: the benchmark runs nothing else beside them"
cudnn: Any = torch.backends.cudnn  # carries no types
Sets = Sequence[Sequence[torch.Tensor]]
HOW: dict[str, dict[str, Any]] = {
    **{name: {"lowering": "streams", "programmatic": early} for name, early in zip(STREAMS, (False, True), strict=True)},
    PERSISTENT: {"lowering": "persistent"},
}


def ladder(
    program: Program,
    variants: Mapping[str, Options],
    select: Sequence[str],
    rounds: int = 9,
    progress: Progress = lambda _: None,
) -> Cell:
    """All selected rungs at one size. A rung that cannot be built, hangs or cannot be captured becomes a note."""
    refuse_open(program)
    cudnn.benchmark = True  # torch's best convolution, not its first guess
    try:
        with torch.no_grad():
            return _measured(program, variants, select, rounds, progress)
    finally:  # the next size needs the memory: contenders, graphs and argument sets go, then the blocks they held
        gc.collect()
        torch.cuda.empty_cache()


def _measured(program: Program, variants: Mapping[str, Options], select: Sequence[str], rounds: int, progress: Progress) -> Cell:
    progress(f"{program.name} arguments and reference")
    sets = [random_arguments(program, seed, DEVICE) for seed in range(timing.set_count(weight_bytes(program)))]
    expected = on_device_reference(program, sets[0])
    builds = {name: build for name, build in builders(program, variants, sets).items() if name in select}
    refuse_none(program, builds, select)
    runners: dict[str, Runner] = {}
    errors: dict[str, list[float]] = {}
    notes: list[Note] = []
    for name, build in builds.items():
        progress(f"{program.name} {name}")
        try:
            contender = build()
            first = poisoned_error(program, contender, sets[0], expected)
            runner = timing.ready(contender)
            errors[name] = [first, replayed_error(program, runner, sets[0], expected)]
            runners[name] = runner
        except Exception as error:  # whatever a rung raises is its own result: the others are still measured
            notes.append(note(program, name, error))
    if not runners:
        return Cell((), tuple(notes))
    times, clock = _timed(program, runners, rounds, progress)
    wanted = functools.cache(lambda n: on_device_reference(program, sets[n]))
    rows = []
    for name, runner in runners.items():
        try:
            runner.check()
        except Exception as error:  # it hung while it was timed: its times mean nothing
            notes.append(note(program, name, error))
            continue
        if runner.captured:
            errors[name].append(error_of(outcome(program, runner.first, sets[0]), expected))
        errors[name] += [error_of(result, wanted(n)) for n, result in enumerate(runner.outputs) if n and program.outputs]
        rows.append(row(program, name, [t / len(sets) for t in times[name]], worst(errors[name]), floor_us(program)))
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


# --- the rungs -----------------------------------------------------------------------------------------------------------


def builders(program: Program, variants: Mapping[str, Options], sets: Sets) -> dict[str, Callable[[], Contender]]:
    """What makes each rung, in the ladder's order. cublaslt and cudnn are offered where the program has GeMMs or convolutions that they can fuse."""
    plain = functools.partial(eager, program, sets[0])
    found: dict[str, Callable[[], Contender]] = {
        "eager": lambda: over_sets(plain(), sets, captured=False),
        "graph": lambda: over_sets(plain(), sets),
    }
    if gelu_pairs(program):
        found["cublaslt"] = lambda: over_sets(eager(program, sets[0], gelu_pairs(program)), sets)
    if conv_chains(program):
        found["cudnn"] = lambda: over_sets(eager(program, sets[0], conv_chains(program)), sets)
    found["inductor"] = lambda: over_sets(inductor(plain()), sets)
    found |= {name: functools.partial(own, program, options, sets, **HOW.get(name, {})) for name, options in variants.items()}
    return found


def over_sets(f: Callable[..., Any], sets: Sets, captured: bool = True) -> Contender:
    return Contender(tuple(functools.partial(f, *arguments) for arguments in sets), captured)


def own(program: Program, options: Options, sets: Sets, **how: Any) -> Contender:
    """tilegen's kernel, with the weights of each set prepared, into outputs of its own. how: what api.compile is told besides."""
    calls, prepared, outputs = [], [], []
    with knobs(TILEGEN_TIMEOUT_MS=os.environ.get("TILEGEN_TIMEOUT_MS", PATIENCE_MS)):
        kernel = api.compile(program, target="cuda", options=options, exclusive=True, **how)
        for arguments in sets:
            named = {t.name: a for t, a in zip(program.arguments, arguments, strict=True)}
            weights = {t.name: named.pop(t.name) for t in program.arguments if t.role == "weight"}
            bound: Any = kernel.prepare(**weights)
            prepared.append(bound)
            outputs.append(poisoned_outputs(program))
            calls.append(functools.partial(bound, *named.values(), out=outputs[-1]))

    def check() -> None:
        for bound in prepared:
            bound.check()

    return Contender(tuple(calls), check=check, outputs=tuple(outputs))


def poisoned_outputs(program: Program) -> Any:
    """What out= takes: NaN everywhere."""
    made = [program.tensor(name) for name in program.outputs]
    outputs = [torch.full(t.shape, math.nan, dtype=getattr(torch, t.dtype), device=DEVICE) for t in made]
    return outputs[0] if len(outputs) == 1 else outputs or None


# --- right or wrong --------------------------------------------------------------------------------------------------------


def on_device_reference(program: Program, arguments: Sequence[torch.Tensor]) -> Any:
    """The float32 reference on the GPU, with no multiply in TF32. The device context moves what the ops' references make themselves."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        with torch.device(arguments[0].device):
            return run_reference(program, arguments)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def knobs(**values: str) -> Iterator[None]:
    """These environment variables inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def poisoned_error(program: Program, c: Contender, arguments: Sequence[torch.Tensor], expected: Any) -> float:
    """The error of the first set's call, with NaN in outputs and intermediates before it."""
    with knobs(TILEGEN_POISON="1"):
        result = c.calls[0]()
        torch.cuda.synchronize()
    c.check()
    return error_of(outcome(program, result, arguments), expected)


def replayed_error(program: Program, runner: Runner, arguments: Sequence[torch.Tensor], expected: Any) -> float:
    """The error of the captured graph's first set, with NaN in its outputs before the replay; 0 for what is not captured."""
    if not runner.captured:
        return 0.0
    results = runner.first if isinstance(runner.first, (tuple, list)) else (runner.first,)
    for t in results if program.outputs else ():  # states are what a run starts from
        t.fill_(math.nan)
    runner.run()
    torch.cuda.synchronize()
    runner.check()
    return error_of(outcome(program, runner.first, arguments), expected)


# --- what it ran on --------------------------------------------------------------------------------------------------------


def weight_bytes(program: Program) -> int:
    return sum(math.prod(t.shape) * DTYPES[t.dtype] for t in program.arguments if t.role == "weight")


def floor_us(program: Program) -> float | None:
    """max(FLOPs / rate, bytes / bandwidth) by the measured ceilings; None on GPUs whose ceilings were not measured."""
    if "H200" not in torch.cuda.get_device_name():
        return None
    half = any(t.dtype in ("bfloat16", "float16") for t in program.tensors)
    flops, moved = work(program)
    return 1e6 * max(flops / (H200.flops16 if half else H200.flops32), moved / H200.memory)


def environment() -> dict[str, Any]:
    """Device, versions and what else a reader should know, for the result file."""
    driver = timing.nvidia_smi("driver_version")
    found = {
        **versions(),
        "triton": _distribution("triton"),
        "cuda": torch.version.cuda,
        "cublas": cublas_version(),
        "cudnn": cudnn.version(),
        "driver": driver,
    }
    return {"device": torch.cuda.get_device_name(), "versions": found, "remarks": [EXCLUSIVE]}


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cublas_version() -> str | None:
    """Of the cuBLAS that torch uses: major.minor.patch."""
    try:
        library = ctypes.CDLL(f"libcublas.so.{(torch.version.cuda or '').split('.')[0]}")
    except OSError:
        return None
    parts = [ctypes.c_int() for _ in range(3)]
    if any(library.cublasGetProperty(n, ctypes.byref(p)) for n, p in enumerate(parts)):
        return None
    return ".".join(str(p.value) for p in parts)
