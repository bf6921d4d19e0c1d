"""Regimes of a few linears: which sizes share tiles, and which have their own."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

import tilegen as tg
from tilegen.arch.machine import machine
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.loader import load_spec
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.schedule.linear_regimes import (
    HEIGHTS,
    MOST,
    _Choice,
    _products_us,
    _shared,
    _tiles_and_order,
    covering,
)
from tilegen.schedule.planner import plan
from tilegen.schedule.regimes import regimes
from tilegen.schedule.sized import Regime, Sized
from tilegen.targets import select
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.packing import form

H200 = select.place(machine("h200"), "sm_90a")
SMALL, LARGE, OTHER = (Options(order=f"op_major:{n}") for n in (1, 2, 3))


def mlp(largest: int, **sizes: int) -> tg.Program:
    return load_spec("examples/gpt3_mlp.py")(M=tg.dim("M", max=largest), **sizes)


def packed_forms(program: tg.Program, r: Regime) -> frozenset[str]:
    """What packed copies of its weights depend on, of the kernels of a regime's last size."""
    at = filled(program, the_dim(program), r.most)
    one = r.lowering == "persistent"
    made = (plan(at, H200, r.options),) if one else launches_of(at, H200, r.options).each
    weights = frozenset(t.name for t in program.arguments if t.role == "weight")
    return frozenset(form(op) for p in made for _, op in generate(p, weights).packed)


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
def test_weights_are_packed_again_where_others_tiles_lose(lowering: str) -> None:
    """A height's sizes do not all share a packing then; of 24 regimes above 64 rows most do: two of a height
    on average."""
    for program in (mlp(256), mlp(256, H=4096, I=11008)):
        found = regimes(program, H200, Options(), lower=lambda p, made: lowering)
        forms = [packed_forms(program, r) for r in found]
        assert len({f for f, r in zip(forms, found, strict=True) if r.most <= 64}) == 1
        assert len(set(forms)) <= 2 * len(HEIGHTS)


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
def test_up_to_each_height_rings_are_deeper_and_packed_weights_the_same(
    lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If weights are not to be packed again, whatever that costs."""
    monkeypatch.setattr("tilegen.schedule.linear_regimes.PACKED_AGAIN", math.inf)
    for program in (mlp(300), mlp(300, H=4096, I=11008)):
        found = regimes(program, H200, Options(), lower=lambda p, made: lowering)
        few = [r for r in found if r.most <= 256]
        assert [r.ranges for r in few] == [((n - 7, n),) for n in range(8, 257, 8)]
        for below, height in pairwise((0, *HEIGHTS)):
            shared = [packed_forms(program, r) for r in few if below < r.most <= height]
            assert len(shared[0]) == 2 and len(set(shared)) == 1


def test_fewer_rows_have_the_tiles_that_lose_least_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 72 rows tiles of 48 columns, at 128 of 192, which lose a tenth at fewer."""
    us = {(72, 48): 10.0, (128, 48): 10.1, (72, 192): 11.0, (128, 192): 10.0}

    def tiles(size: int, columns: int) -> _Choice:
        return _Choice("persistent", Options(tiles=(("up", (size, columns, 64)), ("down", (size, 96, 64)))))

    def modelled(graph: Graph, choice: _Choice, place: Place) -> float:
        (_, columns, _), rows = dict(choice.options.tiles)["up"], graph.tensors["x"].shape[0]
        return us[rows, columns]

    monkeypatch.setattr("tilegen.schedule.linear_regimes._products_us", modelled)
    sized = Sized(mlp(300), the_dim(mlp(300)), 1, H200, lambda p: Options(), lambda p, made: "persistent")
    shared = _shared(sized, 128, {72: tiles(72, 48), 128: tiles(128, 192)})
    assert dict(shared.options.tiles) == {"up": (128, 48, 64), "down": (128, 96, 64)}


@pytest.mark.parametrize("largest", [3, 10, 64])
def test_few_rows_of_a_few_linears_are_packed_once(largest: int) -> None:
    found = regimes(mlp(largest), H200, Options())
    assert len({r.options for r in found[:-1]}) <= 1
    assert [r.most for r in found] == [*range(8, largest, 8), largest]


def test_no_size_of_many_has_tiles_that_the_model_finds_much_worse() -> None:
    """Within a tenth of the best of all at the ends of cells, where one choice for all loses two fifths."""
    program = mlp(4096)
    dim = the_dim(program)
    found = [r for r in regimes(program, H200, Options()) if r.ranges[0][0] > 256]
    assert 6 < len(found) <= MOST
    for size in (320, 512, 768, 1152, 1280, 2048, 3072, 4096):
        made = plan(filled(program, dim, size), H200, Options())
        us = [_products_us(made.graph, _Choice(r.lowering, r.options), H200) for r in found]
        here = next(n for n, r in enumerate(found) if any(a <= size <= b for a, b in r.ranges))
        chosen_here = _Choice("persistent", _tiles_and_order(made, filled(program, dim, size)))
        assert us[here] <= 1.1 * _products_us(made.graph, chosen_here, H200)


def test_tiles_serve_all_sizes_that_they_cut_whole() -> None:
    """A range ends where the next one's tiles are the faster, in eights of rows, not where a cell ends."""
    program = mlp(2048)
    ranges = [(r, a, z) for r in regimes(program, H200, Options()) for a, z in r.ranges if a > 256]
    ranges.sort(key=lambda item: item[1])
    inside = 0
    for (before, _, end), (after, _, _) in zip(ranges, ranges[1:], strict=False):
        made = [_Choice(r.lowering, r.options) for r in (before, after)]
        if before.lowering != after.lowering or end % (1 << (end.bit_length() - 6)) == 0:
            continue
        inside += 1
        graph = fuse(filled(program, the_dim(program), end))
        here, there = (_products_us(graph, c, H200) for c in made)
        assert here <= there and end % 8 == 0
    assert inside


def test_tiles_that_were_measured_serve_their_size() -> None:
    asked = Options(tiles=(("up", (128, 64, 64)), ("down", (128, 64, 64))))
    found = regimes(mlp(1024), H200, Options(), settle=lambda p: asked if "M=512" in str(p) else Options())
    assert any(r.options.tiles == asked.tiles and any(a <= 512 <= z for a, z in r.ranges) for r in found)


def test_a_size_that_was_measured_best_split_over_k_leaves_the_others_their_tiles() -> None:
    """Its choice has no tiles to price the others with."""

    def settle(program: tg.Program) -> Options:
        split = Options(split_k=(("up", 2), ("down", 2)))
        return split if dict(program.sizes)["M"] == 320 else Options()

    usual, found = (regimes(mlp(1024), H200, Options(), **given) for given in ({}, {"settle": settle}))
    assert {r.options.tiles for r in found} >= {r.options.tiles for r in usual if r.most not in (320, 384)}
    assert sum(not r.options.tiles for r in found) <= 1 + sum(not r.options.tiles for r in usual)


def test_choices_are_taken_until_nothing_is_lost() -> None:
    losses = {SMALL: [0.0, 0.1, 0.3], LARGE: [0.2, 0.0, 0.0], OTHER: [0.2, 0.2, 0.2]}
    assert covering(losses, [1.0, 1.0, 1.0], 1) == [LARGE] * 3
    assert covering(losses, [9.0, 1.0, 1.0], 1) == [SMALL] * 3
    assert covering(losses, [1.0, 1.0, 1.0], 3) == [SMALL, LARGE, LARGE]


def test_a_level_choice_is_that_of_the_cell_before() -> None:
    losses = {SMALL: [0.0, 0.001, 0.3], LARGE: [0.2, 0.0, 0.0]}
    assert covering(losses, [1.0, 1.0, 1.0], 2) == [SMALL, SMALL, LARGE]
