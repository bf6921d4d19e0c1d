"""Launches of single ops: what is alike but for its names is cut alike, and once."""

from __future__ import annotations

import pytest

import tilegen as tg
from benchmarks.workloads import tasks
from tilegen.arch.machine import machine
from tilegen.errors import AnalysisError, PlanError
from tilegen.frontend.program import Program
from tilegen.ops import base
from tilegen.options import Options
from tilegen.schedule import launches
from tilegen.targets.select import place

PLACES = [place(machine("h200"), target) for target in ("sm_90a", "sm_80", "cpu")]


def told(program: Program, at: object) -> object:
    try:
        made = launches.launches_of(program, at, Options())
    except PlanError as error:
        return str(error)
    return [plan.to_json() for plan in (made.whole, *made.each)]


@pytest.mark.parametrize("at", PLACES, ids=lambda at: at.target.name)
def test_each_op_is_cut_as_if_nothing_was_known(at: object, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [task.program for task in tasks("shapes", 20261129, 12)]
    known = [told(program, at) for program in programs]
    monkeypatch.setattr(launches, "_as_one_alike", lambda *_: None)
    assert known == [told(program, at) for program in programs]


@tg.spec
def layers(names=(), dtype="bfloat16"):
    y = tg.input("given", (40, 256), dtype)
    for name in names:
        y = tg.relu(tg.linear(y, tg.weight(f"w_{name}", (256, 256), dtype), name=name))
    return y


def test_layers_that_are_alike_are_cut_once() -> None:
    launches._cut.cache_clear()
    made = launches.launches_of(layers(names=("a", "b", "c", "d")), PLACES[0], Options())
    assert [plan.graph.ops[0].name for plan in made.each] == ["a", "b", "c", "d"]
    # the first reads an input, the last writes an output
    assert launches._cut.cache_info().misses <= 3 and launches._cut.cache_info().hits >= 1


def test_what_is_asked_of_one_op_is_its_own() -> None:
    program = layers(names=("a", "b"))
    asked = Options(tiles=(("b", (64, 64, 64)),))
    first, second = launches.launches_of(program, PLACES[0], asked).each
    assert second.graph.ops[0].tile == (64, 64, 64) != first.graph.ops[0].tile


@tg.spec
def rows(dtype="float32"):
    return tg.softmax(tg.input("x", (256, 1024), dtype), name="mine")


@pytest.fixture
def softmax(monkeypatch: pytest.MonkeyPatch) -> type[base.OpDef]:
    """Its kind, whose definition is there again afterwards."""
    monkeypatch.setattr(base, "_OP_DEFS", dict(base._OP_DEFS))
    return type(base.kind("softmax"))


def test_a_kind_that_is_defined_anew_is_cut_anew(softmax: type[base.OpDef]) -> None:
    (before,) = launches.launches_of(rows(), PLACES[0], Options()).each

    class Again(softmax):
        def tiles(self, b, machine):
            return [(7, *tile[1:]) for tile in super().tiles(b, machine)]

    base.register(Again)
    (after,) = launches.launches_of(rows(), PLACES[0], Options()).each
    assert before.graph.ops[0].tile[0] != 7 == after.graph.ops[0].tile[0]


def test_any_error_names_the_op_and_its_place(softmax: type[base.OpDef]) -> None:
    class Without(softmax):
        def tiles(self, b, machine):
            raise AnalysisError(f"{b.op.name} at {b.op.where}: no tile")

    base.register(Without)
    with pytest.raises(AnalysisError, match=r"mine at .*test_cut_alike.py:\d+: no tile"):
        launches.launches_of(rows(), PLACES[0], Options())


def test_an_error_names_the_op_that_was_given() -> None:
    @tg.spec
    def odd(dtype="bfloat16"):
        q = tg.input("q", (1, 64, 4 * 37), dtype)
        return tg.attention(q, q, q, heads=4, name="mine")

    error = told(odd(), PLACES[0])
    assert isinstance(error, str) and "mine" in error
