"""Launches that differ by names alone are proved once; whatever else differs is proved anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilegen as tg
from tilegen.arch.machine import machine
from tilegen.errors import ProofError
from tilegen.frontend.program import Program
from tilegen.options import Options
from tilegen.runtime import verify_launches
from tilegen.runtime.alike import nameless
from tilegen.runtime.verify_launches import prove_launches
from tilegen.schedule.launches import Launches, launches_of, moving_launches
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan
from tilegen.targets import select

PLACE = select.place(machine("h200"), "sm_90a")


@tg.spec
def layers(M: Any, last: int = 72) -> tg.Value:
    """Three products of one size, named by hand, and one of another."""
    x = tg.input("x", (M, 64))
    for name in ("first", "linear", "softmax"):
        x = tg.linear(x, tg.weight(f"w_{name}", (64, 64)), name=name)
    return tg.linear(tg.softmax(x, name="norm"), tg.weight("w_last", (last, 64)), name="last")


def launches(program: Program) -> Launches[Plan]:
    return launches_of(program, PLACE, Options())


def moving() -> Launches[MovingPlan]:
    program, largest = layers(M=tg.dim("M", max=256)), launches(layers(M=256))
    return moving_launches(program, PLACE, Options(), ((1, 256),), largest)


@pytest.mark.parametrize("made", [lambda: launches(layers(M=96)), moving], ids=["one size", "all sizes"])
def test_products_of_one_size_have_one_text(made: Any) -> None:
    first, second, third, norm, last = map(nameless, made().each)
    assert first == second == third
    assert len({first, norm}) == 2


def test_what_makes_another_plan_makes_another_text() -> None:
    """Sizes, types, epilogues, tiles, orders."""
    plan = launches(layers(M=96)).each[0]
    wider = launches(layers(M=96, last=80)).each[-1]
    taller = launches(layers(M=97)).each[0]
    turned = replace(plan, order=replace(plan.order, name="another"))
    (op,) = plan.graph.ops
    cut = replace(plan, graph=replace(plan.graph, ops=(replace(op, tile=(64, 64, 64)),)))
    texts = {nameless(p) for p in (plan, wider, taller, turned, cut)}
    assert len(texts) == 5


def test_a_name_that_is_a_word_of_plans_is_a_name() -> None:
    """An op called softmax is a linear nevertheless."""

    @tg.spec
    def named(name: str) -> tg.Value:
        x = tg.input("x", (64, 64))
        return tg.linear(x, tg.weight("w", (64, 64)), name=name)

    @tg.spec
    def softmax() -> tg.Value:
        return tg.softmax(tg.input("x", (64, 64)), name="softmax")

    of_linears = {nameless(launches(named(name=n)).each[0]) for n in ("linear", "softmax", "rows")}
    assert len(of_linears) == 1
    assert nameless(launches(softmax()).each[0]) not in of_linears


@pytest.mark.parametrize("made", [lambda: launches(layers(M=96)), moving], ids=["one size", "all sizes"])
def test_each_launch_is_proved_under_its_own_name(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proved, verify = [], verify_launches.verify

    def counting(plan: Any) -> Any:
        proved.append(plan)
        return verify(plan)

    monkeypatch.setattr(verify_launches, "verify", counting)
    found = prove_launches(made(), True)
    assert len(proved) == 3 and len(found.each) == 5
    names = [p.certificate.program for p in found.each]
    assert len(set(names)) == 5 and all(p.certificate.ok for p in found.each)


def test_a_wrong_launch_among_those_alike_is_found() -> None:
    """The second of three: no worker has its first tile."""
    made = launches(layers(M=96))
    (_, *first), *others = made.each[1].scheduling
    wrong = replace(made.each[1], scheduling=(tuple(first), *others))
    with pytest.raises(ProofError):
        prove_launches(Launches(made.whole, (made.each[0], wrong, *made.each[2:])), True)
