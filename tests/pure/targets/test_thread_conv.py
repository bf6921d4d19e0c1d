"""Convolutions of a few channels by threads: the planner's own tiles fit, and what lies in shared memory lies
where ldmatrix and lanes read it."""

from __future__ import annotations

import pytest

import tilegen as tg
from tilegen.codegen.thread_conv import REDUCTIONS, Gather
from tilegen.graph.gathered import by_threads
from tilegen.ops.conv2d import ConvAttributes
from tilegen.targets.sm90.emit import generate


@tg.spec
def first(B=1, HW=32, C=3, N=64, size=3, stride=1, dilation=1, dtype="float16"):
    x, w = tg.input("x", (B, HW, HW, C), dtype), tg.weight("w", (N, size, size, C), dtype)
    return tg.conv2d(x, w, stride=stride, padding=dilation * (size // 2), dilation=dilation, name="conv")


SIZES = [
    {"HW": 224, "B": 32},
    {"HW": 224, "size": 7, "stride": 2, "B": 8},
    {"C": 7, "size": 7, "stride": 3},
    {"C": 20, "size": 7},
    {"C": 1},
    {"C": 92},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_planners_own_tiles_fit(sizes: dict[str, int]) -> None:
    plan = tg.plan(first(**sizes), "h200")
    assert by_threads(plan.bounds[0]) and "mma.sync" in generate(plan).text


@pytest.mark.parametrize("tile", [(1, 4, 32, 64, 64), (2, 5, 7, 40, 64), (1, 32, 32, 8, 64)])
@pytest.mark.parametrize(
    "sizes", [{}, {"C": 1, "size": 5, "stride": 3}, {"C": 12, "dilation": 2}, {"HW": 31, "C": 5}]
)
def test_places_in_shared_memory(sizes: dict[str, int], tile: tuple[int, ...]) -> None:
    g = Gather(tg.plan(first(B=3, **sizes), "h200", tiles={"conv": tile}).bounds[0])
    assert g.positions <= g.depth < g.positions + 16 and g.depth % 16 == 0
    assert g.filter_pitch * 2 // 16 % 2 == 1 and g.filters % g.together == 0 and tile[3] <= g.filters
    assert all(at % 16 == 0 for at in (g.offsets_at, g.filters_at, g.patch_at)) and g.offsets_at >= REDUCTIONS
    stride, dilation = ConvAttributes.of(g.bound).stride[0], ConvAttributes.of(g.bound).dilation[0]
    lines, pixels = ((n - 1) * stride + (g.window[0] - 1) * dilation + 1 for n in g.tile)
    # also where a unit begins before the tile's first pixel
    assert g.patch_lines == lines and pixels * g.channels + g.unit - 1 <= g.patch_pitch
    assert g.bytes == g.patch_at + 2 * tile[0] * lines * g.patch_pitch
