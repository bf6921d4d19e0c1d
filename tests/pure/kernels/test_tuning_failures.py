"""Programs that cannot be tuned, machines without a GPU, wishes that contradict each other."""

from pathlib import Path

import pytest

import tilegen as tg
from tests.gpu.gemms import mlp
from tilegen.cli import main
from tilegen.errors import PlanError, TargetError
from tilegen.kernels.tuning import search, tune
from tilegen.runtime.driver import missing
from tilegen.targets.base import known
from tilegen.targets.select import place

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
H200 = place("h200", "sm_90a")


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["tune", str(EXAMPLES / "gpt3_mlp.py"), "-s", "M=64"]) == 2
        and "tune measures on a GPU" in capsys.readouterr().err
    )
    with pytest.raises(TargetError, match="target cuda"):
        tg.compile(mlp(M=1), "cuda", on="h200", tune=1.0)


def test_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["tune", str(EXAMPLES / "gpt3_mlp.py"), "--seconds", "0"]) == 2
        and "--seconds 0: expected more than 0" in capsys.readouterr().err
    )


@pytest.mark.parametrize("seconds", [0, -1.0, True, "60", float("nan")])
def test_what_is_no_time(seconds: object) -> None:
    with pytest.raises(TargetError, match="tune is a number of seconds above 0, given"):
        tg.compile(mlp(M=1), "cpu", tune=seconds)


def test_a_cpu_is_not_tuned_for() -> None:
    with pytest.raises(TargetError, match="tune measures on a GPU, the target is cpu"):
        tg.compile(mlp(M=1), "cpu", tune=1.0)


def test_a_size_that_moves() -> None:
    with pytest.raises(PlanError, match="mlp: a size moves .*; tune measures one size"):
        tune(mlp(M=tg.dim("M", max=64)), H200, known()["sm_90a"], 1.0)


def test_no_plan_can_be_built() -> None:
    with pytest.raises(PlanError, match="mlp: none of its plans can be built"):
        search(mlp(M=64), H200, 1.0, lambda batch: {})
