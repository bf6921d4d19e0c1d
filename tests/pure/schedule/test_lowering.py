"""One launch or one of each op: what the model says where nothing is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilegen as tg
from benchmarks.families import head, lora, narrow
from benchmarks.workloads import conv_pair, example
from tests.gpu.gemms import chain, gemm, mlp
from tests.gpu.language import any_width, low_rank
from tests.gpu.test_many_linears import net
from tilegen.errors import LaunchLimitError
from tilegen.frontend.program import Program
from tilegen.graph.cost_model import product_time, tile_times
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.product_time import RATES
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import MatmulAttributes
from tilegen.options import Options
from tilegen.runtime.request import settled_lowering
from tilegen.schedule.launches import launches_of
from tilegen.schedule.lowering import (
    ENTRY_OF_CONVOLUTIONS_US,
    HIDDEN_OF_CONVOLUTIONS_US,
    HIDDEN_OF_MANY_US,
    HIDDEN_US,
    LEAST_US,
    LONGER,
    LONGER_OF_CONVOLUTIONS,
    alone_us,
    modelled_lowering,
    one_launch_us,
)
from tilegen.targets.select import place

H200 = place("h200", "sm_90a")


@tg.spec
def many(M=512, H=1024, ops=21, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    for n in range(ops):
        x = tg.linear(x, tg.weight(f"w{n}", (H, H), dtype), name=f"y{n}")
    return x


@pytest.mark.parametrize(
    "program, hidden",
    [
        (mlp(M=55, H=1152, I=12736), HIDDEN_US),
        (mlp(M=428, H=4736, I=5056), HIDDEN_OF_MANY_US),
        (mlp(M=1995, H=5312, I=1152), HIDDEN_OF_MANY_US),
        (example("gpt3_attention", S=102, H=2048, heads=16, D=128), HIDDEN_US),
        (example("llama_layer", B=4), HIDDEN_US),
        (head(M=101, H=4096, V=128256), HIDDEN_US),
        (conv_pair(B=2, HW=40, C=512), HIDDEN_OF_CONVOLUTIONS_US),
    ],
    ids=lambda v: f"{v.name} {dict(v.sizes)}" if isinstance(v, Program) else f"hides {v}",
)
def test_the_faster_by_the_model_is_taken(program: Program, hidden: float) -> None:
    made = tg.plan(program, "h200", target="sm_90a")
    one = tg.simulate(made).makespan + RATES.launch + RATES.start
    each = launches_of(program, H200, Options()).each
    convolutions = fuse(program).ops_of(ConvAttributes)
    one = one * LONGER_OF_CONVOLUTIONS + ENTRY_OF_CONVOLUTIONS_US if convolutions else one * LONGER
    one -= hidden * (len(each) - 1)
    assert one_launch_us(made, len(each)) == pytest.approx(one)
    expected = "multi_launch" if sum(map(alone_us, each)) < one else "persistent"
    assert modelled_lowering(program, H200).name == expected


@pytest.mark.parametrize("m, h, i", [(55, 1152, 12736), (16, 2048, 8192), (8, 4096, 14336)])
def test_a_launch_of_a_linear_is_priced_as_its_config_was_chosen(m: int, h: int, i: int) -> None:
    program = mlp(M=m, H=h, I=i)
    graph = fuse(program)
    for op, launch in zip(graph.ops, launches_of(program, H200, Options()).each, strict=True):
        time = product_time(launch.bounds[0], H200.machine)
        chosen = H200.forms.choose(graph.alone(op), H200.machine)[op.name]
        assert chosen.us == pytest.approx(time.alone(time.stages)) == pytest.approx(alone_us(launch))


def test_a_launch_of_a_convolution_is_priced_by_its_formula() -> None:
    """As the ops of one launch are."""
    for launch in launches_of(example("resnet38", stage=1), H200, Options()).each:
        time = product_time(launch.bounds[0], H200.machine)
        assert time.residual is not None and alone_us(launch) == max(LEAST_US, time.formula(time.stages))


def test_one_launch_of_many_rows_hides_less_of_each_op() -> None:
    """Eight narrow layers of 3,716 rows took 84.5 µs in one launch on an H200, of 36 rows 38.4, and launch by
    launch 40.4."""
    nets = [narrow(M=36, H=512, I=256), narrow(M=3716, H=128, I=256)]
    assert [modelled_lowering(p, H200).name for p in nets] == ["persistent", "multi_launch"]


def test_many_convolutions_hide_more_of_each_other_than_two() -> None:
    """Twelve of ResNet-38's third stage took 43.7 µs in one launch on an H200, launch by launch 47.9; a pair
    of 16 x 40 x 40 x 64 took 3 % longer in one launch."""
    nets = [example("resnet38", B=1, stage=3), conv_pair(B=16, HW=40, C=64)]
    assert [modelled_lowering(p, H200).name for p in nets] == ["persistent", "multi_launch"]


def test_a_launch_takes_its_time_however_little_it_does() -> None:
    program = example("gpt3_attention", B=1, S=16, H=128, heads=2, D=64)
    least = [alone_us(launch) for launch in launches_of(program, H200, Options()).each]
    assert min(least) == LEAST_US


def test_both_lowerings_are_taken_by_some() -> None:
    """A long sum over few rows wants another ring than what comes before it; the small products of LoRA run
    beside the large one."""
    drawn = [mlp(M=30, H=1024, I=12736), lora(M=2, H=2048, R=8)]
    assert [modelled_lowering(p, H200).name for p in drawn] == ["multi_launch", "persistent"]


def test_attention_that_fills_few_sms_is_launched_alone() -> None:
    """On an H200 24.4 µs in one launch, 19.0 in three."""
    program = example("gpt3_attention", S=102, H=2048, heads=16, D=128)
    assert modelled_lowering(program, H200).name == "multi_launch"


@pytest.mark.parametrize(
    "program",
    [gemm(), example("llama_layer", B=4), example("resnet38", stage=1)],
    ids=lambda p: p.name,
)
def test_one_op_or_what_gains_inside_is_one_launch(program: Program) -> None:
    assert modelled_lowering(program, H200).name == "persistent"


@pytest.mark.parametrize("ops", [16, 42])
def test_how_many_launches_there_are_does_not_matter(ops: int) -> None:
    """The host starts them as one graph. The six layers of DistilBERT, 512 rows, took 299 µs in one launch on
    an H200, and a layer alone, launch by launch, 40."""
    assert modelled_lowering(many(M=1819, H=2048, ops=ops), H200).name == "multi_launch"


@pytest.mark.parametrize(("rows", "lowering"), [(1, "persistent"), (64, "persistent"), (200, "multi_launch")])
def test_a_deep_net_of_few_rows_is_one_launch(rows: int, lowering: str) -> None:
    """Its weights are loaded ahead: forty linears took 99 µs in one launch and 124 in launches, of 200 rows
    162 and 147 (an H200)."""
    assert modelled_lowering(net(M=rows), H200).name == lowering


def test_ops_of_which_there_is_no_one_launch_are_launched_alone() -> None:
    """A kernel's parameters hold the tensor maps of about 115 products."""
    program = many(M=16, H=64, ops=130)
    with pytest.raises(LaunchLimitError):
        tg.plan(program, "h200", target="sm_90a")
    found = modelled_lowering(program, H200)
    assert found.name == "multi_launch" and "one launch of 130 ops takes" in found.reason


@tg.spec
def turned(S=512, heads=32, D=128, made=False):
    x = tg.input("x", (1, S, heads * D), "bfloat16")
    tables = [tg.input(name, (S, D), "float32") for name in ("cos", "sin")]
    return tg.rotary(x, *(map(tg.relu, tables) if made else tables), heads=heads, name="y")


def test_angles_come_once_for_all_heads_of_a_tile() -> None:
    """Unless an op of the launch writes them; and tiles have as many heads as make one wave."""
    plans = [tg.plan(turned(made=made), "h200", target="sm_90a", tiles={"y": (8, 8)}) for made in (0, 1)]
    given, made = (float(tile_times(plan.bounds[-1], H200.machine)[0]) for plan in plans)
    assert given < made - 0.5
    (launch,) = launches_of(turned(), H200, Options()).each
    assert launch.order.count <= H200.machine.sms < 2 * launch.order.count


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


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("program", [any_width(), low_rank()], ids=lambda p: p.name)
def test_launches_of_single_ops_take_rows_of_any_width(program: Program, target: str) -> None:
    each = launches_of(program, place("h200", target), Options()).each
    assert any(plan.graph.ops_of(MatmulAttributes) for plan in each)
