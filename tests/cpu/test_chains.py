"""benchmarks/chains.py: what it measures, tuned options by cell, a result file after each size."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import chains
from benchmarks.chains import SIZES, fitting, gemm, main, names_of, parsed, programs, sweep, variants_of
from tilegen.bench.compare import Cell
from tilegen.bench.contest import DEFAULT
from tilegen.planner import Options
from tilegen.spec import Program

ROW = {"workload": "", "sizes": {}, "variant": "tilegen", "us": 1.0, "spread": 0.0, "rounds": 1, "error": 1e-3, "tflops": 1.0, "tbs": 1.0, "floor_us": None}
TUNED: dict[str, Any] = {
    "gpt3_mlp": {"order": "phase"},
    "gpt3_mlp M=16": {"tiles": {"up": [64, 192, 64]}},
    "gpt3_mlp M=16 I=1": {"order": "bands:2"},
    "gemm N=64": {"tiles": {"gemm": [8, 64, 16]}, "split": {"gemm": 2}, "variants": {"mine": {"tiles": {"gemm": [8, 64]}}}},
}


def test_what_is_measured() -> None:
    o = parsed([])
    names = [(p.name, dict(p.sizes)["M"]) for p in programs(o.chains, o.sizes, o.gemm)]
    assert names == [("gpt3_mlp", m) for m in SIZES] + [("llama_mlp", m) for m in SIZES]
    o = parsed(["--chains", "--gemm", "8,16,32", "1,2,3"])
    assert [tuple(dict(p.sizes).values())[:3] for p in programs(o.chains, o.sizes, o.gemm)] == [(8, 16, 32), (1, 2, 3)]
    assert parsed(["16", "64", "--chains", "llama_mlp"]).sizes == [16, 64]
    four, fan = programs(["four_gemms", "fan"], [16], [])
    assert [c.kind for c in four.calls] == 4 * ["linear"] and [c.kind for c in fan.calls].count("linear") == 4


def test_the_entry_that_names_most_wins() -> None:
    small, large = programs(["gpt3_mlp"], [16, 512], [])
    assert fitting(small, TUNED) == TUNED["gpt3_mlp M=16"] and fitting(large, TUNED) == TUNED["gpt3_mlp"]
    assert fitting(programs(["llama_mlp"], [16], [])[0], TUNED) == {}


def test_options() -> None:
    assert Options.from_json(TUNED["gpt3_mlp M=16"]) == Options(tiles=(("up", (64, 192, 64)),))
    found = variants_of(gemm(M=8, N=64, K=32), TUNED)
    assert found["tilegen"] == Options(tiles=(("gemm", (8, 64, 16)),), split=(("gemm", 2),)) and found["mine"] == Options(tiles=(("gemm", (8, 64)),))
    assert names_of(TUNED) == ("mine", *DEFAULT) and "variants" in TUNED["gemm N=64"]


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tuned.json").write_text(json.dumps(TUNED))
    files = ["--tuned", str(tmp_path / "tuned.json"), "-o", str(tmp_path / "r.json"), "--svg", str(tmp_path / "r.svg")]
    assert main(["--chains", "--gemm", "8,64,32", "8,32,64", "--target", "cpu", "--rounds", "1", *files]) == 0
    data = json.loads((tmp_path / "r.json").read_text())
    found = [(r["sizes"]["N"], r["variant"]) for r in data["rows"]]
    assert found == [(64, "eager"), (64, "mine"), (64, "tilegen-barrier"), (64, "tilegen"), (32, "eager"), (32, "tilegen")]
    assert (tmp_path / "r.svg").exists() and "geometric mean" in capsys.readouterr().out


def test_what_was_measured_is_kept() -> None:
    """A size that fails is noted, one that is cut off loses itself alone."""
    cells = [(gemm(M=m), {}) for m in (1, 2, 3)]
    kept: list[list[Cell]] = []

    def measure(program: Any, variants: Any) -> Cell:
        m = dict(program.sizes)["M"]
        if m == 3:
            raise KeyboardInterrupt
        if m == 2:
            raise RuntimeError("CUDA out of memory")
        return Cell(())

    with pytest.raises(KeyboardInterrupt):
        sweep(cells, measure, lambda found: kept.append(list(found)))
    assert list(map(len, kept)) == [1, 2] and [n.error for n in kept[1][1].notes] == ["RuntimeError: CUDA out of memory"]


def test_a_broken_process_hands_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After an error that sticks to the process the sizes left are measured by a fresh one, and all stand in one file."""
    asked: list[list[str]] = []

    run = subprocess.run

    def fresh(command: list[str], **how: Any) -> Any:
        if command[0] == "git":
            return run(command, **how)
        asked.append(command)
        part = Path(command[command.index("-o", command.index("--skip")) + 1])
        program = chains.programs(["gpt3_mlp"], [64], [])[0]
        row = chains.rows_of(json.loads(json.dumps({"rows": [ROW | {"workload": program.name, "sizes": {"M": 64}}]})))
        chains.save(chains.result_file([chains.Cell(tuple(row))], "part", {}), part)

    def broken(program: Program, variants: Any) -> Cell:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(chains, "usable", lambda: False)
    monkeypatch.setattr(chains.subprocess, "run", fresh)
    monkeypatch.setattr(chains, "contest", lambda *given, **more: SimpleNamespace(measure=broken, environment={}))
    out = tmp_path / "chains.json"
    assert chains.main(["16", "64", "--chains", "gpt3_mlp", "--no-inductor", "-o", str(out)]) == 1
    assert asked[0][asked[0].index("--skip") + 1] == "1"
    data = json.loads(out.read_text())
    assert [r["sizes"] for r in data["rows"]] == [{"M": 64}] and "illegal" in data["notes"][0]["error"]
    assert data["run"] == "benchmarks/chains.py 16 64 --chains gpt3_mlp --no-inductor"
    assert list(tmp_path.iterdir()) == [out]

