"""Result files: enough to know what was measured, with what, on what."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilegen
from tilegen.bench.rows import Cell, Row
from tilegen.bench.table import OVER_OWN, OVER_PEERS, geometric_mean, ratios
from tilegen.config import write_whole


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
