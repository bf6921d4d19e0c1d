"""Which ladder is climbed: the CUDA one where there is a GPU, else the CPU's; with which rungs, for how many
rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.bench.compare import (
    EXCLUSIVE,
    GPU_ALONE,
    PEERS,
    PERSISTENT,
    STREAMS,
    UNPREPARED,
    Cell,
    Progress,
    compare,
    cpu_environment,
)
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.targets.select import EMITTED, of_here

CPU_ROUNDS, CUDA_ROUNDS = 5, 9
DEFAULT = ("tilegen-barrier", "tilegen", PERSISTENT, EXCLUSIVE, UNPREPARED)


@dataclass(frozen=True)
class Contest:
    """measure: all selected contenders on one program, tilegen's by name and options. environment: what it
    runs on."""

    measure: Callable[[Program, Mapping[str, Options]], Cell]
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
        return Contest(
            lambda p, v: compare(p, v, select, threads, rounds or CPU_ROUNDS, progress), cpu_environment()
        )
    from tilegen.bench.environment import environment
    from tilegen.bench.ladder import ladder

    select = selected(tuple(dict.fromkeys((*PEERS, *STREAMS, *variants))), only, without)
    return Contest(
        lambda p, v: ladder(p, v, select, rounds or CUDA_ROUNDS, progress, target=found), environment()
    )


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
