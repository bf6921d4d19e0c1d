"""Launches that differ by names alone are proved once and have one kernel; whatever else differs is proved
anew and has another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import tilegen as tg
from tests.everywhere import drawn_programs
from tilegen.arch.machine import machine
from tilegen.errors import ProofError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call
from tilegen.frontend.program import Program
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, OpDef, OpInstance, blocks, ceil_div, register, whole
from tilegen.options import Options
from tilegen.runtime import verify_launches
from tilegen.runtime.verify_launches import prove_launches
from tilegen.schedule.alike import nameless, names_of, written_as
from tilegen.schedule.launches import Launches, launches_of, moving_launches
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan
from tilegen.targets import select
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.launch import maps_at
from tilegen.targets.sm90.library import HopperLibrary

PLACE = select.place(machine("h200"), "sm_90a")
DRAWN = [p for p in drawn_programs(80, 11) if p.dtype != "float32"][:40]


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


# --- their kernels ------------------------------------------------------------------------------------------


@tg.spec
def named(name: str, M: int = 96) -> tg.Value:
    """A product with a bias and a residual, whose names are all of one's choice."""
    x, w = tg.input(f"{name}", (M, 64)), tg.weight(f"{name}_w", (64, 64))
    bias, r = tg.weight(f"{name}_b", (64,)), tg.input(f"{name}_r", (M, 64))
    return tg.relu(tg.linear(x, w, bias, name=f"{name}_y") + r, name=f"{name}_z")


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_names_are_not_in_a_launchs_kernel(target: str) -> None:
    """Such as those of functions and types that the kernel uses."""
    place = select.place(machine("h200"), target)
    texts = set[str]()
    for name in ("x", "expf", "logf", "Op", "smem", "tile", "y"):
        (plan,) = launches_of(named(name=name), place, Options()).each
        texts.add(place.target.emit(plan, "sm_80").text)
    assert len(texts) == 1


@pytest.mark.parametrize("kind", [HopperLibrary, partial(PortableLibrary, architecture="sm_80")])
def test_launches_that_are_alike_have_one_binary(kind: Any) -> None:
    place = select.place(machine("h200"), "sm_90a" if kind is HopperLibrary else "sm_80")
    each = launches_of(layers(M=96), place, Options()).each
    binaries = [kind(plan).files["kernel.cubin"] for plan in each]
    assert len(set(binaries[:3])) == 1 and len(set(binaries)) == 3


def test_packed_weights_of_launches_that_are_alike_have_one_binary() -> None:
    each = launches(layers(M=16)).each[:3]
    packed = [HopperLibrary(plan, frozenset(plan.arguments)) for plan in each]
    assert all(library.packed for library in packed)
    assert len({library.files["kernel.cubin"] for library in packed}) == 1
    assert packed[0].files != HopperLibrary(each[0]).files


@register
class Minus(OpDef):
    """A user's own: x - y, of which y has one row for all; a tile reads READ of its rows."""

    name, coords, stem, operands = "test_alike_minus", ("i",), "rows", ("x", "y", "e0")
    READ = 8

    def grid(self, b: OpInstance) -> Any:
        return (ceil_div(b.out[0], b.tile[0]),)

    def reads(self, b: OpInstance) -> Any:
        return (Access(0, self.write(b)), Access(1, (whole(self.READ), whole(b.out[1]))))

    def write(self, b: OpInstance) -> Any:
        return (blocks(b.coords[0], b.tile[0], b.out[0]), whole(b.out[1]))

    def flops(self, b: OpInstance) -> float:
        return 1.0 * b.tile[0] * b.out[1]

    def tiles(self, b: OpInstance, machine: Any) -> Any:
        return [(64 // b.shape(1)[0],)]


def minus(x: Value, y: Value, name: str) -> Value:
    where = caller()
    operands = [x.operand("rows", where), y.operand("rows", where)]
    return call(Minus.name, name, operands, x.shape, x.dtype, "rows", Attributes(), where)


@tg.spec
def differences(rows: tuple[int, ...], M: int = 512) -> tuple[Value, ...]:
    x = tg.input("x", (M, 64))
    return tuple(minus(x, tg.input(f"of{n}", (n, 64)), f"minus{n}") for n in rows)


def test_an_operand_that_is_called_as_results_are_is_another_tensor() -> None:
    """So that a user's own op is cut for what it reads, and a launch that reads too much is not taken for one
    that does not."""
    place = select.place(machine("h200"), "cpu")
    made = launches_of(differences((8, 1)), place, Options())
    assert [plan.graph.ops[0].tile for plan in made.each] == [(8,), (64,)]
    assert len(set(map(nameless, made.each))) == 2
    with pytest.raises(ProofError, match="of1"):
        prove_launches(made, True)
    assert prove_launches(launches_of(differences((8,)), place, Options()), True).each[0].certificate.ok


@pytest.mark.parametrize("n", range(40))
def test_no_two_tensors_have_one_name(n: int) -> None:
    for plan in launches(DRAWN[n].program).each:
        names = names_of(plan.graph)
        assert list(names) == list(plan.graph.tensors) and len({*names.values()}) == len(names)


def launched(plan: Plan, names: Mapping[str, str]) -> list[Any]:
    """All that a launch is made of, in other names."""
    source = generate(plan)
    return [
        source.text,
        [names[name] for name in source.tensors],
        [replace(m, name="", tensor=names[m.tensor]) for m in maps_at(plan, source, 0)],
        [(names[p.tensor], p.rows, p.room) for p in source.positions],
        *(source.shared_bytes, source.cluster, source.turns, source.lists, source.threads),
    ]


@pytest.mark.parametrize("n", range(40))
def test_a_launch_gives_what_its_kernel_reads(n: int) -> None:
    """Addresses, tensor maps and positions stand where the text, which has other names, looks for them."""
    for plan in launches(DRAWN[n].program).each:
        told = written_as(plan)
        itself = {name: name for name in told.plan.graph.tensors}
        assert launched(plan, told.names) == launched(told.plan, itself)
