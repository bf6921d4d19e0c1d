"""benchmarks/chains.py given what it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chains import main
from tilegen.errors import PlanError
from tilegen.planner import Options

RUN = ["--chains", "--gemm", "8,32,64", "--target", "cpu", "--rounds", "1"]


@pytest.mark.parametrize("arguments", [["x"], ["--gemm", "1,2"], ["--gemm", "1,2,0"], ["--gemm", "a,b,c"], ["--chains", "other"]])
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chains"], "nothing to measure"),
        ([*RUN, "--tuned", "nowhere.json"], "cannot read the plan file nowhere.json"),
        ([*RUN, "--only", "mine"], "no contender 'mine'; they are eager, tilegen-barrier, tilegen"),
        (["0", "--chains", "gpt3_mlp"], "at least 1"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_bad_options() -> None:
    with pytest.raises(PlanError, match="no option 'tile'"):
        Options.from_json({"tile": {"gemm": [8, 8]}})


def test_options_that_do_not_fit_are_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text('{"gemm": {"tiles": {"other": [8, 8]}}}')
    assert main([*RUN, "--tuned", str(tmp_path / "t.json"), "-o", str(tmp_path / "r.json")]) == 1
    assert "no such op" in capsys.readouterr().out and "no such op" in (tmp_path / "r.json").read_text()
