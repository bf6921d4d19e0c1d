"""The portable kernel without a GPU: every chain compiles for every architecture, no thread spills, blocks
and stages fit."""

from __future__ import annotations

import re

import pytest

import tilegen as tg
from tests.gpu.gemms import CASES, Case, mlp
from tests.gpu.ops import pair
from tests.gpu.portable import TWICE
from tests.shares import share
from tilegen.arch import gpus
from tilegen.arch.machine import machine
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.tidy import pieces
from tilegen.graph.fuse_epilogues import fuse
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.targets.cpu.emit import generate as generate_cpu
from tilegen.targets.sm80.block import REGISTERS, ROOM, best_block
from tilegen.targets.sm80.emit import generate
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm80.pixels import MOST_PIXELS, pixel_tiles
from tilegen.targets.sm80.product import LARGEST_FILTER, PortableLinear, multiplies_pixels


@tg.spec
def seen_far(W=2, C=8, S=27, apart=1, pitch=8):
    """A line of a filter over W pixels that lie `pitch` numbers apart."""
    x = tg.input("x", (1, 1, W, pitch), "float16")
    x = x.split([C, pitch - C])[0] if pitch > C else x
    w = tg.weight("w", (64, 1, S, C), "float16")
    return tg.relu(tg.conv2d(x, w, padding=(0, apart * (S // 2)), dilation=(1, apart), name="y"), name="z")


@tg.spec
def with_vectors(count=8):
    """relu(conv(x) + the sum of so many vectors)."""
    x, w = tg.input("x", (8, 56, 56, 64), "float16"), tg.weight("w", (64, 3, 3, 64), "float16")
    vectors = [tg.weight(f"v{n}", (64,), "float32") for n in range(count)]
    terms = " + ".join(f"e{n}" for n in range(count + 1))
    return tg.pointwise(f"relu({terms})", tg.conv2d(x, w, padding=1, name="y"), *vectors, name="z")


NAMES = {c.name: c for c in CASES}
ELSEWHERE = ["mlp, M = 1000, tile policy", "gated, rows shared", "block", "split sum"]


def compiles(case: Case, architecture: str) -> None:
    source = generate(case.plan(target="sm_80"), architecture)
    assert "mma.sync.aligned.m16n8k16" in source.text and "cp.async.cg" in source.text
    assert source.shared_bytes <= gpus.architecture(architecture).shared_block
    cubin = compile_cuda(source.text, architecture)
    local = [int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill stores)", cubin.log)]
    assert cubin.code[:4] == b"\x7fELF" and local == [0, 0] and "warning" not in cubin.log, cubin.log


@pytest.mark.parametrize("case", share(CASES, 3, 1))
def test_compiles_for_sm_80(case: Case) -> None:
    compiles(case, "sm_80")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("case", TWICE, ids=lambda c: c.name)
def test_attention_of_twice_the_rows_spills_nothing(case: Case, architecture: str) -> None:
    compiles(case, architecture)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize(("pixels", "channels"), [(56, 64), (28, 128), (14, 256), (7, 512), (40, 96)])
def test_convolutions_spill_nothing(pixels: int, channels: int, architecture: str) -> None:
    compiles(Case("pair", pair, {"B": 8, "HW": pixels, "C": channels}), architecture)


@pytest.mark.parametrize(("width", "by_product"), [(LARGEST_FILTER, True), (LARGEST_FILTER + 2, False)])
def test_a_product_has_a_bit_for_each_column_of_a_filter(width: int, by_product: bool) -> None:
    plan = Case("wide", pair, {"HW": 30, "size": width}).plan(target="sm_80")
    assert multiplies_pixels(plan.bounds[0]) == by_product


@pytest.mark.parametrize(("apart", "by_product"), [(1250, True), (1300, False)])
def test_a_place_of_a_filter_fits_an_int(apart: int, by_product: bool) -> None:
    case = Case("far", seen_far, {"apart": apart, "pitch": 65536})
    assert multiplies_pixels(case.plan(target="sm_80").bounds[0]) == by_product


@pytest.mark.parametrize("pixels", [2048, 2049, 16000])
def test_lines_of_any_length_have_tiles(pixels: int) -> None:
    graph = fuse(Case("long", seen_far, {"W": pixels, "C": 64, "pitch": 64}).program)
    ((_, lines, width, *_),) = pixel_tiles(graph.bound(graph.ops[0]), machine("a100"))
    assert lines == 1 and width <= MOST_PIXELS


@pytest.mark.parametrize("count", [1, 2, 8])
def test_vectors_of_an_epilogue_spill_nothing(count: int) -> None:
    compiles(Case("vectors", with_vectors, {"count": count}), "sm_80")


def test_steps_of_a_convolution_may_have_few_channels() -> None:
    """Fewer than a block of 64, of which the time on Hopper is told."""
    tiles = {"first": (1, 7, 6, 8, 16), "second": (1, 7, 6, 8, 8)}
    plan = Case("few", pair, {"HW": 7, "C": 16, "N": 8}, {"tiles": tiles}).plan(target="sm_80")
    assert [b.tile[-1] for b in plan.bounds] == [16, 8]


@pytest.mark.parametrize("architecture", ["sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("name", share(ELSEWHERE, 2))
def test_compiles_elsewhere(name: str, architecture: str) -> None:
    compiles(NAMES[name], architecture)


@pytest.mark.parametrize(
    "tile", [(512, 512, 128), (80, 200, 48), (16, 8, 16), (256, 384, 64)], ids=lambda t: "x".join(map(str, t))
)
def test_any_tile(tile: tuple[int, int, int]) -> None:
    compiles(Case("any", mlp, {"M": 600}, {"tiles": {"up": tile, "down": tile}}), "sm_80")


def test_schedule_is_that_of_the_other_targets() -> None:
    plan = NAMES["mlp, M = 1000, bands"].plan(target="sm_80")
    text = schedule_text(plan)
    on_cpu = NAMES["mlp, M = 1000, bands"].plan(target="cpu")
    assert text in generate_cpu(on_cpu)
    there = " ".join(generate(plan, "sm_80").text.split())
    functions = [
        p
        for p in pieces(text.splitlines())
        if p.is_function and p.names & {"tg_next", "tg_tile", "tg_waits_down", "tg_posts_up", "tg_reset"}
    ]
    assert len(functions) == 5 and all(" ".join("\n".join(p.lines).split()) in there for p in functions)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("tm", [16, 64, 80, 128, 256, 512])
@pytest.mark.parametrize("tn", [8, 48, 64, 88, 176, 256, 512])
def test_blocks_fit_registers_and_stages_shared_memory(tm: int, tn: int, groups: int) -> None:
    block = best_block(tm, tn, groups)
    assert block.registers <= REGISTERS and block.across in (1, 2, 4, 8)
    assert block.panel(ROOM) and block.summed_bytes <= ROOM
    assert 3 * 2 * block.panel(ROOM) * block.deep * block.loaded <= ROOM


@pytest.mark.parametrize(
    "tile, rows, columns",
    [
        ((128, 256), 128, 256),
        ((256, 128), 256, 128),
        ((128, 192), 128, 192),
        ((64, 96), 64, 96),
        ((16, 64), 16, 64),
    ],
)
def test_usual_tiles_are_one_block(tile: tuple[int, int], rows: int, columns: int) -> None:
    block = best_block(*tile, 1)
    assert (block.rows, block.columns) == (rows, columns)


def test_stages() -> None:
    """128 x 256: four stages of 64 columns on sm_90, three on sm_80, four of 32 on sm_86."""
    plan = Case("one", mlp, {"M": 128}, {"tiles": {"up": (128, 256, 64), "down": (128, 256, 64)}}).plan(
        target="sm_80"
    )
    ops = [PortableLinear(plan, plan.bounds[0], a) for a in ("sm_90", "sm_80", "sm_86")]
    assert [(op.stages, op.chunk) for op in ops] == [(4, 64), (3, 64), (4, 32)]


def test_shared_steps_wait_for_every_part() -> None:
    """Steps that a cluster shares out: each step belongs to the part whose share holds it, and a wait
    stands at each part's first."""
    plan = NAMES["mlp, M = 64, deep steps"].plan(target="sm_80")
    op = PortableLinear(plan, plan.bounds[1], "sm_80")
    parts = [eval(op.cta_of_step.replace("/", "//"), {"step": step}) for step in range(op.steps)]
    assert op.cluster == 2 and parts == [
        next(p for p in (1, 0) if op.steps * p // 2 <= step) for step in range(op.steps)
    ]
    assert op.first_steps == [(0, 0), (1, op.steps // 2)]


def test_one_cta_each_worker() -> None:
    clusters = PortableLibrary(NAMES["mlp, rows shared"].plan(target="sm_80"), architecture="sm_80")
    static = PortableLibrary(NAMES["mlp, M = 1000, bands"].plan(target="sm_80"), architecture="sm_80")
    assert clusters.launch().grid == min(132, clusters.plan.order.count) and static.launch().grid == len(
        static.plan.scheduling
    )
    assert "Generated by tilegen" in clusters.source and clusters.counter_words == 32 * (
        len(clusters.plan.targets) + 3
    )
