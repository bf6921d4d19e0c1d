"""tune on this GPU: what is found gives the program, and is taken without measuring the next time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilegen as tg
from benchmarks.workloads import conv_pair
from tests.gpu.gemms import mlp
from tilegen.frontend.program import Program
from tilegen.kernels import tuning
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.runtime.driver import missing
from tilegen.runtime.tuned import lookup
from tilegen.targets.select import place

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]


PROGRAMS = [mlp(M=70, H=512, I=1024), conv_pair(B=2, HW=14, C=64)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_what_is_found_gives_the_program(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    kernel = tg.compile(program, "sm_90a", tune=5.0)
    found = lookup(program, place(target="sm_90a").label)
    assert found is not None and found.us > 0 and found.tried >= 2
    given = random_arguments(program, 0, "cuda")
    expected = tg.reference(program, *(a.cpu() for a in given))
    assert relative_error(kernel(*given).float().cpu(), expected) < 1e-2
    torch.cuda.synchronize()
    monkeypatch.setattr(tuning, "on_this_gpu", None)
    again = tg.compile(program, "sm_90a", tune=5.0)
    assert torch.equal(again(*given), kernel(*given))
