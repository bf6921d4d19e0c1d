"""Draws docs/tiles.svg: the same two GeMMs on 16 SMs, with a kernel boundary between them and with tile sync.

The boundary is one semaphore for all of `up`; tile sync has one for each row block. python docs/picture.py
simulates both and adds what the result files of benchmarks/results hold for the same shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilegen as tg
from tilegen.bench.rows import sizes_of
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.tools.svg import svg
from tilegen.tools.trace import Trace

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
BARRIER, SYNC = "tilegen-barrier", ("tilegen-persistent", "tilegen")  # the panels' contenders, as first found


@dataclass(frozen=True)
class Measured:
    """One cell of a result file. us: contender -> median."""

    sizes: Mapping[str, Any]
    us: Mapping[str, float]
    file: str
    commit: str
    device: str

    @property
    def text(self) -> str:
        """M = 512, … on NVIDIA H200: one barrier 239 µs, tile sync 239 µs (FILE, commit …)"""
        sizes = ", ".join(f"{k} = {v}" for k, v in self.sizes.items())
        sync = next(self.us[v] for v in SYNC if v in self.us)
        times = f"one barrier {self.us[BARRIER]:.1f} µs, tile sync {sync:.1f} µs"
        return f"{sizes} on {self.device}: {times} ({self.file}, commit {self.commit})"


def measured(program: Program, results: Path) -> list[Measured]:
    """The cells of this program, at any sizes, in which both contenders ran; the newest file first."""
    found: list[Measured] = []
    for file in sorted(results.glob("*.json"), key=_date, reverse=True):
        data = json.loads(file.read_text())
        origin = f"benchmarks/results/{file.name}", str(data.get("commit")), str(data.get("device"))
        cells: dict[str, dict[str, float]] = {}
        for r in data.get("rows", []):
            if r.get("workload") == program.name and "variant" in r:
                cells.setdefault(json.dumps(r["sizes"]), {})[r["variant"]] = r["us"]
        both = {sizes: us for sizes, us in cells.items() if BARRIER in us and any(v in us for v in SYNC)}
        found += [Measured(json.loads(sizes), us, *origin) for sizes, us in both.items()]
    return found


def _date(file: Path) -> str:
    return str(json.loads(file.read_text()).get("date", ""))


def notes(program: Program, results: Path) -> list[str]:
    """What was measured at the program's sizes; if nothing was, that, and what was at the nearest M."""
    cells, sizes = measured(program, results), sizes_of(program)
    same = next((c for c in cells if c.sizes == sizes), None)
    if same is not None:
        return [f"Measured at these sizes: {same.text}."]
    said = ["At these sizes: not measured."]
    nearest = min(cells, key=lambda c: abs(c.sizes["M"] - sizes["M"]), default=None)
    return said if nearest is None else [*said, f"Measured at the nearest sizes: {nearest.text}."]


def picture(results: Path = RESULTS) -> str:
    program = load_program(str(HERE.parent / "examples" / "gpt3_mlp.py"), {"M": 640, "H": 2048, "I": 1024})
    tiles = {"up": (128, 256), "down": (128, 256)}
    policies = {"kernel boundary (one semaphore)": "kernel", "tile sync (one semaphore per row block)": "row"}
    panels = []
    for title, policy in policies.items():
        plan = tg.plan(program, 16, tiles=tiles, policies={"h": policy}, order="op_major")
        panels.append((title, Trace.simulated(plan)))
    return svg(panels, notes(program, results))


if __name__ == "__main__":
    (HERE / "tiles.svg").write_text(picture())
