"""Which ladder is climbed: the CUDA one where there is a GPU, else the CPU's; with which rungs, for how many
rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilegen.bench.compare import Progress, compare
from tilegen.bench.results import cpu_environment
from tilegen.bench.rows import EXCLUSIVE, GPU_ALONE, MOVING, PEERS, PERSISTENT, STREAMS, UNPREPARED, Cell
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.targets.select import EMITTED, of_here

CPU_ROUNDS, CUDA_ROUNDS = 5, 9
DEFAULT = ("tilegen-barrier", "tilegen", PERSISTENT, EXCLUSIVE, UNPREPARED, MOVING)


class Measure(Protocol):
    def __call__(
        self, program: Program, variants: Mapping[str, Options], moving: Program | None = None
    ) -> Cell: ...


@dataclass(frozen=True)
class Contest:
    """measure: all selected contenders on one program, tilegen's by name and options, the program whose size
    moves, if one does. environment: what it
    runs on."""

    measure: Measure
    environment: dict[str, Any]


def contest(
    target: str = "auto",
    only: str = "",
    without: Sequence[str] = (),
    variants: Sequence[str] = DEFAULT,
    rounds: int | None = None,
    threads: int | None = None,
    progress: Progress = lambda _: None,
) -> Contest:
    """target: a word of targets.select. only, without: names of contenders; variants: tilegen's that a
    program may come with, besides STREAMS."""
    if rounds is not None and rounds < 1:
        raise PlanError(f"--rounds {rounds}: expected at least 1")
    found, why = of_here(target)
    if why:
        raise TargetError(f"--target {target}: {why}")
    if found == "interpret":
        raise TargetError(
            f"--target interpret checks a plan and is not timed; expected auto, {', '.join(EMITTED)}"
        )
    if found == "cpu":
        select = selected((PEERS[0], *(v for v in variants if v not in GPU_ALONE)), only, without)

        def on_cpu(program: Program, variants: Mapping[str, Options], moving: Program | None = None) -> Cell:
            return compare(program, variants, select, threads, rounds or CPU_ROUNDS, progress, moving)

        return Contest(on_cpu, cpu_environment())
    from tilegen.bench.environment import environment
    from tilegen.bench.ladder import ladder

    select = selected(tuple(dict.fromkeys((*PEERS, *STREAMS, *variants))), only, without)

    def on_gpu(program: Program, variants: Mapping[str, Options], moving: Program | None = None) -> Cell:
        count = rounds or CUDA_ROUNDS
        return ladder(program, variants, select, count, progress, target=found, moving=moving)

    return Contest(on_gpu, environment())


def selected(names: Sequence[str], only: str, without: Sequence[str]) -> tuple[str, ...]:
    """The contenders of names that `only` ("eager,graph"; empty: all) asks for."""
    asked = [name.strip() for name in only.split(",")] if only else list(names)
    for name in asked:
        if name not in names:
            raise PlanError(f"--only {only}: no contender {name!r}; they are {', '.join(names)}")
    found = tuple(name for name in names if name in asked and name not in without)
    if not found:
        raise PlanError("no contender is left to measure")
    return found
