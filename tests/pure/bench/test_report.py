"""docs/performance.md is what the report prints, and the report says what the files say, losses and gaps
included."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.ladders import elsewhere
from benchmarks.report import MARKERS, glance, groups, page, placed
from benchmarks.workloads import tasks, width_pairs
from tilegen.bench.results import result_file, save
from tilegen.bench.rows import Cell, Note, Row, sizes_of

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    "device": "NVIDIA H200",
    "versions": {"torch": "2.11", "cudnn": 91900},
    "remarks": ["something to know"],
}


def row(variant: str, us: float, m: int = 1, **more: Any) -> Row:
    rounds = (us * 0.9, us, us * 1.1)
    known: dict[str, Any] = {"floor_us": 40.0, "rounds_us": rounds, "sets": 3, "launches": 1, **more}
    return Row("mlp", {"M": m, "H": 64}, variant, us, 0.2, 3, 3e-3, 1.5, 3.0, **known)


WIN = Cell(
    (
        row("graph", 100),
        row("cublaslt", 88),
        row("tilegen-pdl", 70),
        row("tilegen-barrier", 85),
        row("tilegen", 80),
    ),
    clock=1980,
)
LOSS = Cell(
    (
        row("graph", 50, 16, in_l2=True),
        row("tilegen-pdl", 60, 16, in_l2=True),
        row("tilegen", 60, 16, launches=2),
        row("tilegen-persistent", 75, 16),
    ),
    (Note("mlp", {"M": 16, "H": 64}, "cublaslt", "TargetError: a | b"),),
)


def write(folder: Path, group: str, cells: list[Cell], **more: Any) -> None:
    data = result_file(cells, f"python -m benchmarks.ladders {group}", ENVIRONMENT)
    save(
        {**data, "commit": "abc1234", "date": "2026-11-22T10:00:00+00:00", "missing": [], **more},
        folder / f"{group}-h200.json",
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path, "chains", [WIN, LOSS], missing=["chains mlp M=64"])
    return tmp_path


def cells_of(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [c.strip() for c in line.strip("|").split("|")]


def test_a_row_a_workload_and_a_column_a_contender(results: Path) -> None:
    text = page(results)
    head = cells_of(text, "|  | graph")
    won, lost = cells_of(text, "| M = 1 |"), cells_of(text, "| M = 16 † |")
    assert head[1:7] == [
        "graph",
        "cublaslt",
        "tilegen-pdl",
        "tilegen-barrier",
        "tilegen",
        "tilegen-persistent",
    ]
    assert won[1:] == [
        "100.0",
        "88.0",
        "70.0",
        "85.0",
        "80.0",
        "–",
        "1.10",
        "1.10 to 1.10",
        "**0.88**",
        "1.06",
        "2.00",
    ]
    assert lost[1:] == [
        "50.0",
        "–",
        "60.0",
        "–",
        "60.0",
        "75.0",
        "**0.83**",
        "0.83 to 0.83",
        "**0.80**",
        "–",
        "1.50",
    ]


def test_one_launch_is_told_even_where_tilegen_is_several(results: Path) -> None:
    found = groups(results, "h200")[0]
    assert [report.over_own(c) for c in found.cells.values()] == [70 / 80, 60 / 75]


def test_what_else_it_says(results: Path) -> None:
    text = page(results)
    joined = " ".join(text.split())
    assert (
        "commit abc1234, 2026-11-22, NVIDIA H200, torch 2.11, cudnn 91900. SM clock 1980 to 1980 MHz. `python"
        " -m benchmarks.ladders chains`" in joined
    )
    assert "Something to know." in joined and "Not measured, for want of time: chains mlp M=64." in joined
    assert "mlp: M = 16: `cublaslt`: TargetError: a \\| b" in joined
    assert (
        "`decode`, " in joined.split("## Not there")[1]
        and "`chains`, " not in joined.split("## Not there")[1]
    )
    assert "`cudnn`: cuDNN's" not in joined  # who was not there is not explained
    worst = cells_of(text.split("## What bounds")[1], "| mlp: M = 16 |")
    assert worst == ["mlp: M = 16", "**0.83**", "graph", "60.0", "40.0", "memory", "1.50", "1.25"]


def test_what_was_drawn_on_another_gpu_stands_beside_and_has_no_part_at_a_glance(results: Path) -> None:
    there = {**ENVIRONMENT, "device": "NVIDIA H100"}
    before = page(results)
    save(result_file([LOSS], "python -m benchmarks.ladders shapes", there), results / "shapes-h100.json")
    after = page(results)
    assert "## Programs drawn at random, which nobody tuned, on an NVIDIA H100\n" in after
    glances = (text.split("## At a glance")[1].split("\n## ")[0] for text in (before, after))
    assert len(set(glances)) == 1


def test_at_a_glance(results: Path) -> None:
    [line] = [line for line in glance(groups(results, "h200")).splitlines() if line.startswith("| feed")]
    assert [c.strip() for c in line.strip("|").split("|")][1:] == [
        "0.96",
        "0.83 to 1.10",
        "1 of 2",
        "in 0",
        "0.84",
    ]


def test_a_wrong_result_has_no_ratio(tmp_path: Path) -> None:
    write(tmp_path, "chains", [Cell((row("graph", 100), row("tilegen", 10, element=3.0)))])
    assert cells_of(page(tmp_path), "| M = 1 |")[1:4] == ["100.0", "wrong", "–"]


def test_times_of_others_stand_in_a_column_of_their_own(tmp_path: Path) -> None:
    cells = [
        Cell(tuple(replace(r, workload="gpt3_mlp", sizes={"M": 512, "inputs": i}) for r in WIN.rows))
        for i in ("random", "constant")
    ]
    write(tmp_path, "cusync", cells, elsewhere=elsewhere())
    text = page(tmp_path)
    assert cells_of(text, "| inputs = constant")[6] == "407" and "It has no part in the ratios" in " ".join(
        text.split()
    )


def test_host(tmp_path: Path) -> None:
    rows = [{"call": "bound(x)", "host_us": 15.0}, {"compile": "cold", "seconds": 0.8}]
    save(
        {**result_file([], "python -m benchmarks.host", ENVIRONMENT), "rows": rows},
        tmp_path / "host-h200.json",
    )
    text = page(tmp_path)
    assert "| bound(x) | 15.0 |" in text and "| cold | 0.8 |" in text and "No result file" in text


def test_files_of_older_ladders_are_not_shown(tmp_path: Path) -> None:
    """They were measured otherwise than the page says."""
    save(result_file([WIN], "benchmarks/chains.py", ENVIRONMENT), tmp_path / "chains-h200.json")
    assert not groups(tmp_path, "h200") and "`chains`, " in " ".join(page(tmp_path).split())


def test_the_readme_gets_its_table_between_the_markers() -> None:
    first, last = MARKERS
    assert (
        placed(f"a\n{first}\nold\n{last}\nb\n", "| new |") == f"a\n{first}\n| new |\n{last}\nb\n"
        and placed("a\n", "x") == "a\n"
    )


def test_the_committed_page_is_what_the_files_say() -> None:
    results = ROOT / "benchmarks" / "results"
    assert (ROOT / "docs" / "performance.md").read_text() == page(results), (
        "run python -m benchmarks.report --write"
    )
    readme = (ROOT / "README.md").read_text()
    assert readme == placed(readme, glance(groups(results, "h200"))), (
        "run python -m benchmarks.report --write"
    )


def test_prose_lines_are_short() -> None:
    prose = [
        line
        for line in (ROOT / "docs" / "performance.md").read_text().splitlines()
        if not re.match(r"\||<|\[", line)
    ]
    assert max(map(len, prose)) <= 110


def test_a_width_stands_beside_its_own_neighbour_or_not_at_all(tmp_path: Path) -> None:
    """Where a neighbour is missing, the next cell is not taken for it."""
    named = [t for t in tasks("widths") if t.workload == "one_softmax"]
    cells = [
        Cell((replace(row("tilegen", us), workload=t.workload, sizes=sizes_of(t.program)),))
        for t, us in zip(named, (30.0, 20.0, 50.0, 40.0), strict=False)
    ]
    write(tmp_path, "widths", [*cells[:1], *cells[2:]])
    _, _, told = page(tmp_path).partition("| aligned | ratio |")
    lines = told.split("\n\n")[0].splitlines()[2:]
    assert len(lines) == 1 and lines[0].endswith("| 50.0 | 40.0 | 1.25 |")


def test_a_neighbour_of_two_widths_stands_beside_both(tmp_path: Path) -> None:
    """It is one cell of the ladder, and each width's pair still is its own."""
    pairs = width_pairs()
    found = tasks("widths")
    assert len(found) == len({str(t) for t in found}) < 2 * len(pairs)
    cells = [
        Cell((replace(row("tilegen", us), workload=t.workload, sizes=sizes_of(t.program)),))
        for us, t in enumerate(found, 2)
    ]
    write(tmp_path, "widths", cells)
    _, _, told = page(tmp_path).partition("| aligned | ratio |")
    lines = told.split("\n\n")[0].splitlines()[2:]
    took = {str(t): us for us, t in enumerate(found, 2)}
    assert [line.split(" | ")[-3:-1] for line in lines] == [
        [f"{took[str(t)]:.1f}" for t in pair] for pair in pairs
    ]
