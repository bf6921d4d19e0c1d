"""One launch or one of each op: what the model says where nothing is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tilegen as tg
from benchmarks.workloads import example
from tests.gpu.gemms import chain, gemm, mlp
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.linear_time import RATES, linear_time, stages_of
from tilegen.options import Options
from tilegen.runtime.request import settled_lowering
from tilegen.schedule.lowering import (
    MOST_LAUNCHES,
    launches_us,
    modelled_lowering,
)
from tilegen.schedule.planner import checked_cluster
from tilegen.targets.select import place

H200 = place("h200", "sm_90a")


@tg.spec
def many(M=512, H=1024, ops=MOST_LAUNCHES + 1, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    for n in range(ops):
        x = tg.linear(x, tg.weight(f"w{n}", (H, H), dtype), name=f"y{n}")
    return x


@pytest.mark.parametrize(
    "program",
    [
        mlp(M=m, H=h, I=i)
        for m, h, i in (
            (55, 1152, 12736),
            (428, 4736, 5056),
            (1995, 5312, 1152),
            (2, 4416, 1664),
        )
    ],
    ids=lambda p: str(dict(p.sizes)),
)
def test_the_faster_by_the_model_is_taken(program: Program) -> None:
    one = tg.simulate(tg.plan(program, "h200", target="sm_90a")).makespan + RATES.launch + RATES.start
    launches = launches_us(fuse(program), H200)
    expected = "multi_launch" if launches < one else "persistent"
    assert modelled_lowering(program, H200) == expected


@pytest.mark.parametrize("m, h, i", [(55, 1152, 12736), (16, 2048, 8192), (8, 4096, 14336)])
def test_what_is_priced_is_what_is_built(m: int, h: int, i: int) -> None:
    """Each op's price is that of the tile, with the steps, that its launch has."""
    graph = fuse(mlp(M=m, H=h, I=i))
    for op in graph.ops:
        alone = graph.alone(op)
        config = H200.forms.choose(alone, H200.machine)[op.name]
        cut = checked_cluster(alone, replace(op, tile=config.tile), config.option, H200.machine)
        time = linear_time(alone.with_op(op.name, cut).bound(cut), H200.machine)
        assert config.us == pytest.approx(time.alone(stages_of(time.stage)))


def test_both_lowerings_are_taken_by_some() -> None:
    """A long sum over few rows wants another ring than what comes before it; where tiles fill no whole waves,
    those of two ops side by side do."""
    drawn = [
        mlp(M=m, H=h, I=i) for m in (30, 300, 900) for h, i in ((1024, 12736), (4096, 4096), (8192, 2048))
    ]
    assert {modelled_lowering(p, H200) for p in drawn} == {"persistent", "multi_launch"}


@pytest.mark.parametrize(
    "program",
    [gemm(), many(), example("llama_layer", B=4), example("gpt3_attention", S=64)],
)
def test_what_the_model_was_not_calibrated_for_is_one_launch(program: Program) -> None:
    assert modelled_lowering(program, H200) == "persistent"


def test_options_and_other_targets_leave_one_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    program = mlp(M=55, H=1152, I=12736)
    assert settled_lowering(program, H200, Options(), "auto", False) == (
        "multi_launch",
        True,
    )
    assert settled_lowering(program, H200, Options(), "persistent", False) == (
        "persistent",
        False,
    )
    tiles = Options.of(tiles={"up": (64, 64, 64)})
    assert settled_lowering(program, H200, tiles, "auto", False) == (
        "persistent",
        False,
    )
    portable = place("a100", "sm_80")
    assert settled_lowering(chain(), portable, Options(), "auto", False)[1] is False
