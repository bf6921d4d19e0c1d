"""The ladder on a real GPU: every rung runs, is captured, is right; tiny, so that it costs seconds (inductor
apart)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tilegen as tg
from tilegen.bench import contenders as module
from tilegen.bench import cublaslt
from tilegen.bench.compare import own_variants
from tilegen.bench.environment import environment
from tilegen.bench.ladder import ladder, on_device_reference
from tilegen.bench.rows import OWN, UNPREPARED
from tilegen.cli import main
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.runtime import timing
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.runtime.driver import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def mlp(name: str = "gpt3_mlp", **sizes: Any) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), {"M": 64, "H": 512, "I": 256, **sizes})


@pytest.mark.parametrize("name", ["gpt3_mlp", "llama_mlp"])
def test_every_rung_but_those_of_torch_compile(name: str) -> None:
    program = mlp(name)
    own = own_variants(program, Options())
    assert {*OWN, "tilegen", UNPREPARED} < set(own)
    select = ("eager", "graph", "addmm-gelu", "cublaslt", *own)
    cell = ladder(program, own, select, 3)
    assert cell.notes == ()
    assert [r.variant for r in cell.rows] == [n for n in select if name == "gpt3_mlp" or n != "addmm-gelu"]
    assert all(0 < r.error < 1e-2 and 0.5 < r.us < 1000 for r in cell.rows), cell.rows
    assert cell.clock is None or 200 < cell.clock < 3000


def test_inductor() -> None:
    cell = ladder(mlp(), {}, ("graph", "inductor"), 3)
    assert cell.notes == () and all(0 < r.error < 1e-2 for r in cell.rows)


@pytest.mark.parametrize("activation", ["", "relu", "gelu_tanh"])
@pytest.mark.parametrize("biased", [False, True])
def test_cublaslt_is_right(activation: str, biased: bool) -> None:
    x, w = (torch.randn(rows, 256, device="cuda").bfloat16() for rows in (40, 96))
    bias = torch.randn(96, device="cuda").bfloat16() if biased else None
    y = cublaslt.linear(x, w, bias, activation)
    r = torch.nn.functional.linear(x.float(), w.float(), None if bias is None else bias.float())
    r = {
        "": lambda t: t,
        "relu": torch.relu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    }[activation](r)
    assert relative_error(y, r) < 4e-3


@pytest.mark.parametrize(
    "sizes", [{"S": 1, "B": 2}, {"S": 40, "S_max": 104}], ids=["decode", "behind a cache"]
)
def test_attention_by_every_kernel(sizes: dict[str, int]) -> None:
    """Those that torch's own kernels refuse become notes; FlashAttention called directly is right everywhere,
    also under torch.compile."""
    program = load_program(
        str(EXAMPLES / "llama_layer.py"), {"H": 512, "heads": 8, "kv_heads": 2, "D": 64, "I": 512, **sizes}
    )
    names = (
        "graph",
        "sdpa-flash",
        "sdpa-cudnn",
        "sdpa-efficient",
        "graph-flash",
        "cublaslt-flash",
        "inductor",
        "inductor-flash",
        "tilegen",
    )
    cell = ladder(program, {"tilegen": Options()}, names, 2)
    assert {r.variant for r in cell.rows} | {n.variant for n in cell.notes} == set(names)
    assert {"graph", "graph-flash", "cublaslt-flash", "inductor", "inductor-flash", "tilegen"} <= {
        r.variant for r in cell.rows if not r.wrong
    }, cell


def test_the_reference_is_float32() -> None:
    program = mlp(H=2048, dtype="float32")
    arguments = random_arguments(program, device="cuda")
    on_cpu = tg.reference(program, *(a.cpu() for a in arguments))
    # TF32 would give 3e-4
    assert relative_error(on_device_reference(program, arguments).cpu(), on_cpu) < 2e-6


def test_times_are_those_of_memory() -> None:
    """Weights of several sets do not stay in the L2: reading 64 MiB of them takes no less than the memory's
    rate allows."""
    weights = [
        torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
        for _ in range(timing.set_count(64 << 20))
    ]
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    calls = tuple(lambda w=w: torch.nn.functional.linear(x, w) for w in weights)
    run = {"gemv": timing.ready(timing.Contender(calls)).run}
    [seconds] = timing.interleave(run, timing.counted(run, timing.event_seconds), timing.event_seconds, 1)[
        "gemv"
    ]
    assert seconds / len(calls) > (64 << 20) / 5.5e12


def test_a_failed_capture_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synchronising while a stream is captured breaks that capture; the rungs after it still run."""
    usual = module.eager

    def synchronises(*given: Any, **named: Any) -> Any:
        f = usual(*given, **named)

        def run(*arguments: Any) -> Any:
            torch.cuda.synchronize()
            return f(*arguments)

        return run

    program = mlp()
    monkeypatch.setattr(module, "eager", synchronises)
    cell = ladder(program, own_variants(program, Options()), ("eager", "graph", "tilegen"), 2)
    assert [r.variant for r in cell.rows] == ["eager", "tilegen"] and [n.variant for n in cell.notes] == [
        "graph"
    ]


def test_environment() -> None:
    found = environment()
    assert found["device"] == torch.cuda.get_device_name() and found["versions"]["cuda"] and json.dumps(found)
    assert "exclusive=True" in found["remarks"][0] and found["versions"]["cudnn"]


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = ["-s", "M=1,64", "-s", "H=512", "-s", "I=256"]
    files = ["-o", str(tmp_path / "r.json"), "--svg", str(tmp_path / "r.svg")]
    assert (
        main(["compare", str(EXAMPLES / "gpt3_mlp.py"), *sizes, "--no-inductor", "--rounds", "3", *files])
        == 0
    )
    data = json.loads((tmp_path / "r.json").read_text())
    assert len(data["rows"]) == 2 * 10 and data["notes"] == [] and "geometric mean" in capsys.readouterr().out
