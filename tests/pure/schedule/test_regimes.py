"""Regimes of a size that moves share out all its sizes; above some rows the tiles that lose least by the
model."""

from __future__ import annotations

import pytest

import tilegen as tg
from benchmarks.workloads import example
from tilegen.arch.machine import machine
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.loader import load_spec
from tilegen.graph.cost_model import product_time
from tilegen.options import Options
from tilegen.schedule import linear_regimes as chosen
from tilegen.schedule.launches import whole_plan
from tilegen.schedule.plan import Plan
from tilegen.schedule.regimes import least_lost, regimes
from tilegen.targets import select

H200 = select.place(machine("h200"), "sm_90a")
SMALL, LARGE, OTHER = (Options(order=f"op_major:{n}") for n in (1, 2, 3))


def mlp(largest: int, **sizes: int) -> tg.Program:
    return load_spec("examples/gpt3_mlp.py")(M=tg.dim("M", max=largest), **sizes)


@pytest.mark.parametrize(("largest", "ends"), [(64, [4, 8, 16, 32, 64]), (10, [4, 8, 10]), (3, [3])])
def test_few_rows_end_where_they_are_fewer(
    largest: int, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "FEW_OPS", 1)
    assert [r.most for r in regimes(mlp(largest), H200, Options())] == ends


@pytest.mark.parametrize(("largest", "ends"), [(1, [1]), (3, [1, 3]), (32, [1, 8, 32])])
def test_one_image_and_a_few_have_tiles_of_their_own(largest: int, ends: list[int]) -> None:
    program = load_spec("examples/vgg19.py")(HW=32, C=8, B=tg.dim("B", max=largest))
    assert [r.most for r in regimes(program, H200, Options())] == ends


@pytest.mark.parametrize(("largest", "ends"), [(2, [2]), (16, [2, 8, 16]), (5, [2, 5])])
def test_long_sequences_end_where_there_are_few(largest: int, ends: list[int]) -> None:
    program = load_spec("examples/gpt_layer.py")(S=512, B=tg.dim("B", max=largest))
    assert [r.most for r in regimes(program, H200, Options())] == ends


def test_options_hold_for_all_regimes() -> None:
    given = Options(tiles=(("up", (64, 64, 64)),))
    assert {r.options for r in regimes(mlp(300), H200, given)} == {given}


@pytest.mark.parametrize(
    ("largest", "ends"), [(4096, [64, 256, 4096]), (300, [64, 256, 300]), (100, [64, 100])]
)
def test_of_many_ops_many_rows_have_a_regime_of_their_own(
    largest: int, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "FEW_OPS", 1)
    assert [r.most for r in regimes(mlp(largest, H=512, I=256), H200, Options())] == ends


def test_many_rows_of_launches_have_regimes_of_their_own_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one launch there is one regime above some rows: its tiles are those that lose least."""
    monkeypatch.setattr(chosen, "FEW_OPS", 1)
    found = regimes(mlp(1000), H200, Options(), lower=lambda program, made: "multi_launch")
    assert [r.ranges for r in found] == [
        ((first, last),)
        for first, last in ((1, 64), (65, 256), (257, 384), (385, 512), (513, 768), (769, 1000))
    ]
    assert {r.lowering for r in found} == {"multi_launch"}


def test_above_some_rows_the_model_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of the largest size leave most SMs idle at a tenth of it."""
    monkeypatch.setattr(chosen, "FEW_OPS", 1)
    found = regimes(mlp(4096), H200, Options())
    assert all(r.options == Options() for r in found[:2]) and found[2].options.tiles


# --- a few linears ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [65, 100, 128, 256, 257, 300, 700, 4096, 9999])
def test_each_size_is_in_one_regime(largest: int) -> None:
    found = regimes(mlp(largest), H200, Options())
    sizes = sorted(n for r in found for first, last in r.ranges for n in range(first, last + 1))
    assert sizes == [*range(1, largest + 1)] and found[-1].most == largest
    assert all(r.most == r.ranges[-1][1] and sorted(r.ranges) == list(r.ranges) for r in found)


@pytest.mark.parametrize("rows", [3, 100, 200])
def test_rows_of_each_of_what_moves_are_counted(rows: int) -> None:
    """A batch of sequences: regimes end where so many rows do."""
    program = batched(B=tg.dim("B", max=40), S=rows)
    found = regimes(program, H200, Options())
    few = [r.most for r in found if r.most * rows <= 64]
    assert few == sorted({n for end in range(8, 65, 8) if (n := end // rows)}) and found[-1].most == 40


@pytest.mark.parametrize("rows", [10, 16, 24, 100, 200])
def test_no_range_is_empty_where_a_step_has_many_rows(rows: int) -> None:
    found = regimes(batched(B=tg.dim("B", max=10), S=rows), H200, Options())
    assert sorted(n for r in found for a, z in r.ranges for n in range(a, z + 1)) == [*range(1, 11)]
    assert all(first <= last for r in found for first, last in r.ranges)


@tg.spec
def batched(B=2, S=100):
    x = tg.input("x", (B, S, 512), "bfloat16")
    return tg.linear(tg.relu(tg.linear(x, tg.weight("w1", (1024, 512), "bfloat16"))),
                     tg.weight("w2", (512, 1024), "bfloat16"))  # fmt: skip


def products_us(made: Plan) -> float:
    """Of linears in launches of their own, by the model."""
    times = [product_time(b, made.machine) for b in made.bounds]
    return sum(t.alone(t.stages) for t in times)


def test_each_size_has_the_lowering_that_it_has_alone() -> None:
    """Below some rows and above 1,024 launches of single ops, whose tiles are as good as those of ops
    alone."""

    def lower(program: tg.Program, made: Plan | None) -> str:
        rows = dict(program.sizes)["M"]
        assert made is not None and made.lowering == "persistent" and dict(made.sizes)["M"] == rows
        return "multi_launch" if rows <= 32 or rows > 1024 else "persistent"

    found = regimes(mlp(2048), H200, Options(), lower=lower)
    of = {n: r for r in found for first, last in r.ranges for n in range(first, last + 1)}
    assert all((of[n].lowering == "multi_launch") == (n <= 32 or n > 1024) for n in range(1, 2049))
    for r in found:
        if r.most <= 32:
            program = filled(mlp(2048), the_dim(mlp(2048)), r.most)
            own, shared = (whole_plan(program, H200, of) for of in (Options(), r.options))
            assert products_us(shared) < 1.01 * products_us(own)
    assert all(r.options.order == "auto" for r in found if r.lowering == "multi_launch")


@pytest.mark.parametrize(
    "name, sizes, dim, ends",
    [
        ("gpt3_attention", {"H": 256, "heads": 4, "D": 64}, tg.dim("S", max=600), [64, 256, 600]),
        ("llama_layer", {"S": 1, "S_max": 64}, tg.dim("B", max=40), [4, 8, 16, 32, 40]),
        ("gpt3_attention", {"S": 700, "H": 256, "heads": 4, "D": 64}, tg.dim("B", max=9), [1, 5, 9]),
        ("resnet38", {"stage": 4}, tg.dim("B", max=11), [1, 8, 11]),
    ],
)
def test_regimes_of_all_programs_have_the_lowering_that_two_of_three_sizes_have(
    name: str, sizes: dict[str, int], dim: tg.dim, ends: list[int]
) -> None:
    """First, middle and last. Launches have the tiles that suit each op, none of those that suit one
    launch."""
    taken = ends[1]
    in_launches = {(ends[0] + 1 + taken) // 2, taken, ends[-1]}  # of the last regime one of three

    def lower(program: tg.Program, made: Plan | None) -> str:
        return "multi_launch" if dict(program.sizes)[dim.name] in in_launches else "persistent"

    program = example(name, **sizes, **{dim.name: dim})
    found = regimes(program, H200, Options(), lower=lower)
    assert [r.most for r in found] == ends
    assert [r.lowering == "multi_launch" for r in found] == [n == taken for n in ends]
    assert all(r.options == Options() for r in found if r.lowering == "multi_launch")
    given = regimes(program, H200, Options(order="op_major"), lower=lower)
    assert {r.lowering for r in given} == {"persistent"}


# --- one choice ---------------------------------------------------------------------------------------------


def test_the_tiles_that_lose_least_are_taken() -> None:
    assert least_lost({SMALL: [1.0, 1.0, 3.0], LARGE: [2.0, 1.0, 1.0]}) == LARGE
    assert least_lost({SMALL: [1.0, 1.0, 3.0], LARGE: [2.0, 2.0, 2.0]}) == SMALL


def test_tiles_that_do_not_fit_somewhere_are_not_taken() -> None:
    assert least_lost({SMALL: [1.0, float("inf")], LARGE: [9.0, 9.0]}) == LARGE
