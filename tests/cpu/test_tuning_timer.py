"""The timer of tune with a CPU in the GPU's place: all but the device itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cpu.ladder_on_cpu import Checked, ready
from tests.cpu.test_ladder import writer
from tests.gpu.gemms import mlp
from tilegen.api import compile as compile_for
from tilegen.errors import PlanError
from tilegen.frontend.program import Program
from tilegen.kernels import tuning
from tilegen.kernels.tuning import Variant, ensure_tuned, on_this_gpu
from tilegen.options import Options
from tilegen.runtime import timing
from tilegen.runtime.tuned import lookup
from tilegen.targets.select import place

H200 = place("h200", "sm_90a")


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Options, str, bool]]:
    """What was built; launches of single ops cannot be."""
    asked: list[tuple[Options, str, bool]] = []

    def on_a_cpu(program: Program, on: Any, target: Any, options: Options, lowering: str, early: bool,
                 exclusive: bool, progress: Any) -> Checked:  # fmt: skip
        asked.append((options, lowering, early))
        if lowering == "multi_launch":
            raise PlanError("none of these here")
        return Checked(compile_for(program, "cpu", on="cpu:2", threads=2))

    monkeypatch.setattr(tuning, "on_a_gpu", on_a_cpu)
    monkeypatch.setattr(tuning, "DEVICE", "cpu")
    monkeypatch.setattr(timing, "ready", ready)
    monkeypatch.setattr(timing, "event_seconds", timing.host_seconds)
    monkeypatch.setattr(timing, "MEASUREMENT_S", 1e-4)
    return asked


@pytest.mark.parametrize("program", [mlp(M=9, H=64, I=48), writer()], ids=lambda p: p.name)
def test_plans_are_built_checked_and_timed(program: Program, built: list[Any]) -> None:
    time = on_this_gpu(program, H200, H200.target)  # type: ignore[arg-type]
    batch = {"a": Variant(), "b": Variant(Options(order="op_major")), "c": Variant(Options(), "multi_launch")}
    us = time(batch)  # of a program that gives nothing, its state is written
    assert set(us) == {"a", "b"} and all(v > 0 for v in us.values())
    assert built == [(v.options, v.lowering, v.lowering == "multi_launch") for v in batch.values()]


def test_each_set_has_an_output_of_its_own() -> None:
    program = mlp(M=9, H=64, I=48)
    sets = [[torch.randn(t.shape).bfloat16() for t in program.arguments] for _ in range(3)]
    kernel = compile_for(program, "cpu", on="cpu:2", threads=2)
    made = timing.of_kernel(Checked(kernel), program, sets)
    results = [call() for call in made.calls]
    assert len({r.data_ptr() for r in results}) == 3
    assert all(torch.equal(r, kernel(*given)) for r, given in zip(results, sets, strict=True))


def test_the_fastest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    program = mlp(M=9, H=64, I=48)
    ensure_tuned(program, H200, H200.target, 1e-3, lambda _: None)  # type: ignore[arg-type]
    found = lookup(program, "h200")
    assert found is not None and found.us > 0 and found.lowering == "persistent" and found.tried == 1
