"""Comparing: which rungs, ratios, the table, the result file."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.workloads import example
from tilegen.bench import contest as module
from tilegen.bench.compare import own_variants, work
from tilegen.bench.contest import contest, selected
from tilegen.bench.results import result_file, rows_of, save
from tilegen.bench.rows import EXCLUSIVE, MOVING, OWN, PEERS, PERSISTENT, UNPREPARED, Cell, Note, Row
from tilegen.bench.table import OVER_OWN, OVER_PEERS, failed, geometric_mean, ratios, size_labels, table
from tilegen.cli import main
from tilegen.frontend.loader import load_program
from tilegen.ops.attention import AttentionAttributes
from tilegen.options import Options

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ENVIRONMENT = {"device": "NVIDIA H200", "versions": {"torch": "2.11"}}


def row(
    variant: str,
    us: float,
    m: int = 1,
    error: float = 3e-3,
    workload: str = "mlp",
    floor_us: float | None = None,
) -> Row:
    return Row(workload, {"M": m, "H": 64}, variant, us, 0.01, 9, error, 1.5, 2.5, floor_us)


TWO = [
    Cell(
        (row("eager", 120), row("graph", 100, floor_us=80.0), row("tilegen-barrier", 90), row("tilegen", 80)),
        clock=1980,
    ),
    Cell(
        (
            row("eager", 220, 16),
            row("graph", 90, 16),
            row("tilegen-barrier", 95, 16),
            row("tilegen", 100, 16),
        ),
        clock=1755,
    ),
]
ROWS = [r for c in TWO for r in c.rows]


def test_ratios() -> None:
    first, second = ratios(ROWS)
    assert (first.over_peers, first.over_own) == (100 / 80, 90 / 80)
    assert (second.over_peers, second.over_own) == (90 / 100, 95 / 100)  # losses are ratios like others
    assert geometric_mean([first.over_peers, None, second.over_peers]) == pytest.approx(math.sqrt(1.25 * 0.9))


def test_the_best_of_all_own_variants_counts() -> None:
    rows = [
        row("tilegen-kernel", 70),
        row("tilegen-pdl", 60),
        row("tilegen-barrier", 90),
        row("tilegen", 80),
        row("inductor", 160),
    ]
    [found] = ratios(rows)
    assert (found.over_peers, found.over_own) == (2.0, 0.75)


def test_tile_sync_is_told_for_one_launch() -> None:
    """Not for the better of two ways: where tilegen is launches of single ops, for its one launch beside
    them."""
    rows = [row("graph", 160), row("tilegen-pdl", 60), row("tilegen-barrier", 90), row("tilegen", 60)]
    [found] = ratios([*rows, row("tilegen-persistent", 80)])
    assert (found.over_peers, found.over_own) == (160 / 60, 60 / 80)
    [found] = ratios([*rows[:-1], replace(rows[-1], launches=2)])
    assert found.over_own is None


def test_a_wrong_element_is_wrong() -> None:
    assert (
        not row("tilegen", 1).wrong
        and replace(row("tilegen", 1), element=1.01).wrong
        and replace(row("tilegen", 1), element=math.nan).wrong
    )


def test_the_caller_may_name_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_COMMIT", "abc1234")
    assert result_file([], "", {})["commit"] == "abc1234"


def test_table() -> None:
    text = table(TWO)
    assert OVER_PEERS in text and OVER_OWN in text and "geometric mean" in text and "H=64" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 140
    graph = next(line for line in lines if " graph " in line)
    assert "M=1 " in graph and "100.0" in graph and graph.split()[-2:] == ["1.25", "1.00"]
    assert lines[-1].split()[-2:] == [f"{math.sqrt(1.25 * 0.9):.3f}", f"{math.sqrt(1.125 * 0.95):.3f}"]


def test_labels_name_what_differs() -> None:
    a, b = (
        Row("a", {"M": 1, "d": "x"}, "eager", 1, 0, 1, 0, 0, 0),
        Row("a", {"M": 1, "d": "y"}, "eager", 1, 0, 1, 0, 0, 0),
    )
    assert list(size_labels([a, b]).values()) == ["d=x", "d=y"] and list(size_labels([a]).values()) == ["M=1"]


def test_result_file(tmp_path: Path) -> None:
    noted = Cell(
        TWO[1].rows, (Note("mlp", {"M": 16}, "inductor", "InductorError: no compiler"),), TWO[1].clock
    )
    save(result_file([TWO[0], noted], "compare mlp.py", ENVIRONMENT), tmp_path / "new" / "r.json")
    data = json.loads((tmp_path / "new" / "r.json").read_text())
    assert {
        "date",
        "commit",
        "device",
        "versions",
        "run",
        "clocks_mhz",
        "rows",
        "notes",
        "ratios",
        "geometric_means",
    } == set(data)
    assert data["clocks_mhz"] == [1980, 1755] and data["device"] == "NVIDIA H200"
    assert data["notes"] == [
        {"workload": "mlp", "sizes": {"M": 16}, "variant": "inductor", "error": "InductorError: no compiler"}
    ]
    assert data["ratios"][0][OVER_PEERS] == 1.25 and data["geometric_means"][OVER_OWN] == pytest.approx(
        math.sqrt(1.125 * 0.95)
    )
    assert rows_of(data) == ROWS
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["r.json"]


def test_work() -> None:
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 8, "H": 32, "I": 16})
    assert work(program) == (2 * 2.0 * 8 * 32 * 16, 2.0 * (2 * 8 * 32 + 2 * 32 * 16))
    program = load_program(str(EXAMPLES / "llama_mlp.py"), {"M": 8, "H": 32, "I": 16})
    assert work(program)[0] == 3 * 2.0 * 8 * 32 * 16
    causal = load_program(str(EXAMPLES / "gpt3_attention.py"), {"S": 4})
    [attention] = [c for c in causal.calls if c.kind == "attention"]
    a = AttentionAttributes.of(attention)
    linears = [(c.operands[0].tensor, c.result) for c in causal.calls if c.kind == "linear"]
    products = sum(
        2.0 * 4 * causal.tensor(x).plan_shape[1] * causal.tensor(y).plan_shape[1] for x, y in linears
    )
    assert work(causal)[0] - products == 4.0 * a.heads * a.head_dim * (1 + 2 + 3 + 4)


def test_own_variants() -> None:
    mlp = load_program(str(EXAMPLES / "gpt3_mlp.py"), {})
    options = Options(order="op_major", policies=(("h", "row"),))
    found = own_variants(mlp, options)
    assert list(found) == [*OWN, "tilegen", EXCLUSIVE, UNPREPARED] and found["tilegen"] == options
    assert found["tilegen-barrier"] == Options(order="op_major", policies=(("*", "kernel"),))
    # nothing waits in a launch of one op
    assert found["tilegen-kernel"] == found["tilegen-pdl"] == Options(order="op_major")


def test_one_launch_stands_beside_launches_that_the_model_holds_for_faster() -> None:
    slow = load_program(str(EXAMPLES / "llama_mlp.py"), {"M": 1})
    fast = example("llama_layer", S=1, S_max=576)  # by the model, in one launch
    assert list(own_variants(slow, Options())) == [*OWN, "tilegen", PERSISTENT, UNPREPARED]
    assert PERSISTENT not in own_variants(fast, Options()) and PERSISTENT not in own_variants(
        slow, Options(order="op_major")
    )


def test_selected() -> None:
    names = ("eager", "graph", "inductor", "tilegen")
    assert selected(names, "", ()) == names and selected(names, "", ("inductor",)) == (
        "eager",
        "graph",
        "tilegen",
    )
    assert selected(names, "tilegen, eager", ()) == ("eager", "tilegen")


def test_launches_of_single_ops_are_contenders_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "of_here", lambda target: (target, ""))
    monkeypatch.setattr("tilegen.bench.environment.environment", dict)
    monkeypatch.setattr(
        "tilegen.bench.ladder.ladder", lambda p, v, select, *more, **how: asked.append(select)
    )
    monkeypatch.setattr(module, "compare", lambda p, v, select, *more: asked.append(select))
    nobodys: Any = None  # what is measured does not look at its program here
    variants = ("tilegen-pdl", "mine", "tilegen")
    contest("cuda").measure(nobodys, {})
    contest("cuda", "tilegen-pdl,tilegen", variants=variants).measure(nobodys, {})
    contest("cpu", variants=variants).measure(nobodys, {})
    assert asked == [
        (*PEERS, *OWN, "tilegen", PERSISTENT, EXCLUSIVE, UNPREPARED, MOVING),
        ("tilegen-pdl", "tilegen"),
        ("eager", "mine", "tilegen"),
    ]


def test_failed() -> None:
    assert not failed(TWO)
    assert not failed([Cell((), (Note("mlp", {}, "inductor", "no compiler"),))]) and not failed(
        [Cell((row("eager", 1, error=1.0),))]
    )


# --- the command --------------------------------------------------------------------------------------------


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = [
        str(EXAMPLES / "gpt3_mlp.py"),
        "-s",
        "M=4,8",
        "-s",
        "H=32",
        "-s",
        "I=16",
        "--target",
        "cpu",
        "--rounds",
        "2",
        "--threads",
        "1",
    ]
    assert (
        main(
            ["compare", *sizes, "--only", "tilegen,eager", "--no-inductor", "--svg", str(tmp_path / "c.svg")]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert OVER_PEERS in out and "tilegen-barrier " not in out.split(OVER_PEERS)[0] and "M=8" in out
    ET.parse(tmp_path / "c.svg")


def test_rounds_by_default() -> None:
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 4, "H": 32, "I": 16})
    cell = contest("cpu", "eager").measure(program, {})
    assert (
        [(r.variant, r.rounds) for r in cell.rows] == [("eager", 5)]
        and cell.notes == ()
        and cell.clock is None
    )
