"""Without a GPU a measured trace is refused, and so is a file that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilegen.cli import main
from tilegen.runtime.driver import missing

MLP = [str(Path(__file__).resolve().parents[3] / "examples" / "gpt3_mlp.py"), "-s", "M=64"]


@pytest.mark.skipif(not missing(), reason="a GPU is here")
@pytest.mark.parametrize("machine", [[], ["--machine", "h200"]], ids=str)
def test_no_gpu(machine: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *MLP, *machine, "-o", str(tmp_path / "t.json")]) == 2
    said = capsys.readouterr().err
    assert (
        "TargetError: trace measures on a GPU, target auto: " in said
        and "--simulate" in said
        and missing() in said
        and not (tmp_path / "t.json").exists()
    )


@pytest.mark.parametrize("flag", ["-o", "--svg"])
def test_files_that_cannot_be_written(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["trace", *MLP, "--machine", "h200", "--simulate", flag, str(tmp_path / "file" / "t")]) == 2
    assert "OutputError: cannot write " in (said := capsys.readouterr().err) and "file/t: " in said


def test_unknown_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *MLP, "-s", "nothing=3", "--simulate"]) == 2
    assert "nothing" in capsys.readouterr().err
