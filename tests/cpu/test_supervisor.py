"""Cells in a process that may hang or die: every other cell is still measured, and the one to blame is
named."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.supervisor import Job, Lines, supervise

ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import os, sys, time
from pathlib import Path
from benchmarks.supervisor import Lines, jobs_from, serve
from tilegen.runtime.timing import ContenderDied

def measure(job, say):
    without = dict(job.without)
    for name in ("graph", "tilegen"):
        if name in without:
            continue
        say("mlp " + name)
        if (job.cell, name) == (1, "tilegen"):
            Path(sys.argv[1]).with_name("hangs").write_text(str(os.getpid()))
            time.sleep(1000)
        if (job.cell, name) == (2, "graph"):
            os._exit(9)
        if (job.cell, name) == (3, "tilegen"):
            raise ContenderDied(name, "an illegal memory access was encountered")
    if job.cell == 4:
        raise ValueError("too large\\nfor the GPU")
    if job.cell == 5:
        say("mlp round 1 of 3")
        os._exit(7)
    return {"left out": sorted(without)}

lines = Lines(Path(sys.argv[2]))
lines.write(kind="environment", environment={})
serve(jobs_from(Path(sys.argv[1])), lines, float(sys.argv[3]), measure)
"""


def hangs(mark: Path) -> bool:
    """Whether the process that left this mark is still there."""
    try:
        os.kill(int(mark.read_text()), 0)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return False
    return True


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int, seconds: float = 1e9, patience: float = 2e5
) -> dict[int, Any]:
    """What is found of so many cells. Each look at the clock takes 1e5 seconds while a worker hangs; nothing
    here depends on how long anything takes."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "worker.py").write_text(WORKER)
    found: dict[int, Any] = {}
    contender = {"graph": "graph", "tilegen": "tilegen"}

    def keep(job: Job, data: dict[str, Any]) -> None:
        assert job.cell not in found
        found[job.cell] = data | {"killed by": dict(job.without)}

    command = [sys.executable, str(tmp_path / "worker.py")]

    forwarded = [0.0]

    def clock() -> float:
        forwarded[0] += 1e5 if hangs(tmp_path / "hangs") else 0.0
        return time.time() + forwarded[0]

    supervise(
        [Job(n) for n in range(cells)],
        command,
        tmp_path,
        time.time() + seconds,
        patience,
        keep,
        lambda _, text: contender.get(text.split()[-1], ""),
        clock=clock,
    )
    return found


def test_a_cell_that_kills_its_worker_is_measured_without_who_did_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(tmp_path, monkeypatch, 7)
    assert list(found) == list(range(7))
    assert found[0] == found[6] == {"left out": [], "killed by": {}}
    assert (
        found[1]["left out"] == ["tilegen"]
        and "no sign of life for 200000 s" in found[1]["killed by"]["tilegen"]
    )
    assert (
        found[2]["left out"] == ["graph"]
        and found[2]["killed by"]["graph"] == "the process ended with 9 while: mlp graph"
    )
    assert found[3]["left out"] == ["tilegen"] and "illegal memory access" in found[3]["killed by"]["tilegen"]
    assert (
        found[4]["error"] == "ValueError: too large"
        and found[5]["error"] == "the process ended with 7 while: mlp round 1 of 3"
    )


def test_the_time_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(run(tmp_path, monkeypatch, 3, seconds=2e5, patience=1e9)) == [0]


def test_a_line_that_is_being_written_comes_whole(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines")
    assert list(lines.new()) == []
    lines.path.write_text('{"a": 1}\n{"b"')
    assert list(lines.new()) == [{"a": 1}]
    with lines.path.open("a") as f:
        f.write(": 2}\n")
    assert list(lines.new()) == [{"b": 2}] and list(lines.new()) == []
