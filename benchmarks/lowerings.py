"""One launch of all ops or a launch of each: what the model takes, beside what was measured both ways
(benchmarks.calibrate measure --mixed and --nets).

The regret of a choice: by how much what it takes is slower than the faster of both. Constants of
tilegen.schedule.lowering were chosen by the programs that are not held out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads import Task
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.schedule.lowering import modelled_lowering
from tilegen.targets.select import place

FOLDER = Path(__file__).resolve().parent / "results"
RESULTS = ("calibration-mixed-h200.json", "calibration-nets-h200.json")


@dataclass(frozen=True)
class BothWays:
    """A program, where it ran, and the µs that each lowering took."""

    program: Program
    place: Place
    held_out: bool
    persistent: float
    multi_launch: float

    def regret(self, lowering: str) -> float:
        us = {"persistent": self.persistent, "multi_launch": self.multi_launch}
        return us[lowering] / min(us.values()) - 1


@lru_cache
def programs(path: Path) -> tuple[BothWays, ...]:
    """Every program of a sweep that was timed both ways, on the machine that the file is named after."""
    on = place(path.stem.rpartition("-")[2], "sm_90a")
    timed = ((rows[0], {row["lowering"]: row["us"] for row in rows}) for rows in by_program(path))
    return tuple(
        BothWays(
            Task("calibrate", row["workload"], row["sizes"]).program,
            on,
            row["held_out"],
            us["persistent"],
            us["multi_launch"],
        )
        for row, us in timed
        if {"persistent", "multi_launch"} <= us.keys()
    )


def by_program(path: Path) -> list[list[Any]]:
    """The rows of each program of a sweep."""
    found: dict[str, list[Any]] = {}
    for row in json.loads(path.read_text())["rows"]:
        found.setdefault(f"{row['workload']} {row['sizes']}", []).append(row)
    return list(found.values())


Choice = Callable[[BothWays], str]
CHOICES: dict[str, Choice] = {
    "as the model chooses": lambda b: modelled_lowering(b.program, b.place).name,
    "always one launch": lambda b: "persistent",
    "always a launch of each op": lambda b: "multi_launch",
}


@lru_cache
def held_out(folder: Path = FOLDER) -> tuple[BothWays, ...]:
    """Those that no constant was chosen by."""
    return tuple(b for name in RESULTS for b in programs(folder / name) if b.held_out)


def lines(held: tuple[BothWays, ...]) -> Iterator[str]:
    """A Markdown table of programs that are held out."""
    yield f"| {len(held)} programs, held out | regret: mean | median | p95 | worst |"
    yield "|---|--:|--:|--:|--:|"
    for name, choice in CHOICES.items():
        regrets = [b.regret(choice(b)) for b in held]
        told = (np.mean(regrets), *np.quantile(regrets, (0.5, 0.95, 1.0)))
        yield f"| {name} | {' | '.join(f'{100 * r:.1f} %' for r in told)} |"
