"""benchmarks.ladders from end to end with a CPU in the GPU's place; what it compiles ahead; what it is asked
for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ladders, precompile
from benchmarks.workloads import DRAWN, SEED, Task, tasks
from tilegen import api
from tilegen.arch.machine import H200
from tilegen.bench.compare import own_variants
from tilegen.bench.contenders import WAYS, Way
from tilegen.bench.results import rows_of
from tilegen.options import Options
from tilegen.targets.select import named

ROOT = Path(__file__).resolve().parents[2]
SMALL = [Task("chains", "gpt3_mlp", {"M": m, "H": 64, "I": 32}) for m in (4, 8)]
RUN = "python -m benchmarks.ladders chains --rounds 2 --only graph,cublaslt,tilegen --cells M=4 --seconds 200"
WORKER = """
import sys
import pytest
sys.path.insert(0, {here!r})
from ladder_on_cpu import stand_in
from benchmarks import ladders
from tests.cpu.test_ladders import SMALL
from tilegen.bench import environment
patch = pytest.MonkeyPatch()
stand_in(patch)
here = {{"device": "NVIDIA H200", "versions": {{"torch": "2"}}, "remarks": []}}
patch.setattr(environment, "environment", lambda: here)
patch.setattr(ladders, "tasks", lambda *_: SMALL)
raise SystemExit(ladders.main(sys.argv[1:]))
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TILEGEN_COMMIT", "abc1234")
    monkeypatch.setattr(ladders, "tasks", lambda *_: SMALL)
    monkeypatch.setattr(ladders, "precompile", lambda *_: [])
    path = tmp_path / "worker.py"
    path.write_text(WORKER.format(here=str(Path(__file__).parent)))
    return [sys.executable, str(path)]


def test_a_run_and_what_it_had_no_time_for(tmp_path: Path, worker: list[str]) -> None:
    common = ["chains", "--rounds", "2", "--only", "graph,cublaslt,tilegen", "-o", str(tmp_path / "out")]
    assert ladders.main([*common, "--cells", "M=4", "--seconds", "200"], worker) == 0
    path = tmp_path / "out" / "chains-h200.json"
    data = json.loads(path.read_text())
    assert data["commit"] == "abc1234" and data["run"] == RUN
    assert (
        [r.variant for r in rows_of(data)] == ["graph", "cublaslt", "tilegen"]
        and data["missing"] == []
        and data["notes"] == []
    )
    for r in rows_of(data):
        assert len(r.rounds_us) == 2 and r.sets == 24 and r.in_l2 and 0 < r.element < 1
    assert ladders.main([*common, "--seconds", "200", "--after", str(tmp_path / "out")], worker) == 0
    both = json.loads(path.read_text())
    assert both["rows"][:3] == data["rows"] and [r.sizes["M"] for r in rows_of(both)] == [4] * 3 + [8] * 3
    assert [e["run"] for e in both["earlier"]] == [data["run"]] and len(both["clocks_by_cell"]) == 2
    assert "--after" not in both["run"] and str(tmp_path) not in path.read_text()


def test_an_earlier_run_that_measured_nothing_is_not_named(tmp_path: Path) -> None:
    """Its file holds what it had no time for."""
    o = ladders.parsed(["chains", "-o", str(tmp_path)])
    first, second = (ladders.Files(o, SMALL, "run", 0.0) for _ in range(2))
    first.environment = second.environment = {"device": "NVIDIA H200"}
    first.write("chains")
    second.keep(tmp_path)
    assert not second.found and second.earlier == {"chains": []}


def test_what_is_missing_is_named(
    tmp_path: Path, worker: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ladders.main(["chains", "-o", str(tmp_path), "--seconds", "1"], worker) == 1
    assert f"missing: {SMALL[1]}" in capsys.readouterr().out
    data = json.loads((tmp_path / "chains-unknown.json").read_text())
    assert data["missing"] == [str(t) for t in SMALL] and data["rows"] == []


def test_which_contenders() -> None:
    o = ladders.parsed(["chains", "convolutions", "--inductor", "gpt3_mlp M=4", "-o", "x"])
    assert {"inductor", "inductor-flash"} < set(ladders.selection(o, SMALL[0]))
    rest = ladders.selection(o, Task("convolutions", "conv_pair"))
    assert not {"inductor", "eager", "tilegen-kernel"} & set(rest) and {
        "cudnn",
        "tilegen",
        "tilegen-pdl",
    } < set(rest)
    assert ladders.selection(ladders.parsed(["chains", "--only", "tilegen,graph", "-o", "x"]), SMALL[0]) == (
        "graph",
        "tilegen",
    )
    task = Task("chains", "gpt3_mlp", {"M": 16})
    assert (
        ladders.holds(task, ["chains"])
        and ladders.holds(task, ["gpt3_mlp M=16"])
        and not ladders.holds(task, ["M=1", "gpt3", "decode"])
    )


@pytest.mark.parametrize("group", [g for g in ladders.GROUPS if g != "host"])
def test_every_task_is_a_program_and_named_once(group: str) -> None:
    found = tasks(group)
    assert found and len({str(t) for t in found}) == len(found)
    assert all(not t.program.symbolic for t in found[:6])


def test_random_shapes_are_those_of_their_seed() -> None:
    few, many = tasks("random", SEED, 8), tasks("random", SEED, 20)
    assert many[:8] == few and tasks("random", SEED + 1, 8) != few and len(tasks("random")) == DRAWN
    assert len({t.workload for t in few}) >= 6


def test_no_binary_is_compiled_twice() -> None:
    assert ladders.needed(["tilegen-pdl", "tilegen", "tilegen-exclusive", "tilegen-unprepared"]) == [
        "tilegen-pdl",
        "tilegen",
    ]
    assert ladders.needed(["tilegen-exclusive"]) == ["tilegen-exclusive"]


def test_names() -> None:
    assert (
        ladders.tag("NVIDIA H200") == "h200"
        and ladders.tag("") == "unknown"
        and ladders.tag("NVIDIA GeForce RTX 4090") == "rtx-4090"
    )
    assert (
        ladders.contender_of("gpt3_mlp tilegen-pdl") == "tilegen-pdl"
        and ladders.contender_of("gpt3_mlp round 1 of 9") == ""
    )
    assert ladders.shown(["chains", "-o", "a b", "--after", "c", "--rounds", "3", "--out=d"]) == [
        "chains",
        "--rounds",
        "3",
    ]


@pytest.mark.parametrize("variant", ["tilegen", "tilegen-pdl", "tilegen-unprepared"])
def test_what_is_compiled_ahead_is_what_compile_asks_for(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After compile_variant the cache has every plan and binary: neither the planner nor NVRTC is called
    again."""
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    task = Task("chains", "gpt3_mlp", {"M": 64, "H": 512, "I": 256})
    assert precompile.compile_variant(task, variant).error == ""
    made: list[Any] = []

    class Recorded:
        def __init__(self, plan: Any, proof: Any, library: Any, *_: Any, **__: Any):
            made.append((plan, type(library)))

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("tilegen.kernels.cuda_kernel.CudaKernel", Recorded)
    monkeypatch.setattr("tilegen.kernels.launches.CudaKernel", Recorded)
    monkeypatch.setattr("tilegen.kernels.launches.MultiLaunchKernel", lambda *_, **__: None)
    monkeypatch.setattr("tilegen.targets.select.to_run", lambda *_: named("sm_90a"))
    monkeypatch.setattr("tilegen.targets.cubin.compile_cuda", refuse)
    program, way = task.program, WAYS.get(variant, Way())
    options = own_variants(program, Options())[variant]
    api.compile(
        program,
        "cuda",
        on=H200,
        options=options,
        exclusive=way.exclusive,
        lowering=way.lowering,
        programmatic=way.programmatic,
    )
    assert made
    for plan, library in made:
        library(plan, frozenset(plan.arguments) & {"w1", "w2"} if way.prepared else frozenset())
