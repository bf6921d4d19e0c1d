"""Convolutions are linears where they are alone, those of more than a pixel of patches: which, and what plans
and proofs say."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from benchmarks.families import resnet50_block
from benchmarks.workloads import example
from tests.gpu.ops import pair, pixels
from tilegen.arch.machine import machine
from tilegen.errors import PlanError
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.pixels import in_rows
from tilegen.kernels.tuning import explicit
from tilegen.ops.gemm import patches
from tilegen.options import Options
from tilegen.runtime.verify_launches import prove_launches
from tilegen.schedule.launches import launches_of, moving_launches
from tilegen.schedule.plan import Plan
from tilegen.targets.select import place
from tilegen.targets.sm80.pixels import clocks

H200 = place(machine("h200"), "sm_90a")


@tg.spec
def conv(B=2, HW=9, C=64, N=72, size=1, stride=1, padding=0, dilation=1, dtype="float16"):
    x, w = tg.input("x", (B, HW, HW, C), dtype), tg.weight("w", (N, size, size, C), dtype)
    return tg.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, name="y")


def bottleneck(B=3) -> Program:
    return resnet50_block(B=B, HW=13)


def kinds(program: Program, on: str = "h200", **options: Any) -> list[str]:
    return [op.kind for op in tg.plan(program, on, **options).graph.ops]


@pytest.mark.parametrize("sizes", [{"B": 1}, {"HW": 1}, {"C": 8, "N": 8}, {"dtype": "bfloat16"}])
def test_alone_it_is_a_linear_over_all_pixels(sizes: dict[str, Any]) -> None:
    program = conv(**sizes)
    made = tg.plan(program, "h200")
    (b,) = made.bounds
    *images, channels = program.tensor("y").shape
    rows = images[0] * images[1] * images[2]
    assert b.op.kind == "linear" and b.op.pixels and b.out == (rows, channels)
    assert tg.verify(made).ok and Plan.from_json(made.to_json()).digest == made.digest
    assert made.graph.tensors["x"].shape == program.tensor("x").shape


LARGE = {"HW": 75, "C": 512, "N": 512, "size": 3, "padding": 1}  # rows that no boxes of pixels fill


@pytest.mark.parametrize("sizes", [{}, {"stride": 2}, {"dilation": 2, "padding": 2}, {"B": 1}])
def test_of_a_large_image_it_is_a_linear_of_patches(sizes: dict[str, Any]) -> None:
    program = conv(**{**LARGE, **sizes})
    made = tg.plan(program, "h200")
    (b,) = made.bounds
    seen = patches(b)
    assert b.op.kind == "linear" and seen is not None and seen.window == (3, 3)
    assert b.shape(1) == (512, 9 * 512) and b.steps * b.tile[2] == 9 * 512
    assert tg.verify(made).ok and Plan.from_json(made.to_json()).digest == made.digest


@pytest.mark.parametrize("channels", [16, 32, 48, 96, 176])
def test_a_step_of_pixels_that_fill_no_blocks_of_64_channels_is_a_pixel(channels: int) -> None:
    program = conv(C=channels, size=3, padding=1)
    made = tg.plan(program, "h200", tiles={"y": (128, 64, channels)})
    (b,) = made.bounds
    assert b.op.kind == "linear" and b.steps == 9 and tg.verify(made).ok
    for depth in (64, 2 * channels):
        words = f"steps are {depth} wide, expected a pixel's {channels} channels"
        with pytest.raises(PlanError, match=words):
            tg.generate(program, on="h200", tiles={"y": (128, 64, depth)})


@pytest.mark.parametrize(
    "sizes", [{"C": 12}, {"C": 40, "size": 3}, {"C": 528, "size": 3}, {"N": 10, "size": 3}]
)
def test_what_is_not_in_units_or_in_slices_of_channels_stays(sizes: dict[str, Any]) -> None:
    assert kinds(conv(**sizes)) == ["conv2d"]


@pytest.mark.parametrize("sizes", [{"padding": 128}, {"dilation": 64, "padding": 64}, {"stride": 9}])
def test_what_no_tensor_map_takes_stays(sizes: dict[str, Any]) -> None:
    within = {"padding": 127, "dilation": 63, "stride": 8}
    far = conv(**{**LARGE, **sizes})
    near = conv(**{**LARGE, **{key: min(value, within[key]) for key, value in sizes.items()}})
    tile = {"y": (128, 64, 64)}
    assert kinds(near, tiles=tile) == ["linear"]
    with pytest.raises(PlanError, match="128x64x64 of 'y' is a linear's, and a tensor map of patches takes"):
        tg.plan(far, "h200", tiles=tile)
    for channels in (40, 528):
        words = f"has {channels} channels, expected a multiple of 64, or of 16 up to 512"
        with pytest.raises(PlanError, match=words):
            tg.plan(conv(C=channels, size=3), "h200", tiles=tile)
    with pytest.raises(PlanError, match="no whole 16-byte units"):
        tg.plan(conv(N=10, size=3), "h200", tiles=tile)


def test_the_cpu_target_multiplies_no_patches() -> None:
    assert kinds(conv(**LARGE), "cpu") == ["conv2d"]


@pytest.mark.parametrize("sizes", [{}, {"C": 24}, {"HW": 13, "stride": 2}, {"B": 1, "N": 40}])
def test_a_portable_kernel_has_chains_of_them(sizes: dict[str, Any]) -> None:
    tiles = {"first": (48, 24, 64), "second": (32, 24, 64)}
    made = tg.plan(pair(**{"B": 2, "HW": 9, **sizes}), "a100", tiles=tiles)
    assert [op.kind for op in made.graph.ops] == ["linear"] * 2
    assert all(patches(b) for b in made.bounds) and made.waits_of("second")
    assert tg.verify(made).ok and Plan.from_json(made.to_json()).digest == made.digest


@pytest.mark.parametrize(("pixels", "channels"), [(56, 64), (28, 128), (14, 256), (7, 512), (40, 96)])
def test_a_portable_chain_is_cut_as_takes_less_time_by_the_model(pixels: int, channels: int) -> None:
    program = pair(B=8, HW=pixels, C=channels)
    boxes = fuse(program)
    rows, on = in_rows(boxes), machine("a100")
    kind = "linear" if clocks(rows, on) < clocks(boxes, on) else "conv2d"
    assert kinds(program, "a100") == [kind] * 2


def test_a_portable_chain_that_holds_another_op_stays() -> None:
    assert set(kinds(example("vgg19", HW=32, block=1), "a100")) == {"conv2d", "max_pool2d"}


def test_whichever_takes_less_time_by_the_model_is_planned() -> None:
    for sizes in (LARGE, {"HW": 14, "C": 64, "N": 64, "size": 3, "padding": 1}):
        graph = fuse(conv(**sizes))
        ways = {"conv2d": graph, "linear": in_rows(graph)}
        times = {kind: H200.forms.choose(g, H200.machine)["y"].us for kind, g in ways.items()}
        assert kinds(conv(**sizes)) == [min(times, key=times.__getitem__)]


def test_options_that_cut_it_as_a_linear_hold() -> None:
    small = conv(size=3, padding=1, HW=7)
    assert kinds(small, tiles={"y": (128, 64, 64)}) == ["linear"]
    assert kinds(small, tiles={"y": (128, 64, 64)}, cluster={"y": "2:m"}) == ["linear"]
    with pytest.raises(PlanError, match="96x40x64"):
        tg.plan(small, "h200", tiles={"y": (96, 40, 64)})


def test_options_that_cut_it_as_a_convolution_hold() -> None:
    assert kinds(conv(), tiles={"y": (1, 5, 8, 64, 64)}) == ["conv2d"]
    assert kinds(conv(C=512), cluster={"y": 2}) == ["conv2d"]
    assert kinds(conv(), tiles={"y": (1, 5, 8, 64)}) == kinds(conv(), tiles={"y": (1, 8, 16)}) == ["conv2d"]


def test_beside_other_ops_in_one_launch_it_stays_and_in_launches_it_is_a_linear() -> None:
    assert kinds(bottleneck()) == ["conv2d"] * 3
    launches = launches_of(bottleneck(), H200, Options())
    assert [op.kind for op in launches.whole.graph.ops] == ["linear", "conv2d", "linear"]
    assert [op.kind for made in launches.each for op in made.graph.ops] == ["linear", "conv2d", "linear"]
    assert [made.bounds[0].out for made in launches.each] == [(507, 64), (3, 13, 13, 64), (507, 256)]
    assert Plan.from_json(launches.whole.to_json()).digest == launches.whole.digest
    assert prove_launches(launches, True).whole.certificate.ok


def test_where_the_batch_moves_launches_are_proved_for_all_of_it() -> None:
    program = bottleneck(B=tg.dim("B", max=3))
    largest = launches_of(filled(program, the_dim(program), 3), H200, Options())
    moving = moving_launches(program, H200, Options(), ((1, 3),), largest)
    assert prove_launches(moving, True).whole.certificate.ok
    assert [p.at(2).bounds[0].out for p in moving.each] == [(338, 64), (2, 13, 13, 64), (338, 256)]


@pytest.mark.parametrize("moves", ["B", "HW"])
def test_one_that_moves_alone_is_a_linear_for_all_sizes(moves: str) -> None:
    """Height and width together, too: rows are then as many as their square."""
    moving = tg.plan(pixels(**{moves: tg.dim(moves, max=3)}), "h200")
    assert moving.most.graph.ops[0].pixels and tg.verify(moving).ok
    assert tg.generate(pixels(**{moves: tg.dim(moves, max=3)}), on="h200")


def test_tuning_fixes_no_tile_of_it_which_one_launch_would_refuse() -> None:
    launches = launches_of(bottleneck(), H200, Options())
    fixed = explicit(launches.whole, bottleneck(), Options())
    assert [name for name, _ in fixed.tiles] == ["conv1"]
    again = launches_of(bottleneck(), H200, fixed).whole
    assert [op.tile for op in again.graph.ops] == [op.tile for op in launches.whole.graph.ops]
    assert kinds(bottleneck(), tiles=dict(fixed.tiles)) == ["conv2d"] * 3


def test_explain_says_so() -> None:
    told = tg.explain(conv(), "h200")
    assert "convolution y is a linear: each pixel is made of one, rows are pixels" in told


def test_other_gpus_run_it_as_a_linear_and_the_cpu_target_as_it_is() -> None:
    assert [tg.plan(conv(), on).graph.ops[0].kind for on in ("a100", "cpu")] == ["linear", "conv2d"]
