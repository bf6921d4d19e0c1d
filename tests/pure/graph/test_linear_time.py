"""What a linear takes, by the model: properties that hold whatever the constants are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import tilegen as tg
from benchmarks.workloads import added_linear, example, one_linear
from tests.gpu.gemms import gemm
from tilegen.arch.machine import H200, machine
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.linear_time import time_of_cut
from tilegen.graph.product_time import RATES, ProductTime, rates_of, stages_of
from tilegen.graph.rewrites import rewritten
from tilegen.ops.base import OpInstance
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.gemm import normed
from tilegen.options import Options
from tilegen.targets.select import place


def linear(m: int, n: int = 4096, k: int = 4096) -> OpInstance:
    graph = fuse(gemm(M=m, N=n, K=k))
    return graph.bound(graph.ops[0])


def alone(b: OpInstance, height: int, width: int) -> float:
    time = time_of_cut(b, H200, height, width)
    return time.alone(stages_of(time.stage))


@pytest.mark.parametrize("rows", [1, 65, 129, 1001, 3000])
@pytest.mark.parametrize("height", [64, 72, 128])
def test_it_depends_on_rows_in_eights_alone(rows: int, height: int) -> None:
    """So a kernel whose rows move has the tiles of a kernel of its own."""
    eights = math.ceil(rows / 8) * 8
    assert len({alone(linear(m), height, 128) for m in range(eights - 7, eights + 1)}) == 1


@pytest.mark.parametrize("height", [64, 128, 192, 256])
def test_more_rows_columns_and_sums_take_no_less(height: int) -> None:
    least = alone(linear(300, 2048, 2048), height, 128)
    for more in (
        linear(700, 2048, 2048),
        linear(300, 4096, 2048),
        linear(300, 2048, 4096),
    ):
        assert alone(more, height, 128) >= least


@pytest.mark.parametrize("rows", [130, 150, 192])
def test_empty_blocks_of_rows_are_not_multiplied(rows: int) -> None:
    """Three blocks of 64 rows take the same in a tile of three as in one of four, but for the epilogue."""
    b = linear(rows)
    three, four = (time_of_cut(b, H200, height, 96) for height in (192, 256))
    assert three.step == pytest.approx(four.step) and three.waves == four.waves


@pytest.mark.parametrize("k", [2, 4])
def test_who_has_one_of_odd_steps_more_is_waited_for(k: int) -> None:
    cluster = ClusterShape(k=k)
    even, odd, more = (
        time_of_cut(linear(300, 512, 64 * steps), H200, 128, 128, cluster).steps
        for steps in (12 * k, 12 * k + 1, 13 * k)
    )
    assert even < odd == more


def test_a_ring_of_few_stages_waits_for_its_loads() -> None:
    time = time_of_cut(linear(300), H200, 128, 192)
    tiles = [time.tile(stages) for stages in (2, 3, 4, 8)]
    assert tiles == sorted(tiles, reverse=True) and tiles[0] > 1.2 * tiles[-1]


def test_turns_hide_the_epilogues_of_all_tiles_but_the_last() -> None:
    """Of the same tile, by two warpgroups that share it, and by one after the other, on a chip that nothing
    limits."""
    cool = replace(RATES, limit=math.inf)
    for rows, tiles in ((128, 1), (8 * 128, 8)):
        b = linear(rows, 132 * 128, 1024)
        shared, turns = (time_of_cut(b, H200, 128, 128, pingpong=p, rates=cool) for p in (False, True))
        assert shared.waves == turns.waves == tiles
        assert turns.step == shared.step * (RATES.by_one if tiles == 1 else 1)
        gained = shared.alone(4) - turns.alone(4)
        assert gained > 0.8 * (tiles - 1) * shared.epilogue - tiles * RATES.turn


def test_epilogues_longer_than_products_are_not_hidden() -> None:
    short = time_of_cut(linear(4096, 132 * 128, 64), H200, 128, 128, pingpong=True)
    assert short.tile(4) > short.steps * short.step + RATES.turn


def test_curved_functions_and_residuals_cost_their_numbers() -> None:
    plain, curved, added = (
        time_of_cut(graph.bound(graph.ops[0]), H200, 128, 128)
        for graph in (fuse(spec(M=1024, N=4096, K=512)) for spec in (gemm, one_linear, added_linear))
    )
    numbers = 128 * 128
    assert curved.epilogue - plain.epilogue == pytest.approx(numbers * RATES.curve)
    assert added.epilogue - plain.epilogue == pytest.approx(numbers * RATES.beside_by_tma)
    assert added.fetched == pytest.approx(numbers * (RATES.beside - RATES.beside_by_tma))
    assert plain.fetched == curved.fetched == 0


def test_nothing_is_faster_than_memory() -> None:
    for m, n, k in ((1, 8192, 8192), (64, 16384, 4096), (200, 11008, 4096)):
        bytes = 2 * (n * k + m * k + m * n)
        assert alone(linear(m, n, k), 64 if m <= 64 else 256, 96) > 1e6 * bytes / H200.memory


@pytest.mark.parametrize("split", ["m", "n"])
def test_a_pair_loads_half_of_what_it_shares(split: str) -> None:
    """Where bytes from L2 take longest, a step of a pair that shares them is shorter."""
    slow = replace(RATES, l2=RATES.l2 / 4)
    b = linear(4096, 16384, 4096)
    width = 32 if split == "n" else 256
    one, pair = (time_of_cut(b, H200, 128, width, ClusterShape.of(c, split), rates=slow) for c in (1, 2))
    assert pair.step < one.step if split == "n" else pair.step < 1.1 * one.step


def test_the_simulator_times_a_lone_linear_as_the_model_does() -> None:
    plan = tg.plan(
        gemm(M=1000, N=4096, K=4096),
        "h200",
        target="sm_90a",
        tiles={"y": (128, 192, 64)},
    )
    b = plan.bounds[0]
    time: ProductTime = time_of_cut(b, H200, 128, 192)
    stages = stages_of(time.stage)
    assert tg.simulate(plan).makespan == pytest.approx(time.waves * time.tile_of_many(stages))


def test_a_fused_norm_costs_each_tile_its_steps() -> None:
    """Seven narrow tiles an SM scale their rows seven times."""
    graph = rewritten(fuse(example("llama_layer", B=8, S=1)), place("h200", "sm_90a"), Options())
    b = graph.bound(graph.op("gate_up"))
    assert normed(b)
    wide, narrow = (time_of_cut(b, H200, 64, width) for width in (112, 16))
    assert narrow.waves == 7 * wide.waves
    scaled = [t.waves * t.steps * t.step for t in (wide, narrow)]
    assert scaled[1] > 7 * 64 * RATES.scaling(8) > 1.49 * scaled[0]


def test_products_take_longer_from_the_second_wave_on() -> None:
    """The power limit lowers the clock where all SMs multiply for long."""
    one, two = (time_of_cut(linear(m, 256 * 66, 8192), H200, 256, 256) for m in (512, 1024))
    assert (one.waves, two.waves) == (1, 2)
    assert one.step < two.step < (1 + RATES.hot) * one.step


def test_two_warpgroups_that_read_the_same_64_rows_take_longer_than_their_products() -> None:
    """Swapped or not, unless they take turns with tiles."""
    fast = replace(RATES, l2=1e3 * RATES.l2, least_step=0.0)
    b = linear(4096, 4096, 4096)

    def products(height: int, width: int, pingpong: bool = False) -> float:
        return time_of_cut(b, H200, height, width, pingpong=pingpong, rates=fast).step / (height * width)

    assert products(256, 128) < products(128, 96, pingpong=True) < products(64, 96) < products(88, 64)


def test_each_gpu_that_was_measured_has_rates_of_its_own() -> None:
    h100, half = rates_of(machine("h100")), rates_of(replace(machine("h100"), name="h100:66", sms=66))
    assert h100 == half != RATES == rates_of(machine("h100-pcie")) == rates_of(H200)
    b = linear(600, 4096, 4096)
    assert time_of_cut(b, machine("h100"), 128, 128).rates == h100


def test_among_ops_of_other_kinds_idle_sms_cost_what_their_rings_would_hold() -> None:
    """Alone, products of few rows gain little by more CTAs; in a layer weights come early on all SMs."""
    b = linear(33, 4096, 14336)
    most, few = (time_of_cut(b, H200, 64, width, deep=deep) for width, deep in ((32, 3), (48, 2)))
    stages = stages_of(288)
    alone, among = few.formula(stages) - most.formula(stages), few.among(stages) - most.among(stages)
    assert few.busy < 0.7 < 0.9 < most.busy
    assert among > alone + 1.5


def leaving(columns: int, height: int) -> float:
    """What a tile's results take longer to leave than those of 1,024 columns."""
    own, aligned = (time_of_cut(linear(512, n, 1024), H200, height, 64) for n in (columns, 1024))
    return own.epilogue - aligned.epilogue


@pytest.mark.parametrize("height", [64, 80, 128])
def test_rows_that_are_no_whole_eights_take_longer_to_leave(height: int) -> None:
    assert leaving(1023, height) >= leaving(1022, height) > 0 == leaving(1016, height)


@pytest.mark.parametrize("columns", [1022, 1023])
def test_those_of_a_swapped_tile_longer_than_of_a_larger_one_that_is_not(columns: int) -> None:
    assert leaving(columns, 80) > leaving(columns, 128)


@pytest.mark.parametrize(("m", "n", "k"), [(512, 1023, 1024), (200, 301, 2048), (90, 101, 512)])
def test_where_rows_are_no_whole_eights_tiles_are_not_swapped(m: int, n: int, k: int) -> None:
    plan = tg.plan(gemm(M=m, N=n, K=k), "h200", target="sm_90a")
    assert plan.graph.ops[0].tile[0] % 64 == 0
