"""Linears of a kernel of many share their code, whatever their columns and steps are; of a few, none does."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest

import tilegen as tg
import tilegen.targets.sm90.library
from tests.pure.targets.test_shared_bodies import bodies_of
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.library import ARCHITECTURE, HopperLibrary
from tilegen.targets.sm90.linear_loads import FEW_LINEARS

TILE = (64, 32, 64)


@tg.spec
def deep(M=64, N=18, widths=(256, 320), odd=None, dtype="bfloat16"):
    """N linears and ReLUs one after the other; `odd`: what the fourth does instead."""
    x, before = tg.input("x", (M, widths[-1]), dtype), widths[-1]
    for n in range(N):
        wide = widths[n % len(widths)]
        y = tg.linear(x, tg.weight(f"w{n}", (wide, before), dtype), name=f"l{n}")
        x, before = odd(y) if odd and n == 3 else tg.relu(y, name=f"h{n}"), wide
    return x


def planned(tiles: dict[str, Any] | None = None, **sizes: Any) -> Plan:
    cut = {f"l{n}": TILE for n in range(sizes.get("N", 18))} | (tiles or {})
    plan = tg.plan(deep(**sizes), "h200", target="sm_90a", tiles=cut)
    assert isinstance(plan, Plan)
    return plan


def shared(plan: Plan) -> list[list[str]]:
    return [[op.name for op in body.members] for body in bodies_of(plan) if body.shared]


def test_a_few_linears_have_code_of_their_own() -> None:
    assert shared(planned(N=FEW_LINEARS)) == []
    assert shared(planned(N=FEW_LINEARS + 1)) == [[f"l{n}" for n in range(FEW_LINEARS + 1)]]


@pytest.mark.parametrize("widths", [(256,), (256, 320), (128, 192, 200, 1000)], ids=str)
def test_columns_and_steps_may_differ(widths: tuple[int, ...]) -> None:
    assert shared(planned(widths=widths)) == [[f"l{n}" for n in range(18)]]


@pytest.mark.parametrize(
    "odd",
    [
        lambda y: tg.silu(y, name="h3"),
        lambda y: tg.add(y, tg.weight("b", (320,), "bfloat16"), name="h3"),
        lambda y: tg.add(y, tg.input("r", (64, 320), "bfloat16"), name="h3"),
    ],
    ids=["another function", "a vector", "a residual"],
)
def test_one_that_computes_something_else_has_its_own(odd: Any) -> None:
    assert shared(planned(odd=odd)) == [[f"l{n}" for n in range(18) if n != 3]]


def test_one_of_another_tile_has_its_own() -> None:
    assert shared(planned({"l3": (64, 64, 64)})) == [[f"l{n}" for n in range(18) if n != 3]]
    assert shared(planned({"l3": (64, 64, 64), "l4": (64, 64, 64)}))[1] == ["l3", "l4"]


def test_one_whose_main_loop_is_over_after_a_turn_has_its_own() -> None:
    """ptxas must not know of a loop of one turn, and does of the others' that they have more."""
    assert shared(planned(widths=(256, 64))) == [[f"l{n}" for n in range(r, 18, 2)] for r in (0, 1)]


def test_members_that_are_not_evenly_spaced_are_looked_up() -> None:
    text = generate(planned({"l3": (64, 64, 64)})).text
    members = re.search(r"tg_member_by_op_l0\[18\] = \{ ([^}]*) \}", text)
    assert members is not None
    assert [int(n) for n in members.group(1).split(",")] == [0, 1, 2, 0, *range(3, 17)]
    assert "member = tg_member_by_op_l0[t.op - TG_OP_L0]" in text
    even = generate(planned()).text
    assert "member = t.op - TG_OP_L0;" in even and "tg_member_by_op" not in even


@pytest.mark.parametrize("packed", [False, True])
def test_numbers_are_each_members_own(packed: bool) -> None:
    weights = frozenset({f"w{n}" for n in range(18)}) if packed else frozenset[str]()
    text = generate(planned(widths=(256, 64 * 5, 64 * 3)), weights).text
    columns, steps = (
        re.search(rf"tg_{what}_of_l0\[18\] = \{{ ([^}}]*) \}}", text) for what in ("columns", "steps")
    )
    assert columns is not None and steps is not None
    assert re.split(r",\s+", columns.group(1)) == ["256", "320", "192"] * 6
    assert re.split(r",\s+", steps.group(1)) == ["3", "4", "5"] * 6
    assert ("* tg_steps_of_l0[member] + k)" in text) == packed


@pytest.mark.parametrize("packed", [False, True])
def test_the_host_gives_what_the_kernel_takes(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(odd=lambda y: tg.add(y, tg.weight("b", (320,), "bfloat16"), name="h3"))
    library = HopperLibrary(plan, frozenset({f"w{n}" for n in range(18)}) if packed else frozenset())
    monkeypatch.setattr(
        tilegen.targets.sm90.library, "encode", lambda address, *_: struct.pack("<16Q", address, *[0] * 15)
    )
    addresses = {name: 4096 * n for n, name in enumerate(plan.graph.tensors, 1)}
    copies = {f"l{n}_b": 10**6 + n for n in range(18)} if packed else {}
    maps, pointers = (buffer.raw for buffer in library.parameters(addresses, copies, 0, 0, 0)._buffers[:2])
    sizes = f"static_assert(sizeof(tg_maps) == {len(maps)} && sizeof(tg_tensors) == {len(pointers)});\n"
    compile_cuda(library.source + sizes, ARCHITECTURE)
    named = {address: name for name, address in (addresses | copies).items()}
    mapped = [named[struct.unpack_from("<Q", maps, at)[0]] for at in range(0, len(maps), 128)]
    others = [n for n in range(18) if n != 3]
    of_first = ["x", *(f"h{n - 1}" for n in others[1:])]
    assert mapped[: len(others)] == of_first
    assert mapped[len(others) : 2 * len(others)] == [f"l{n}_b" if packed else f"w{n}" for n in others]


@pytest.mark.parametrize("kind", ["alike", "different"])
def test_many_compile_at_once_and_spill_nothing(kind: str) -> None:
    """64 took minutes, and spilled."""
    widths = (1024, 2048) if kind == "alike" else tuple(512 + 8 * (37 * n % 100) for n in range(64))
    plan = tg.plan(deep(N=64, widths=widths), "h200", target="sm_90a")
    assert isinstance(plan, Plan)
    made = compile_cuda(generate(plan).text, ARCHITECTURE)
    assert "0 bytes spill stores" in made.log and not re.findall(r"C75\d\d", made.log)
