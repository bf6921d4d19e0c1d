"""Inductor's kernels of a cell, compiled ahead of the process that measures: benchmarks.inductor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from benchmarks.inductor import compile_cell
from benchmarks.workloads import Task
from tilegen.bench import contenders
from tilegen.bench.contenders import builders
from tilegen.runtime.data import random_arguments

CELL = Task("chains", "gpt3_mlp", {"M": 4, "H": 64, "I": 32})


def test_what_is_compiled_ahead_is_found_by_who_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "DEVICE", "cpu")
    with fresh_cache(dir=str(tmp_path)), torch.no_grad():
        made = compile_cell(CELL, "inductor")
        assert not made.error and made.task == str(CELL) and made.variant == "inductor"
        counters.clear()
        given = [random_arguments(CELL.program, device="cpu")]
        builders(CELL.program, {}, given)["inductor"]().calls[0]()
        told = counters["inductor"]
        assert told["fxgraph_cache_hit"] == 1 and not told["fxgraph_cache_miss"]


def test_a_cell_that_cannot_be_compiled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "DEVICE", "meta-of-nothing")
    made = compile_cell(CELL, "inductor")
    assert "meta-of-nothing" in made.error or "device" in made.error


def test_a_contender_that_a_cell_does_not_have_is_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "DEVICE", "cpu")
    assert not compile_cell(CELL, "inductor-flash").error
