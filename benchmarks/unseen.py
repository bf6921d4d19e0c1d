"""What tg.compile takes of programs that were drawn when all of the model had been fitted, beside the other
plans of each that were timed (benchmarks.calibrate measure, with a seed that nothing else has).

The regret: by how much what is taken is slower than the fastest that was measured. Of linears and
convolutions alone the model's times are held against the measured ones, too (benchmarks.fit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit import Error, conv_pairs, error_of, pairs
from benchmarks.lowerings import by_program
from benchmarks.workloads import Task
from tilegen.schedule.lowering import modelled_lowering
from tilegen.targets.select import place

FOLDER = Path(__file__).resolve().parent / "results"
RESULTS = (FOLDER / "calibration-unseen-h200.json", FOLDER / "calibration-unseen-again-h200.json")
# drawn by chance though a sweep that was fitted to holds them (calibration-convs-h200.json): not counted
SEEN: tuple[Mapping[str, Any], ...] = ({"B": 2, "HW": 56, "C": 512, "N": 64, "size": 3, "stride": 1},)
FAMILIES = {
    "linear": "linears",
    "conv": "convolutions",
    "block": "two linears",
    "attention": "attention blocks, in one launch and in launches",
    "encoder": "encoder layers, the same",
    "layer": "decoder layers, the same",
}


@dataclass(frozen=True)
class Taken:
    """A program, how many of its plans were timed, and the µs of what tg.compile takes and of the fastest."""

    family: str
    plans: int
    us: float
    least: float

    @property
    def regret(self) -> float:
        return self.us / self.least - 1


def taken(paths: Sequence[Path] = RESULTS) -> list[Taken]:
    """Every program of which several plans were timed, on the machines that the files are named after."""
    return [t for path in paths for t in _in_file(path)]


@lru_cache
def _in_file(path: Path) -> tuple[Taken, ...]:
    gpu = path.stem.rpartition("-")[2]
    # torch is a peer
    fresh = (rows for rows in by_program(path) if rows[0]["sizes"] not in SEEN)
    plans = ([row for row in rows if row["lowering"] != "torch"] for rows in fresh)
    return tuple(_taken(rows, gpu) for rows in plans if len(rows) > 1)


def _taken(rows: Sequence[Mapping[str, Any]], gpu: str) -> Taken:
    lowerings = {row["lowering"] for row in rows}
    if len(lowerings) > 1:
        program = Task("unseen", rows[0]["workload"], rows[0]["sizes"]).program
        lowerings &= {modelled_lowering(program, place(gpu, "sm_90a")).name}
    (own,) = (row for row in rows if not row["tiles"] and row["lowering"] in lowerings)
    return Taken(rows[0]["family"], len(rows), own["us"], min(row["us"] for row in rows))


def errors(paths: Sequence[Path] = RESULTS) -> Mapping[str, Error]:
    """Of the model's times of single ops, by family."""
    seen = [str(sizes) for sizes in SEEN]
    convolutions = [p for p in conv_pairs(tuple(paths)) if p.program not in seen]
    return {"linear": error_of(pairs(tuple(paths))), "conv": error_of(convolutions)}


def lines(paths: Sequence[Path] = RESULTS) -> Iterator[str]:
    """A Markdown table, a line a family, then all."""
    yield "| programs | how many, plans | regret: median, p95, worst | Spearman | within 0.8 to 1.25 |"
    yield "|---|--:|--:|--:|--:|"
    every, of = taken(paths), errors(paths)
    for family, name in FAMILIES.items():
        if mine := [t for t in every if t.family == family]:
            yield _line(name, mine, of.get(family))
    yield _line("all", every, None)


def _line(name: str, some: Sequence[Taken], of: Error | None) -> str:
    regret = ", ".join(f"{100 * q:.1f} %" for q in np.quantile([t.regret for t in some], (0.5, 0.95, 1.0)))
    told = f"{of.spearman:.2f} | {100 * of.near:.0f} %" if of else " | "
    return f"| {name} | {len(some)}, {sum(t.plans for t in some)} | {regret} | {told} |"
