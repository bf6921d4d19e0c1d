"""The command line on a GPU: what `make run` does, and its kin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tilegen.runtime.driver import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]
ROOT = Path(__file__).resolve().parents[2]


def tilegen(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tilegen", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("examples/gpt3_mlp.py", "-s", "M=64"),
        ("examples/llama_layer.py",),
        ("examples/llama_mlp.py", "--target", "sm_80", "-s", "M=17"),
    ],
    ids=lambda a: Path(a[0]).stem,
)
def test_run_takes_the_gpu(arguments: tuple[str, ...]) -> None:
    report = json.loads(tilegen("run", *arguments, "--json"))
    assert (
        report["ok"]
        and report["proved"]
        and report["target"].startswith("sm_")
        and report["machine"] != "cpu"
    )


def test_generate_gives_cuda(tmp_path: Path) -> None:
    files = json.loads(
        tilegen("generate", "examples/gpt3_mlp.py", "-s", "M=64", "-o", str(tmp_path), "--json")
    )["files"]
    assert any(name.endswith(".cu") for name in files)
