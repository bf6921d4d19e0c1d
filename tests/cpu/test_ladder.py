"""The CUDA ladder's logic, on a CPU in the GPU's place (tests/gpu/test_ladder.py is the real thing)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ladder_on_cpu import stand_in

import tilegen as tg
from tilegen.bench import contenders as module
from tilegen.bench.compare import own_variants
from tilegen.bench.contenders import builders, poisoned_outputs
from tilegen.bench.environment import cublas_version
from tilegen.bench.ladder import ladder
from tilegen.bench.rows import EXCLUSIVE, OWN, UNPREPARED
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.runtime.data import argument_bytes, random_arguments, relative_error

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# the others have no part in a GeMM chain
ALL = ("eager", "graph", "addmm-gelu", "cublaslt", "inductor", *OWN, "tilegen")


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def example(name: str, **sizes: Any) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), sizes)


def mlp(name: str = "gpt3_mlp") -> Program:
    return example(name, M=4, H=64, I=32)


def test_all_rungs() -> None:
    program = mlp()
    said: list[str] = []
    cell = ladder(program, own_variants(program, Options()), ALL, 3, said.append)
    assert [r.variant for r in cell.rows] == list(ALL) and cell.notes == () and cell.clock == 1980
    assert all(0 < r.error < 1e-2 and r.us > 0 and r.rounds == 3 and r.floor_us == 1.0 for r in cell.rows)
    assert "gpt3_mlp inductor" in said and "gpt3_mlp round 3 of 3" in said
    assert "TILEGEN_POISON" not in os.environ and "TILEGEN_TIMEOUT_MS" not in os.environ


def test_a_fused_gelu_is_offered_where_there_is_one() -> None:
    program = mlp("llama_mlp")
    cell = ladder(
        program, own_variants(program, Options()), ("graph", "addmm-gelu", "cublaslt", "tilegen"), 1
    )
    assert [r.variant for r in cell.rows] == ["graph", "cublaslt", "tilegen"] and cell.notes == ()


def test_the_kernel_of_a_size_that_moves_stands_beside_the_others() -> None:
    program, moving = mlp(), example("gpt3_mlp", M=tg.dim("M", max=30), H=64, I=32)
    names = ("graph", "tilegen", "tilegen-moving")
    cell = ladder(program, own_variants(program, Options(), moving), names, 2, moving=moving)
    assert [r.variant for r in cell.rows] == list(names) and cell.notes == ()
    assert all(0 < r.error < 1e-2 and r.sizes["M"] == 4 for r in cell.rows)


def test_variants_of_a_caller() -> None:
    program = mlp()
    variants = {"tilegen-kernel": Options(order="op_major"), "mine": Options(), "tilegen": Options()}
    assert [r.variant for r in ladder(program, variants, tuple(variants), 1).rows] == list(variants)


def test_how_each_rung_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    usual = module.api.compile

    def compiled(program: Any, target: str, **how: Any) -> Any:
        told.append({name: value for name, value in how.items() if name != "options"})
        return usual(program, target, **how)

    monkeypatch.setattr(module.api, "compile", compiled)
    program = example("gpt3_mlp", M=4, H=64, I=32)  # which is one launch, as the model says
    ladder(program, own_variants(program, Options()), (*OWN, "tilegen", EXCLUSIVE, UNPREPARED), 1)
    usual_way = {"exclusive": False, "lowering": "auto", "programmatic": False}
    streams, one = {**usual_way, "lowering": "multi_launch"}, {**usual_way, "lowering": "persistent"}
    assert told == [
        streams,
        {**streams, "programmatic": True},
        one,
        usual_way,
        {**one, "exclusive": True},
        usual_way,
    ]


def test_states_and_positions() -> None:
    program = mini_layer()
    cell = ladder(program, own_variants(program, Options()), ("eager", "graph", "tilegen"), 1)
    assert [r.variant for r in cell.rows] == ["eager", "graph", "tilegen"] and all(
        r.error < 1e-2 for r in cell.rows
    ), cell


def test_a_program_that_only_writes_states() -> None:
    program = writer()
    cell = ladder(program, {"tilegen": Options()}, ("graph", "tilegen"), 1)
    assert [(r.variant, r.error < 1e-5) for r in cell.rows] == [("graph", True), ("tilegen", True)], cell


def test_each_set_has_weights_of_its_own() -> None:
    program = mlp()
    sets = [random_arguments(program, seed) for seed in range(3)]
    calls = builders(program, {"tilegen": Options()}, sets)["tilegen"]().calls
    results = [call().clone() for call in calls]
    wanted = [tg.reference(program, *arguments) for arguments in sets]
    assert len(calls) == 3 and not torch.equal(results[0], results[1])
    assert all(relative_error(y, r) < 1e-2 for y, r in zip(results, wanted, strict=True))


def test_outputs_begin_as_nan() -> None:
    program = mlp()
    assert poisoned_outputs(program).isnan().all() and poisoned_outputs(program).shape == (4, 64)
    assert poisoned_outputs(writer()) is None


def test_argument_bytes() -> None:
    """Activations as well as weights."""
    assert argument_bytes(mlp()) == 2 * (2 * 64 * 32 + 4 * 64)
    assert argument_bytes(example("gpt3_mlp", M=1)) == 301_989_888 + 2 * 12288


def test_cublas_version_does_not_fail() -> None:
    assert cublas_version() is None or cublas_version().count(".") == 2


@tg.spec
def mini_layer(N=32):
    x = tg.input("x", (1, 2, N), "bfloat16")
    at = tg.input("at", (1,), "int32")
    w = tg.weight("w", (N, N), "bfloat16")
    cache = tg.append(
        tg.state("cache", (1, 16, N), "bfloat16"), tg.rope(tg.linear(x, w), heads=2, at=at), at=at
    )
    return tg.attention(tg.linear(x, w, name="q"), cache, cache, heads=2, at=at)


@tg.spec
def writer(N=32):
    x = tg.input("x", (1, 2, N), "float32")
    return tg.append(tg.state("cache", (1, 16, N), "float32"), x, at=3)
