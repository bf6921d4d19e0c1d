"""The model of an attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import example, one_attention
from tests.gpu.ops import masked
from tilegen.arch.machine import H200, cpu
from tilegen.graph.attention_time import RATES, alone_us, by_tensor_cores, tile_times
from tilegen.graph.fuse_epilogues import fuse
from tilegen.ops.base import OpInstance
from tilegen.targets.sm90.heuristics import attention_tile, stage_rows


def bound(tile: tuple[int, ...] = (128, 128, 1), **sizes: Any) -> OpInstance:
    graph = fuse(one_attention(**sizes))
    (op,) = graph.ops
    cut = replace(op, tile=tile)
    return graph.with_op(op.name, cut).bound(cut)


@pytest.mark.parametrize("more", [{"S": 1024}, {"T": 1024}, {"B": 4}, {"heads": 64, "kv_heads": 64}])
@pytest.mark.parametrize("tile", [(64, 128, 1), (128, 128, 1)])
def test_more_work_takes_longer(more: dict[str, int], tile: tuple[int, ...]) -> None:
    assert alone_us(bound(tile, **more), H200) > alone_us(bound(tile), H200)


def test_a_causal_tile_takes_as_long_as_it_has_steps() -> None:
    times = tile_times(bound(S=1024, T=1024, heads=1, kv_heads=1, causal=True), H200)
    steps = np.diff(times)
    assert len(times) == 8 and (steps > 0).all() and steps == pytest.approx(steps[0])
    half, whole = (alone_us(bound(B=4, S=1024, T=1024, causal=c), H200) for c in (True, False))
    assert half < 0.7 * whole


def test_two_blocks_of_keys_in_turn_take_as_long_as_one() -> None:
    one, two, three = (tile_times(bound((64, 128, 1), S=64, T=128 * n), H200)[0] for n in (1, 2, 3))
    assert one == two < three


def test_tiles_wait_for_an_sm() -> None:
    """132 tiles of 128 rows are one wave, one more is a second."""
    full, more = (bound(B=n, S=128, T=128, heads=1, kv_heads=1) for n in (H200.sms, H200.sms + 1))
    assert alone_us(more, H200) == pytest.approx(alone_us(full, H200) + tile_times(full, H200)[0])


def test_rows_that_fill_no_sms_are_halved_and_full_waves_are_not() -> None:
    assert attention_tile(bound(B=1, S=1024, T=1024, heads=8, kv_heads=8), H200)[0] == 64
    assert attention_tile(bound(B=32, S=4096, T=4096), H200)[0] == 128


def test_a_stage_is_that_of_the_tile() -> None:
    """Of half the rows keys and values lie in one stage."""
    half, whole = (bound(B=b, S=1024, T=1024, heads=8, kv_heads=8) for b in (1, 32))
    assert attention_tile(half, H200) == (64, 128, 1) and stage_rows(half, H200) == 256
    assert attention_tile(whole, H200) == (128, 128, 1) and stage_rows(whole, H200) == 128


def test_caches_of_few_rows_and_other_machines_have_another_model() -> None:
    decode = fuse(example("llama_layer", S=1))
    assert not by_tensor_cores(decode.bound(decode.op("attn")), H200)
    assert by_tensor_cores(bound(), H200) and not by_tensor_cores(bound(), cpu(2))


def test_a_head_costs_its_columns() -> None:
    few, many = (tile_times(bound((128, 128, 1), D=d), H200)[0] for d in (64, 128))
    assert many - few > RATES.head


@pytest.mark.parametrize("kv_heads", [8, 32])
def test_keys_of_few_queries_come_from_memory(kv_heads: int) -> None:
    b = bound((1, 48, 32 // kv_heads), B=64, S=1, T=4096, heads=32, kv_heads=kv_heads, D=128)
    assert alone_us(b, H200) > 1e6 * 2 * 2 * 64 * 4096 * kv_heads * 128 / H200.memory


def test_what_is_added_to_scores_costs_its_bytes() -> None:
    """A row for all queries next to nothing, one for each query what comes through the cache; twice as much
    of float32."""

    def taken(bias: str | None, wide: bool = False) -> float:
        graph = fuse(masked(B=8, S=1024, heads=8, kv_heads=8, D=64, bias=bias, wide=wide))
        cut = replace(graph.ops[0], tile=(128, 128, 1))
        return alone_us(graph.with_op(cut.name, cut).bound(cut), H200)

    plain, padding, each, wide = taken(None), taken("b"), taken("hq"), taken("hq", True)
    assert plain < padding < 1.02 * plain
    assert 1.1 * plain < each and wide - plain == pytest.approx(2 * (each - plain), rel=0.01)
