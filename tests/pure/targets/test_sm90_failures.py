"""What the Hopper kernel has no form for is refused with a PlanError that names it; slow machine code with a
CompileError."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tests.oracles.sass as sass
import tilegen as tg
from tests.gpu.gemms import Case, gated, gemm, mlp
from tilegen.errors import CompileError, PlanError
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.library import ARCHITECTURE, spilled


@tg.spec
def product(M=64, N=256, K=256, dtype="bfloat16"):
    return tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="y")


@tg.spec
def convolution(C=64, N=64, stride=1, dtype="bfloat16"):
    x, w = tg.input("x", (1, 32, 32, C), dtype), tg.weight("w", (N, 3, 3, C), dtype)
    return tg.conv2d(x, w, padding=1, stride=stride, name="y")


@tg.spec
def heads(D=64, S=256, scale=1.0, dtype="bfloat16"):
    q, k, v = (tg.input(name, (1, S, 2 * D), dtype) for name in "qkv")
    return tg.attention(q, k, v, heads=2, scale=scale, name="y")


@tg.spec
def cached(S=40, D=64, dtype="bfloat16"):
    q, pos = tg.input("q", (1, S, 2 * D), dtype), tg.input("pos", (1,), "int32")
    k, v = (tg.state(name, (1, 512, 1, D), dtype) for name in "kv")
    return tg.attention(q, k, v, heads=2, kv_heads=1, at=pos, name="y")


@tg.spec
def roped(dtype="bfloat16"):
    return tg.rope(tg.input("x", (1, 64, 40), dtype), heads=2, name="y")


@tg.spec
def kept(dtype="bfloat16"):
    return tg.append(tg.state("cache", (1, 64, 40), dtype), tg.input("x", (1, 8, 40), dtype), at=8, name="y")


def refused(words: str, program: Any, **options: Any) -> None:
    """While it is planned."""
    with pytest.raises(PlanError, match=words):
        tg.plan(program, "h200", **options)


def test_clusters_that_split_sums_have_tiles_of_one_kind_in_a_launch() -> None:
    """A barrier that only one of two ops flips would be a tile behind for the other."""
    heights = {"up": (64, 64, 64), "down": (128, 64, 64)}
    words = "or of all only one: 'up' has 64 x 64, 'down' 128 x 64"
    refused(words, mlp(H=512, I=512), tiles=heights, cluster={"up": "4:k", "down": "4:k"})
    words = "a launch has clusters of one size and single CTAs: 'down' is run by clusters of 2"
    refused(words, mlp(), tiles=dict.fromkeys(heights, (64, 64, 64)), cluster={"up": "4:k", "down": 2})


@pytest.mark.parametrize("cluster", [2, "2:m", "2:n"])
def test_what_threads_compute_is_run_by_no_cluster(cluster: Any) -> None:
    """Rows of 69 numbers are none that TMA loads. Each CTA would compute the whole tile."""
    refused("threads of one CTA compute it, expected no cluster", gemm(K=69), cluster={"y": cluster})


def refused_by_generator(plan: Plan, words: str) -> None:
    """A plan that was changed by hand, and never asked for."""
    with pytest.raises(PlanError, match=words):
        generate(plan)


@pytest.mark.parametrize(
    "sizes, words",
    [
        (
            {"dtype": "float32"},
            "'y', tile .* on sm_90a: wgmma takes bfloat16, float16, float8_e4m3fn, 'x' is float32",
        ),
        ({"K": 250}, "'x' has columns 250: rows must be whole 16-byte units; pad it to 256"),
    ],
)
def test_shapes(sizes: dict[str, Any], words: str) -> None:
    """Of a linear that nobody made a matmul."""
    plan = tg.plan(product(**sizes), "h200", target="interpret", tiles={"y": (64, 64, 64)})
    refused_by_generator(replace(plan, target="sm_90a"), words)


@pytest.mark.parametrize(
    "tile, parts, words",
    [
        (
            (64, 64, 32),
            1,
            "'y', tile 64x64x32, on sm_90a: steps are 32 wide, expected a multiple of 64 up to 512",
        ),
        ((64, 64, 576), 1, "steps are 576 wide"),
        ((64, 96, 64), 3, "half of 64 x 96 each, of which 3 CTAs cannot finish equal parts"),
        ((64, 48, 64), 4, "a CTA's 48 columns do not split into 4 times eight"),
        ((128, 96, 64), 8, "a CTA's 96 columns do not split into 8 times eight"),
        ((64, 1024, 64), "16:n", "a cluster of 16: 8 CTAs are the most that share a tile"),
        (
            (96, 72, 64),
            1,
            "64, 128, 192 or 256 rows, or any eights up to 256 of 64, 128, 256 columns, not 96 x 72",
        ),
        ((64, 72, 64), "2:m", "any eights up to 256 of 64, 128, 256 columns, not 32 x 72"),
        ((100, 128, 64), 1, "any eights up to 256 of 64, 128, 256 columns, not 100 x 128"),
        ((264, 128, 64), 1, "any eights up to 256 of 64, 128, 256 columns, not 264 x 128"),
        ((72, 64, 64), 1, "two math warpgroups do not share 72 rows of 64 columns in eights"),
        ((96, 128, 64), 2, "finish columns of 64, 128, 192 or 256 rows .*, not 2:k of 96"),
        ((128, 128, 64), "2:km", "rows where there are other numbers of them .*, not 2:km of 128"),
        ((72, 128, 64), "2:km", "a CTA's 72 rows do not split into 2 times eight"),
        ((96, 128, 64), "8:km", "a CTA's 96 rows do not split into 8 times eight"),
        ((248, 256, 64), 1, "a math warpgroup would hold 128 x 248 sums"),
        ((64, 24, 64), 1, "a CTA's 24 columns do not split into 2 times eight"),
        ((128, 24, 64), 2, "a CTA's 24 columns do not split into 2 times eight"),
        ((128, 20, 64), 1, "a CTA's 20 columns do not split into 1 times eight"),
        ((64, 528, 64), 1, "a math warpgroup would hold 64 x 264 sums, which do not fit"),
        ((256, 200, 64), 1, "a math warpgroup would hold 128 x 200 sums"),
        ((64, 64, 256), 2, "its 1 steps cannot be shared by 2 CTAs"),
        ((96, 64, 64), "3:m", "3 CTAs of a cluster of 3:m do not share 64 rows of weights evenly"),
        ((64, 384, 64), "3:n", "3 CTAs of a cluster of 3:n do not share 64 rows of activations evenly"),
    ],
)
def test_tiles(tile: tuple[int, int, int], parts: Any, words: str) -> None:
    refused(words, product(), tiles={"y": tile}, cluster={"y": parts})


def test_uneven_tiles_are_stored_by_tma() -> None:
    words = "a tile of 192 rows is stored by TMA, .* whole 16-byte units; .* bfloat16, 250 columns"
    refused(words, product(N=250), tiles={"y": (192, 64, 64)})


@pytest.mark.parametrize(
    "program, tile, words",
    [
        (lambda: convolution(), (1, 16, 16, 64, 64), "a tile has 256 pixels, expected at most 128"),
        (lambda: convolution(), (1, 4, 8, 64, 48), "steps are 48 wide"),
        (lambda: convolution(stride=2), (1, 8, 13, 64, 32), "2 to 9 pixels and stride 1, not 3 x 3"),
        (lambda: convolution(), (1, 4, 8, 64, 32), "65 to 128 rows with 2 more pixels each, not 1 x 40"),
        (lambda: convolution(), (1, 8, 16, 64, 32), "65 to 128 rows with 2 more pixels each, not 1 x 144"),
        (
            lambda: convolution(stride=9),
            (1, 2, 2, 64, 64),
            "stride .9, 9.: a tensor map takes strides up to 8",
        ),
        (lambda: heads(dtype="float32"), (64, 64), "wgmma takes bfloat16 and float16, 'q' is float32"),
        (lambda: heads(D=20), (64, 64), "heads have 20 columns, expected a multiple of 8 up to 256"),
        (lambda: heads(D=264), (64, 64), "heads have 264 columns, expected a multiple of 8 up to 256"),
        (lambda: heads(), (256, 64), "a tile has 256 queries of 1 heads, expected at most 128 in all"),
        (lambda: heads(), (64, 136), "a block has 136 keys, expected a multiple of 16 up to 128"),
        (lambda: heads(scale=-1.0), (64, 64), "the scale is -1.0, expected a positive number"),
        (lambda: roped(), (8, 2), "heads have 20 columns, expected a multiple of 8"),
        (lambda: kept(), (20,), "a tile is 20 columns wide, expected a multiple of 8"),
    ],
)
def test_kinds(program: Any, tile: tuple[int, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        tg.plan(program(), "h200", tiles={"y": tile})


def test_shares_of_keys_have_few_rows() -> None:
    words = "a tile of a split of the keys has 40 queries of 2 heads, expected at most 64 in all"
    with pytest.raises(PlanError, match=words):
        generate(tg.plan(cached(), "h200", tiles={"y": (40, 64, 2)}, split_kv={"y": 2}))
    assert generate(tg.plan(cached(), "h200", tiles={"y": (32, 64, 2)}, split_kv={"y": 2})).text
    with pytest.raises(
        PlanError,
        match=(
            "'y', tile 1x2, on a GPU: heads have 20 columns|heads have 20 columns, expected a multiple of 8"
        ),
    ):
        generate(tg.plan(cached(D=20), "h200", tiles={"y": (1, 64, 2)}, split_kv={"y": 2}))


@tg.spec
def both(M=128, dtype="bfloat16"):
    x, w, g = tg.input("x", (M, 128), dtype), tg.weight("w", (256, 128), dtype), tg.weight("g", (256,), dtype)
    return tg.rms_norm(tg.linear(x, w, name="h"), g, name="y")


def test_result_of_another_type() -> None:
    data = tg.plan(product(), "h200", tiles={"y": (64, 64, 64)}).to_json()
    data["tensors"]["y"]["dtype"] = "float16"
    refused_by_generator(Plan.from_json(data), "the result is float16, expected bfloat16 or float32")


def test_share_of_a_sum_that_ends_inside_a_step() -> None:
    data = tg.plan(product(K=512), "h200", tiles={"y": (64, 64, 64)}, split_k={"y": 2}).to_json()
    for op in data["ops"].values():
        op["tile"] = [64, 64, 192]
    refused_by_generator(
        Plan.from_json(data), "its share of the sum ends at column 256, inside a step of 192"
    )


def test_a_pair_that_loads_together_runs_every_op() -> None:
    words = "on sm_90a a pair that loads together .for 'h'. must run every op, 'y' is run by one CTA"
    refused(words, both(M=128), tiles={"h": (128, 256, 64)}, cluster={"h": "2:n"})


def test_no_room_for_stages() -> None:
    words = (
        "a stage of 229,376 bytes, which a tile 256x192x256 of 'y' takes, leaves no room for a second one in"
        " 232,448 bytes.*smaller tiles"
    )
    refused(words, product(M=256), tiles={"y": (256, 192, 256)})


SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x) {
  float kept[64];
#pragma unroll
  for (int n = 0; n < 64; ++n) kept[n] = x[n * blockDim.x];
  asm volatile("bar.sync 0;" ::: "memory");
#pragma unroll
  for (int n = 0; n < 64; ++n) x[n * blockDim.x] = kept[n] * kept[63 - n];
}
"""


def test_spills_are_refused() -> None:
    log = compile_cuda(SPILLS, ARCHITECTURE).log
    with pytest.raises(
        CompileError, match=r"ptxas spilled \d+ bytes of registers for sm_90a; choose smaller tiles"
    ):
        spilled(log, SPILLS)


@pytest.mark.parametrize("code", ["C7510", "C7512"])
def test_serialised_wgmma_is_refused(code: str) -> None:
    log = (
        f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are serialized"
        " due to …"
    )
    with pytest.raises(CompileError, match=rf"ptxas serialised wgmma \({code}\) for sm_90a"):
        spilled(log, "")
    spilled("ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", "")


def test_sums_that_are_touched_in_flight_are_refused() -> None:
    """What ptxas says of a real kernel that adds to its sums while wgmma may still write them."""
    text = generate(
        Case("", mlp, {"M": 200}, {"tiles": {"up": (128, 256, 64), "down": (128, 256, 64)}}).plan()
    ).text
    commit = "    tg_mma_commit();"
    assert text.count(commit) == 1
    changed = text.replace(commit, "    acc[0][0] += 1.0f;\n" + commit)
    with pytest.raises(CompileError, match=r"ptxas serialised wgmma \(C75\d\d"):
        spilled(compile_cuda(changed, ARCHITECTURE).log, changed)


def test_missing_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "PACKAGE", "nvidia-cuda-nothing")
    sass.nvdisasm.cache_clear()
    with pytest.raises(
        AssertionError, match=r'nvidia-cuda-nothing is not installed: pip install -e "\.\[test\]"'
    ):
        sass.nvdisasm()


def test_pairs_that_load_together_take_equal_shares() -> None:
    """129 steps would be 64 and 65: from then on the two rings stand a stage apart, and shared copies land in
    different stages."""
    odd = {"M": 64, "H": 8256, "I": 2752}
    cut = {
        "tiles": {"gate_up": (64, 48, 64), "down": (64, 128, 64)},
        "cluster": {"gate_up": 2, "down": "2:n"},
    }
    with pytest.raises(
        PlanError, match=r"\(for 'down'\) must take equal parts of K: 'gate_up' has 129 steps"
    ):
        generate(tg.plan(gated(**odd), "h200", **cut))
    alone = {**cut, "cluster": {"gate_up": 2, "down": 2}}
    # nothing is loaded together: the rings may differ
    assert generate(tg.plan(gated(**odd), "h200", **alone)).text
    for rows in (16, 64, 128, 256):
        # nor does the planner choose such a cut
        assert generate(tg.plan(gated(**{**odd, "M": rows}), "h200")).text
