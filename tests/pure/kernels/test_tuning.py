"""The search for the fastest plan, with the simulated run in a GPU's place: what is tried can be planned and
generated, one thing at a time; the fastest is taken; the time is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.workloads import conv_pair, example, gemm
from tests.gpu.gemms import mlp
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.kernels import tuning
from tilegen.kernels.tuning import (
    GAIN,
    Batch,
    Variant,
    batches,
    by_time,
    ensure_tuned,
    explicit,
    of_an_op,
    plan_of,
    search,
)  # fmt: skip
from tilegen.options import Options
from tilegen.runtime.tuned import lookup, tuned_lowering
from tilegen.schedule.launches import launch_plans
from tilegen.schedule.simulate import simulate
from tilegen.targets.select import place
from tilegen.targets.sm90.emit import generate

H200 = place("h200", "sm_90a")
PROGRAMS = {
    "mlp": mlp(M=300, H=512, I=1024),
    "gemm": gemm(M=300, N=1024, K=1024),
    "convolutions": conv_pair(B=2, HW=14, C=64),
    "attention": example("gpt3_attention", S=128, H=512, heads=4),
    "layer": example("llama_layer", B=4, S_max=300, H=512, heads=8, kv_heads=2, D=64, I=1024),
}


def simulated(program: Program) -> tuning.Timer:
    """As long as the simulated run takes; launches a tenth more."""

    def timed(batch: Batch) -> Mapping[str, float]:
        found = {}
        for name, v in batch.items():
            one = simulate(plan_of(program, H200, Variant(v.options))).makespan
            found[name] = one * (1.1 if v.lowering == "multi_launch" else 1.0)
        return found

    return timed



def texts(program: Program, variant: Variant) -> list[str]:
    made = plan_of(program, H200, variant)
    of = launch_plans(made, H200, variant.options) if variant.lowering == "multi_launch" else (made,)
    return [generate(p).text for p in of]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_tried_of_the_whole_can_be_generated(name: str) -> None:
    program, found = PROGRAMS[name], list(batches(PROGRAMS[name], H200))
    assert "as planned" in found[0] and len(found) > 1
    assert ("launches of single ops" in found[0]) == (len(fuse(program).ops) > 1)
    variants = [v for batch in found for v in batch.values()]
    assert len(set(variants)) == len(variants)
    for batch in found:
        assert all(texts(program, v) for v in list(batch.values())[:2])


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_gets_other_configs_and_all_others_keep_theirs(name: str, lowering: str) -> None:
    program, like = PROGRAMS[name], Variant(Options(), lowering)
    before = explicit(plan_of(program, H200, like), program, like.options)
    ops = by_time(program, H200, like)
    assert ops and set(ops) <= {op.name for op in fuse(program).ops}
    tried = of_an_op(program, H200, like, ops[0])
    assert tried
    for variant in tried.values():
        assert variant.lowering == lowering
        cut, tiles = plan_of(program, H200, variant), dict(variant.options.tiles)
        assert {n: t for n, t in tiles.items() if n != ops[0]} == {
            n: t for n, t in before.tiles if n != ops[0]
        }
        assert cut.graph.op(ops[0]).tile == tiles[ops[0]]


def test_the_fastest_is_taken(tmp_path: Path) -> None:
    program = PROGRAMS["mlp"]
    found, us = search(program, H200, 1e9, simulated(program))
    assert found.us == pytest.approx(min(us.values()), abs=0.01) and found.tried == len(us) > 10
    assert found.lowering == "persistent" and list(us.values()) == sorted(us.values())
    assert simulate(plan_of(program, H200, Variant(found.options))).makespan == pytest.approx(found.us, 0.01)


def test_times_of_later_batches_are_in_terms_of_the_first() -> None:
    """The clock falls by a tenth from batch to batch; a plan that is as fast as the best stays so."""
    runs = 0

    def slower(batch: Batch) -> Mapping[str, float]:
        nonlocal runs
        runs += 1
        return {name: 10.0 * 1.1**runs for name in batch}

    found, us = search(PROGRAMS["gemm"], H200, 1e9, slower)
    assert runs > 3 and found.us == 11.0
    assert list(us.values()) == pytest.approx([11.0] * len(us))


@pytest.mark.parametrize(("gain", "lowering"), [(0.5 * GAIN, "persistent"), (2 * GAIN, "multi_launch")])
def test_launches_must_gain(gain: float, lowering: str) -> None:
    def timed(batch: Batch) -> Mapping[str, float]:
        return {n: 100.0 * (1 - gain * (v.lowering == "multi_launch")) for n, v in batch.items()}

    assert search(PROGRAMS["mlp"], H200, 1e9, timed)[0].lowering == lowering


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 2), (15.0, 6)])
def test_the_time_is_kept_and_the_first_batch_is_timed_in_any_case(seconds: float, expected: int) -> None:
    now = 0.0

    def timed(batch: Batch) -> Mapping[str, float]:
        nonlocal now
        now += 10.0
        return dict.fromkeys(batch, 1.0)

    found, us = search(PROGRAMS["mlp"], H200, seconds, timed, lambda: now)
    assert len(us) == found.tried == expected and "as planned" in us


def test_plans_that_cannot_be_built_are_left_out() -> None:
    def timed(batch: Batch) -> Mapping[str, float]:
        return {n: 1.0 for n, v in batch.items() if v.lowering == "multi_launch"}

    found, us = search(PROGRAMS["mlp"], H200, 1e9, timed)
    assert found.lowering == "multi_launch" and "as planned" not in us


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    program, asked = example("llama_attention", S=1024), []

    def timer(program: Program, *_: object) -> tuning.Timer:
        asked.append(program.name)
        return lambda batch: {n: 1.0 + (v.lowering == "persistent") for n, v in batch.items()}

    monkeypatch.setattr(tuning, "on_this_gpu", timer)
    assert lookup(program, "h200") is None
    for _ in range(2):
        ensure_tuned(program, H200, H200.target, 1e-3, lambda _: None)  # type: ignore[arg-type]
    assert asked == ["llama_attention"] and tuned_lowering(program, "h200") == "multi_launch"
