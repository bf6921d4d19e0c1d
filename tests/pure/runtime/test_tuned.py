"""Measured choices: what stores is found and can be built; what is remembered is found again, by what a
program computes."""

from dataclasses import replace
from pathlib import Path

import pytest

import tilegen as tg
from benchmarks.workloads import example, tasks
from tests.gpu.gemms import mlp
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.runtime.request import chosen_regimes, parts, settled_lowering
from tilegen.runtime.tuned import Tuned, key_of, lookup, remember, tuned_lowering
from tilegen.schedule.planner import plan as make_plan
from tilegen.targets.select import place

NAMED = ("chains", "gemms", "graphs", "convolutions", "attention", "cached", "decode", "prefill", "cusync")


def test_nothing_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fresh cache remembers of the benchmarks' own workloads."""
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    named = [task.program for group in NAMED for task in tasks(group)]
    assert len(named) > 80 and not any(lookup(program, "h200") for program in named)
    assert {p.name for p in Path(tg.__file__).parent.glob("*.json")} == {"residuals.json"}


def found(program: Program) -> Tuned:
    """What is remembered, without the names of its program."""
    tuned = lookup(program, "h200")
    assert tuned is not None
    assert tuned.ops == tuple(c.name for c in program.calls)
    return replace(tuned, ops=(), tensors=())


def test_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    program = mlp(M=33)
    assert lookup(program, "h200") is None
    choice = Tuned(
        "mlp",
        {"M": 33},
        Options.of(tiles={"up": (64, 64, 64), "down": (64, 96, 64)}, scheduling="lists"),
        12.5,
        7,
    )
    remember(program, "h200", choice)
    remember(mlp(M=34), "h200", choice)
    assert (
        found(program) == choice and lookup(mlp(M=35), "h200") is None and lookup(program, "h200:64") is None
    )
    # as wide, not as wide
    assert found(mlp(M=33, dtype="float16")) == choice and lookup(mlp(M=33, dtype="float32"), "h200") is None
    assert tg.plan(program, "h200").graph.op("down").tile == (64, 96, 64)
    # an option given: the planner's own choice
    assert tg.plan(program, "h200", order="op_major").graph.op("down").tile != (64, 96, 64)
    kept = tg.plan(program, "h200", policies={"h": "tile"})  # but policies alone leave tiles as they are
    assert kept.graph.op("down").tile == (64, 96, 64) and dict(kept.policies)["h"].endswith("tile")


def test_the_lowering_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    program, tiles = mlp(M=33), Options.of(tiles={"up": (64, 64, 64)})
    assert tuned_lowering(program, "h200") == ""
    choice = Tuned("mlp", {"M": 33}, tiles, 12.5, 7, "multi_launch")
    remember(program, "h200", choice)
    assert found(program) == choice and tuned_lowering(program, "h200") == "multi_launch"
    on = place("h200", "sm_90a")
    assert settled_lowering(program, on, Options(), "auto", False) == ("multi_launch", True)
    # options given: what was measured says nothing about them
    assert settled_lowering(program, on, tiles, "auto", False) == ("persistent", False)


def test_a_choice_is_of_what_is_computed() -> None:
    """Not of the file or line where the spec stands."""

    @tg.spec
    def gemm(M=512, N=6144, K=12288, dtype="bfloat16"):
        return tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="gemm")

    from benchmarks import workloads

    assert key_of(gemm(M=8)) == key_of(workloads.gemm(M=8)) != key_of(workloads.gemm(M=16))


@tg.spec
def renamed(rows=128, wide=12288, inner=6144, kind="bfloat16", approximate="tanh"):
    """examples/gpt3_mlp.py in other words."""
    tokens = tg.input("tokens", (rows, wide), kind)
    first, second = (tg.weight(n, s, kind) for n, s in (("a", (inner, wide)), ("h", (wide, inner))))
    middle = tg.gelu(tg.linear(tokens, first, name="down"), approximate=approximate, name="w1")
    return tg.linear(middle, second, name="up")


def test_names_of_ops_and_tensors_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a name is that of another op, or of another tensor."""
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    known, same = example("gpt3_mlp", M=128), renamed()
    tiles, cluster = {"up": (128, 96, 64), "down": (128, 192, 64)}, {"up": "2:k", "down": "2:n"}
    options = Options.of(tiles=tiles, cluster=cluster, policies={"up->down": "chunk:8"})
    remember(known, "h200", Tuned("gpt3_mlp", {"M": 128}, options, 86.5, 9))
    assert key_of(known) == key_of(same) != key_of(renamed(approximate="none"))
    assert key_of(same) != key_of(renamed(rows=64))
    ours, theirs = lookup(known, "h200"), lookup(same, "h200")
    assert ours is not None and theirs is not None and theirs.program == "renamed"
    names = {"up": "down", "down": "up"}
    for option in ("tiles", "cluster"):
        found = dict(getattr(theirs.options, option))
        assert found == {names[op]: value for op, value in getattr(ours.options, option)}
    assert dict(ours.options.policies) == {"up->down": "chunk:8"}
    assert dict(theirs.options.policies) == {"down->up": "chunk:8"}
    plan = tg.plan(same, "h200", target="sm_90a")
    assert plan.graph.op("down").tile == tg.plan(known, "h200", target="sm_90a").graph.op("up").tile


def test_a_choice_is_remembered_for_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    choice = Tuned("mlp", {}, Options.of(tiles={"up": (64, 64, 64)}, policies={"h": "tile"}), 1.0, 1)
    remember(example("gpt3_mlp", M=9), "h200", choice)
    found = lookup(renamed(rows=9), "h200")
    assert found is not None and dict(found.options.policies) == {"w1": "tile"}
    assert dict(found.options.tiles) == {"down": (64, 64, 64)}


def test_what_is_measured_changes_the_regimes_of_a_size_that_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    on, program = place("h200", "sm_90a"), mlp(M=tg.dim("M", max=64), H=512, I=1024)
    before = chosen_regimes(program, on, Options())
    assert before[-1].most == 64 and before[-1].lowering == "multi_launch"
    remember(mlp(M=64, H=512, I=1024), on.label, Tuned("mlp", {}, Options(), 1.0, 1, "persistent"))
    assert chosen_regimes(program, on, Options())[-1].lowering == "persistent"


@pytest.mark.parametrize("sizes", [{"H": 1024, "I": 2752}, {"H": 12288, "I": 6144}], ids=str)
def test_a_range_in_launches_has_options_for_one_launch_too(sizes: dict[str, int]) -> None:
    """Clusters of ops alone do not go together in one launch."""
    on, program = place("h200", "sm_90a"), example("gpt3_mlp", M=tg.dim("M", max=400), **sizes)
    found = [part for part in parts(program, on, Options()) if part.lowering == "multi_launch"]
    assert found
    for part in found:
        largest = filled(part.program, the_dim(part.program), part.ranges[-1][1])
        assert make_plan(largest, on, part.in_one).lowering == "persistent"
