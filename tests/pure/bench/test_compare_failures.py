"""Comparing what is wrong, missing or asked for wrongly: nothing is dropped in silence, no wrong result gets
a ratio."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

import tilegen as tg
from tests.pure.bench.test_compare import ENVIRONMENT, EXAMPLES, row
from tilegen.bench.accuracy import error_of, worst
from tilegen.bench.chart import chart
from tilegen.bench.compare import compare, own_variants
from tilegen.bench.contest import contest, selected
from tilegen.bench.results import result_file
from tilegen.bench.rows import Cell, Note, note
from tilegen.bench.table import OVER_PEERS, failed, ratios, table
from tilegen.cli import main
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.loader import load_program
from tilegen.options import Options
from tilegen.runtime.driver import missing

MLP = [str(EXAMPLES / "gpt3_mlp.py"), "-s", "M=4", "-s", "H=32", "-s", "I=16"]
WRONG = [math.nan, math.inf, 0.011, 1.0]


@pytest.mark.parametrize("error", WRONG)
def test_a_wrong_result_is_an_error_and_has_no_ratio(error: float) -> None:
    cell = Cell((row("graph", 100), row("tilegen-barrier", 95), row("tilegen", 10, error=error)))
    assert failed([cell])
    [found] = ratios(cell.rows)
    assert found.over_peers is None and found.over_own is None
    line = next(line for line in table([cell]).splitlines() if " tilegen " in line)
    assert "ERROR: wrong" in line and "10.00" not in line
    assert "geometric mean" not in table([cell])


@pytest.mark.parametrize("error", WRONG)
def test_a_wrong_peer_is_no_peer(error: float) -> None:
    cell = Cell((row("graph", 100), row("inductor", 1, error=error), row("tilegen", 50)))
    assert ratios(cell.rows)[0].over_peers == 2.0 and not failed([cell]) and "ERROR: wrong" in table([cell])


@pytest.mark.parametrize("errors", [[math.nan, 1.0], [1.0, math.nan]])
def test_nan_is_the_worst_wherever_it_stands(errors: list[float]) -> None:
    assert math.isnan(worst(errors))


def test_nan_in_a_later_output_is_seen() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, math.nan])
    assert math.isnan(error_of((good, bad), (good, good))) and math.isnan(error_of((bad, good), (good, good)))


def test_without_peers_or_without_tilegen() -> None:
    for rows in ([row("tilegen", 80)], [row("graph", 80)], []):
        cell = Cell(tuple(rows))
        assert all(r.over_peers is None for r in ratios(rows)) and "geometric mean" not in table([cell])
        assert result_file([cell], "", ENVIRONMENT)["geometric_means"] == dict.fromkeys(
            result_file([], "", {})["geometric_means"]
        )
        ET.fromstring(chart(rows))


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_no_number_is_null_in_json(error: float) -> None:
    text = json.dumps(result_file([Cell((row("tilegen", 1, error=error),))], "", ENVIRONMENT))
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["rows"][0]["error"] is None


def test_notes_are_told() -> None:
    cell = Cell(
        (row("graph", 100),), (Note("mlp", {"M": 1, "H": 64}, "tilegen", "CompileError: NVRTC refused"),)
    )
    assert failed([cell])
    assert (
        table([cell]).splitlines()[-1].split()
        == "not measured: mlp M=1 tilegen: CompileError: NVRTC refused".split()
    )


def test_a_note_is_the_first_line_of_the_error() -> None:
    program = load_program(MLP[0], {})
    assert note(program, "x", ValueError("first\nsecond")).error == "ValueError: first"
    assert note(program, "x", ValueError()).error == "ValueError: "
    assert len(note(program, "x", ValueError("y" * 5000)).error) == 400


def test_wrong_bars_say_so() -> None:
    root = ET.fromstring(chart([row("graph", 100), row("tilegen", 10, error=math.nan)]))
    texts = {t.text: t.get("fill") for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert texts["wrong"] == "#c00000" and "10.0 µs" not in texts


def test_selection() -> None:
    with pytest.raises(PlanError, match="no contender 'grahp'; they are eager, graph"):
        selected(("eager", "graph"), "eager,grahp", ())
    with pytest.raises(PlanError, match="no contender is left"):
        selected(("eager", "inductor"), "inductor", ("inductor",))


@tg.spec
def single(M=4, N=8):
    return tg.linear(tg.input("x", (M, N), "float32"), tg.weight("w", (N, N), "float32"), name="y")


def test_one_op_alone_has_no_barrier() -> None:
    program = single()
    assert list(own_variants(program, Options())) == ["tilegen-pdl", "tilegen", "tilegen-unprepared"]
    with pytest.raises(PlanError, match="none of tilegen-barrier is offered"):
        compare(program, own_variants(program, Options()), ["tilegen-barrier"])


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_no_gpu() -> None:
    with pytest.raises(TargetError, match="--target cuda: "):
        contest("cuda")
    assert contest("auto", "eager").environment["device"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "no contender 'nothing'"),
        (["--only", "eager,"], "no contender ''"),
        (["--only", "inductor", "--target", "cpu"], "no contender 'inductor'"),
        (["--rounds", "-1"], "--rounds -1: expected at least 1"),
        (["--svg", "/dev/null/c.svg", "--target", "cpu", "--rounds", "1"], "/dev/null/c.svg"),
        (["-s", "M=4,?"], "left open"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["compare", *MLP, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_bad_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *MLP, "--target", "tpu"]) == 2
    assert "unknown target 'tpu'" in capsys.readouterr().err
    assert main(["compare", *MLP, "--target", "interpret"]) == 2
    assert "is not timed; expected auto, sm_90a, sm_80, cpu" in capsys.readouterr().err


def test_a_wrong_tilegen_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tilegen.bench import contest as module

    wrong = Cell((row("eager", 100), row("tilegen", 10, error=0.5)))
    monkeypatch.setattr(module, "compare", lambda *_: wrong)
    assert main(["compare", *MLP, "--target", "cpu", "-o", str(tmp_path / "r.json")]) == 1
    assert "ERROR: wrong" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["ratios"][0][OVER_PEERS] is None
