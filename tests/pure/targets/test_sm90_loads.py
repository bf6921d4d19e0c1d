"""The numbers of a Hopper kernel: every load brings what its step multiplies, every element is stored once,
all of it fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from tests.gpu.gemms import HOPPER, IN_TURN, Case, both, gated, gemm, mlp
from tests.oracles.hopper import check
from tilegen.frontend.program import DTYPES
from tilegen.ops.base import ceil_div
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.gemm import k_range
from tilegen.ops.rows import THREADS
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.layout import SHARED, Layout
from tilegen.targets.sm90.linear import linear
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.stage import ALONE, Loads
from tilegen.targets.sm90.store import RowStore
from tilegen.targets.sm90.tile import HEIGHTS

SIZES = [(1, 344, 192), (72, 200, 136), (300, 400, 200)]  # M, N, K
CLUSTERS: list[Any] = [1, 2, "2:m", "2:n"]
LARGER = ["4:m", "4:n", "2x2", "2x4", "4x2"]
SUMS, SUMS_BY_ROWS = ["4:k", "8:k"], ["2:km", "4:km"]
WIDTHS = [16, 48, 64, 96, 128, 176, 192, 256]
NAMES = {c.name: c for c in HOPPER}


def ops_of(plan: Plan, packed: bool) -> list[Product]:
    return [linear(Code(plan, b), frozenset(plan.arguments) if packed else frozenset()) for b in plan.bounds]


def cuts() -> list[tuple[tuple[int, int, int], Any]]:
    """Tiles and clusters as the planner may emit them."""
    made = []
    for rows, cluster, width in (
        *product(HEIGHTS, CLUSTERS, WIDTHS),
        *product(HEIGHTS, LARGER, (16, 72, 160)),
        *product(HEIGHTS, SUMS, (64, 128)),
        *product((32, 96, 224), SUMS_BY_ROWS, (64, 128)),
        *product((32, 96), SUMS_BY_ROWS, (256,)),
        *product((24, 72, 184), (1, "2:m", "2:n", *LARGER), (128, 256)),
        *product((48, 112, 240), (1, "2:m", "2:n", *LARGER), (64,)),
    ):
        # whose ring has no room for two stages, or whose two warpgroups share no eights of columns
        if (rows >= 192 and width > 192 and rows % 64 == 0) or (rows, width, cluster) == (256, 96, 2):
            continue
        if rows != 64 or width % 16 == 0:
            made.append((tile_of(rows, width, 128 if width == 96 else 64, cluster), cluster))
    return made


def tile_of(rows: int, width: int, depth: int, cluster: Any) -> tuple[int, int, int]:
    """Of a cluster whose CTAs compute rows x width each."""
    shape = ClusterShape.of_option(cluster)
    return rows * shape.m, width * shape.n, depth


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("case", HOPPER, ids=lambda c: c.name)
def test_loads_and_stores_of_cases(case: Case, packed: bool) -> None:
    for op in ops_of(case.plan(), packed):
        check(op)


def sized_cuts() -> list[Any]:
    """Each cut with one of the sizes, in full runs with all of them."""
    return [
        pytest.param(tile, split, size, marks=[] if n % len(SIZES) == m else [pytest.mark.full])
        for n, (tile, split) in enumerate(cuts())
        for m, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize("tile, cluster, size", sized_cuts(), ids=str)
def test_loads_and_stores(tile: tuple[int, int, int], cluster: Any, size: tuple[int, int, int]) -> None:
    m, n, k = size
    sizes = {"M": m, "N": n, "K": k * max(1, ClusterShape.of_option(cluster).k // 2)}  # a step each
    plan = Case("", gemm, sizes, {"tiles": {"y": tile}, "cluster": {"y": cluster}}).plan()
    for packed in (False, True):
        for op in ops_of(plan, packed):
            check(op)


@pytest.mark.parametrize("width", [272, 384, 512])
def test_no_copy_moves_more_than_256_rows(width: int) -> None:
    plan = Case("", gemm, {"M": 40, "N": 1000, "K": 136}, {"tiles": {"y": (64, width, 64)}}).plan()
    for packed in (False, True):
        for op in ops_of(plan, packed):
            assert all(max(m.box) <= 256 for m in op.maps)
            check(op)


def test_what_the_last_rows_load_is_no_more_than_a_tile() -> None:
    """Else there is a map for them, and a case that no CTA ever takes. 118 rows of 120, four CTAs."""
    cut = {"tiles": {"y": (120, 256, 64)}, "cluster": {"y": "4:n"}, "pingpong": {"y": True}}
    text = generate(Case("", gemm, {"M": 358, "N": 256, "K": 128}, cut).plan()).text
    assert "y_a" in text and "y_a_tail" not in text


GATED = [(64, 48, 64), (64, 16, 128), (128, 80, 64), (128, 48, 192), (256, 96, 64)]
GATED_SWAPPED = [(72, 128, 64), (88, 256, 64), (48, 64, 64)]


@pytest.mark.parametrize(
    "tile, cluster",
    [
        *product(GATED, CLUSTERS),
        *product(GATED_SWAPPED, (1, "2:m", "2:n", *LARGER)),
        *product([(64, 64, 64), (128, 64, 64)], SUMS),
        *product([(96, 128, 64), (96, 64, 64)], SUMS_BY_ROWS),
    ],
    ids=str,
)
def test_gated_loads_and_stores(tile: tuple[int, int, int], cluster: Any) -> None:
    """Two sums from one weight: a math warpgroup's columns of both lie side by side."""
    whole = tile_of(*tile, cluster)
    deep = 520 if cluster in SUMS + SUMS_BY_ROWS else 200  # a step for each CTA
    plan = Case(
        "", gated, {"M": 130, "I": deep}, both("gate_up", "down", whole, whole, cluster, cluster)
    ).plan()
    for packed in (False, True):
        for op in ops_of(plan, packed):
            check(op)


def changed(loads: Loads, **copy: Any) -> Loads:
    """A role's loads with something else in every copy."""
    return replace(
        loads,
        each=tuple(
            replace(load, copies=tuple(replace(c, **copy) for c in load.copies)) for load in loads.each
        ),
    )


@pytest.mark.parametrize("change", ["a_rows", "row", "packed", "half"])
def test_the_check_finds_what_is_wrong(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = ops_of(NAMES["gated, rows shared"].plan(), False)[0]
    (column, row), *_ = (c.at for c in op.a.each[0].copies)
    if change == "a_rows":
        op = replace(op, a=changed(op.a, at=(column, row.replace("cta_rank * 128", "cta_rank * 64"))))
    elif change == "row":
        monkeypatch.setattr(RowStore, "row", op.store.row.replace("128", "120"))
    elif change == "packed":
        op = ops_of(NAMES["gated, M = 1"].plan(), True)[0]
        monkeypatch.setattr(
            "tests.oracles.hopper.pack", lambda op, w: torch.arange(1, 1 + op.maps[1].rows * 64)
        )
    else:
        op = replace(op, b=changed(op.b, share=ALONE))
    with pytest.raises(AssertionError):
        check(op)


@pytest.mark.parametrize("case", [c for c in HOPPER if c.packed], ids=lambda c: c.name)
def test_packed_rows_are_a_permutation(case: Case) -> None:
    for op in ops_of(case.plan(), True):
        assert op.packing
        rows = op.packing.rows
        assert rows.shape[1] == op.stage.b_rows
        assert sorted(rows[rows >= 0].tolist()) == list(range(op.tile.groups * op.columns))


@pytest.mark.parametrize("case", IN_TURN, ids=lambda c: c.name)
def test_every_warp_passes_a_turn_on(case: Case) -> None:
    """One arrival of a warpgroup could come before its other warps have taken the turn, and two turns look
    like none to them. Where a tile has one step nothing else holds the warps together; the emulator's wgmma
    does."""
    plan = case.plan()
    layout = Layout(tuple(ops_of(plan, False)), plan.scheduling == "dynamic")
    (turn,) = (b for b in layout.barriers(False) if b["at"] == "TG_TURN_AT")
    assert (turn["count"], turn["arrivals"]) == (2, THREADS // 2 // 32)
    passed = generate(plan).text.split("tg_pass_turn(unsigned smem")[1].split("}")[0]
    assert "if (thread % 32 == 0) tg_arrive(" in passed


@pytest.mark.parametrize("case", HOPPER, ids=lambda c: c.name)
def test_shared_memory(case: Case) -> None:
    """All places lie behind the ring, one after the other, and fit; what is swizzled starts at multiples of
    1024."""
    plan = case.plan()
    ops = tuple(ops_of(plan, case.packed))
    layout = Layout(ops, plan.scheduling == "dynamic")
    assert (
        layout.bytes
        == generate(plan, frozenset(plan.arguments) if case.packed else frozenset()).shared_bytes
        <= SHARED
        == 232448
    )
    assert layout.stages >= 2 and layout.stage_bytes % 1024 == 0
    places = {name: at for name, at, _ in layout.constants if name.endswith("_AT")}
    assert (
        min(places.values()) >= layout.stages * layout.stage_bytes
        and places["TG_OUT_AT"] % 1024 == places["TG_SUMS_AT"] % 16 == 0
    )
    used: list[tuple[int, int]] = [
        (places["TG_QUEUE_AT"], 32 * layout.queue_depth),
        (places["TG_OUT_AT"], 2 * layout.buffers * 8192),
    ]
    used += [(places[b["at"]], 8 * b["count"]) for b in layout.barriers(False)]
    used += [(places["TG_SUMS_AT"], layout.sums_regions * layout.sums_bytes)]
    ends = sorted((at, at + size) for at, size in used if size)
    assert (
        all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
        and ends[-1][1] <= layout.bytes - 1024
    )
    for op in ops:
        assert (
            op.needs.stage == op.stage.bytes <= layout.stage_bytes
            and op.b.at == op.stage.b_at
            and op.stage.b_at % 1024 == 0
        )
        assert (layout.stages - 1) * layout.stage_bytes + op.needs.overrun <= layout.bytes - 1024


@pytest.mark.parametrize(
    "case", [c for c in HOPPER if "steps shared" in c.name or c.name == "mlp, M = 1"], ids=lambda c: c.name
)
def test_exchanged_sums_fit_their_place(case: Case) -> None:
    """A CTA is sent what it finishes, in float32, by each other one: by one warpgroup where each has half of
    what CTAs finish parts of, else half by each."""
    for op in ops_of(case.plan(), False):
        tile = op.tile
        swapped = tile.cta_rows % 64 != 0
        one = tile.cta_columns == 64 if swapped else tile.cta_rows == 64
        # an empty block of 64 is sent, too
        rows = tile.cta_rows if swapped or one else ceil_div(tile.cta_rows, 128) * 128
        size = rows * tile.cta_columns * tile.groups * DTYPES["float32"]
        each = size // tile.cluster.k // (1 if one else 2)
        assert op.needs.sums == tile.sums_bytes == each * (tile.cluster.k - 1)


def test_steps_beyond_a_share_of_the_sum() -> None:
    """Shares of a split sum end where a step does: TMA would bring the next share's columns too."""
    plan = Case(
        "", mlp, {"M": 64}, {"tiles": {"up": (64, 64, 64), "down": (64, 64, 64)}, "split_k": {"up": 3}}
    ).plan()
    for b in plan.bounds:
        lo, hi = k_range(b)
        assert hi == b.shape(0)[1] or (hi - lo) % b.tile[2] == 0
    assert all(
        (linear(Code(plan, b), frozenset({"w1"})).packing is None) == (b.op.name == "down")
        for b in plan.bounds
    )
