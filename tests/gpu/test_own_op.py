"""The tutorial's own op, in a chain on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu.test_tutorial import FILE, HERE, blocks, run_block
from tilegen.runtime.driver import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]


def test_it_runs(tmp_path: Path) -> None:
    for language, text in blocks("tutorial.md"):
        named = FILE.match(text)
        if named and "unit" in named[1]:
            run_block(language, text, tmp_path)
    command = [
        sys.executable,
        "-m",
        "tilegen",
        "run",
        "unit.py:similarity",
        "--target",
        "cuda",
        "-s",
        "dtype=bfloat16",
        "-s",
        "M=1000",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=HERE)
    assert done.returncode == 0 and "ran on target sm_90a" in done.stdout, done.stdout + done.stderr
