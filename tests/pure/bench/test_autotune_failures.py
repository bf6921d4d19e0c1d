"""Files of choices that are not, programs that cannot be tuned, machines without a GPU."""

from pathlib import Path

import pytest

import tilegen as tg
from tests.gpu.gemms import mlp
from tilegen.arch.machine import machine
from tilegen.bench.autotune import candidates, tune
from tilegen.cli import main
from tilegen.errors import CacheError, PlanError, TargetError
from tilegen.frontend.loader import load_program
from tilegen.runtime.driver import missing
from tilegen.runtime.tuned import lookup

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_not_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "tuned.json").write_text("{")
    with pytest.raises(CacheError, match=r"tuned.json is not a file of tuned choices.*remove it"):
        lookup(mlp(M=1), "h200")


def test_only_chains_of_linears() -> None:
    with pytest.raises(PlanError, match="only chains of linears are tuned, conv2d is not"):
        candidates(load_program(str(EXAMPLES / "vgg19.py"), {}), machine("h200"))


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TargetError, match="target cuda: no NVIDIA driver|torch sees no CUDA device"):
        tune(mlp(M=1))
    assert (
        main(["tune", str(EXAMPLES / "gpt3_mlp.py"), "-s", "M=64"]) == 2
        and "tune measures on a GPU" in capsys.readouterr().err
    )
    with pytest.raises(TargetError, match="target cuda"):
        tg.compile(mlp(M=1), "cuda", on="h200")


def test_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["tune", str(EXAMPLES / "gpt3_mlp.py"), "--rounds", "0"]) == 2
        and "--rounds 0" in capsys.readouterr().err
    )
