"""tilegen's variants, what a run is checked and counted by, and the CPU's ladder."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilegen import api
from tilegen.arch.machine import Machine
from tilegen.bench.accuracy import Accuracy, accuracy
from tilegen.bench.baselines import eager
from tilegen.bench.rows import EXCLUSIVE, MOVING, PERSISTENT, UNPREPARED, Cell, Row, sizes_of
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

Progress = Callable[[str], None]


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
