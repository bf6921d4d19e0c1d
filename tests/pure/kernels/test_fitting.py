"""Where ptxas spills, a kernel gets smaller tiles: planned and proved anew, once, and told."""

from __future__ import annotations

import logging
import math

import pytest

import tilegen as tg
from tests.gpu.gemms import mlp
from tilegen.errors import PlanError, SpillError
from tilegen.frontend.loader import load_spec
from tilegen.graph.forms import Place
from tilegen.kernels.fitting import fitted, fitted_launches, lowered, of_each
from tilegen.kernels.generated import Generated
from tilegen.ops.gemm import groups
from tilegen.options import Options
from tilegen.runtime.request import planned_launches
from tilegen.runtime.verify_launches import Proved
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.targets import select

LLAMA = load_spec("examples/llama_mlp.py")


def sums(made: Plan) -> int:
    """The most of a thread."""
    products = [b for b in made.bounds if b.op.kind in ("linear", "conv2d")]
    return max(math.prod(b.tile[:-1]) * groups(b) // 256 for b in products)


class Compiler:
    """Takes kernels of so many sums a thread, and counts how often it is asked."""

    def __init__(self, program: tg.Program, place: Place, most: int):
        self.program, self.place, self.most, self.asked = program, place, most, 0

    def __call__(self, options: Options) -> Plan:
        self.asked += 1
        made = plan(self.program, self.place, options)
        if sums(made) > self.most:
            raise SpillError("ptxas spilled 668 bytes of registers for sm_90a; choose smaller tiles")
        return made


class OneBody(Compiler):
    """Takes kernels whose linears all have the same tile."""

    def __call__(self, options: Options) -> Plan:
        made = super().__call__(options)
        if len({op.tile for op in made.graph.ops}) > 1:
            raise SpillError("ptxas spilled 236 bytes of registers for sm_90a; choose smaller tiles")
        return made


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("most, asked", [(256, 1), (128, 2), (100, 3), (64, 4)])
def test_smaller_tiles_are_tried_until_they_fit(most: int, asked: int, caplog: object) -> None:
    program, place = LLAMA(M=4096, H=4096, I=11008), select.place("h200")
    assert sums(plan(program, place, Options())) > 128
    compiler = Compiler(program, place, most)
    with caplog.at_level(logging.INFO, "tilegen"):  # type: ignore[attr-defined]
        made = fitted(program, place, Options(), compiler)
    assert sums(made) <= most and compiler.asked == asked and tg.verify(made).ok
    told = [r.message for r in caplog.records if "tried instead: " in r.message]  # type: ignore[attr-defined]
    assert len(told) == asked - 1 and all(
        "spilled 668 bytes" in t and "down 1" in t or "2" in t for t in told
    )


def test_what_fits_is_known_the_next_time() -> None:
    program, place = LLAMA(M=4096, H=4096, I=11008), select.place("h200")
    first, again = (Compiler(program, place, 128) for _ in range(2))
    made = fitted(program, place, Options(), first)
    assert fitted(program, place, Options(), again).digest == made.digest
    assert (first.asked, again.asked) == (2, 1)


def test_tiles_that_were_given_stay() -> None:
    program, place = LLAMA(M=4096, H=4096, I=11008), select.place("h200")
    compiler = Compiler(program, place, 64)
    with pytest.raises(SpillError, match="spilled 668 bytes"):
        fitted(program, place, Options.of(tiles={"down": (128, 256, 64)}), compiler, free=False)
    assert compiler.asked == 1


def test_where_none_fits_the_first_word_stands() -> None:
    program, place = LLAMA(M=4096, H=4096, I=11008), select.place("h200")
    with pytest.raises(SpillError, match="spilled 668 bytes"):
        fitted(program, place, Options(), Compiler(program, place, 8))


@tg.spec
def convolutions(B=16, HW=28, C=256):
    x = tg.input("x", (B, HW, HW, C))
    y = tg.relu(tg.conv2d(x, tg.weight("w1", (C, 3, 3, C)), padding=1, name="first"), name="y")
    return tg.conv2d(y, tg.weight("w2", (C, 3, 3, C)), padding=1, name="second")


def test_convolutions_get_fewer_columns() -> None:
    program, place = convolutions(), select.place("h200")
    assert sums(plan(program, place, Options())) > 100
    made = fitted(program, place, Options(), Compiler(program, place, 100))
    assert sums(made) <= 100 and tg.verify(made).ok


def test_where_a_size_moves_the_formulas_are_named() -> None:
    class Refusing:
        def __call__(self, options: Options) -> Plan:
            raise SpillError("ptxas spilled 360 bytes of registers for sm_90a; choose smaller tiles")

    program, place = LLAMA(M=tg.dim("M", max=512), H=512, I=256), select.place("h200")
    with pytest.raises(SpillError, match="spilled 360 bytes .*; formulas of the size .* give it a number"):
        fitted(program, place, Options(), Refusing())


# --- launches of single ops -----------------------------------------------------------------------------


def spills() -> str:
    raise SpillError("ptxas spilled 24 bytes of registers for sm_90a; choose smaller tiles")


def test_a_launch_that_spills_is_one_launch_instead_where_nothing_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tilegen")
    assert lowered(mlp(), "multi_launch", "auto", spills, lambda: "one") == "one"
    assert "mlp: ptxas spilled 24 bytes" in caplog.text and "one launch instead" in caplog.text
    assert lowered(mlp(), "multi_launch", "auto", lambda: "launches", spills) == "launches"
    assert lowered(mlp(), "persistent", "auto", spills, lambda: "one") == "one"


def test_launches_that_do_not_follow_a_size_are_one_launch_instead_where_nothing_was_asked_for() -> None:
    def unplanned() -> str:
        raise PlanError("the plan over M is not that at M = 9")

    assert lowered(mlp(), "multi_launch", "auto", unplanned, lambda: "one") == "one"
    with pytest.raises(PlanError, match="is not that"):
        lowered(mlp(), "multi_launch", "multi_launch", unplanned, lambda: "one")


def test_launches_that_were_asked_for_spill_as_an_error() -> None:
    with pytest.raises(SpillError, match="spilled 24 bytes"):
        lowered(mlp(), "multi_launch", "multi_launch", spills, lambda: "one")
    with pytest.raises(SpillError, match="spilled 24 bytes"):
        lowered(mlp(), "persistent", "auto", lambda: "launches", spills)


def test_a_range_of_a_size_whose_launches_spill_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        spills()

    monkeypatch.setattr("tilegen.kernels.generate.planned_moving_launches", refused)
    found = tg.generate(mlp(M=tg.dim("M", max=16), H=512, I=512), "sm_90a", "h200").regimes
    assert {type(made) for made in found} == {Generated}
    with pytest.raises(SpillError, match="spilled 24 bytes"):
        tg.generate(mlp(M=tg.dim("M", max=16), H=512, I=512), "sm_90a", "h200", lowering="multi_launch")


def test_linears_of_several_tiles_that_spill_all_get_that_of_one() -> None:
    program, place = LLAMA(M=64, H=4096, I=11008), select.place("h200")
    asked = Options.of(tiles={"gate_up": (64, 48, 64), "down": (64, 64, 64)})
    with pytest.raises(SpillError):
        fitted(program, place, asked, OneBody(program, place, 256), free=False)
    made = fitted(program, place, asked, OneBody(program, place, 256))
    assert {op.tile for op in made.graph.ops} <= {(64, 48, 64), (64, 64, 64)}
    assert len({op.tile for op in made.graph.ops}) == 1 and tg.verify(made).ok


class Libraries:
    """Of launches: takes those of so many sums a thread, and counts whom it refuses."""

    def __init__(self, program: tg.Program, place: Place, most: int):
        self.program, self.place, self.most, self.refused = program, place, most, list[str]()

    def __call__(self, options: Options) -> list[Plan]:
        return of_each(planned_launches(self.program, self.place, options, True).each, self.library)

    def library(self, launch: Proved[Plan]) -> Plan:
        if sums(launch.plan) > self.most:
            self.refused.append(launch.plan.graph.ops[0].name)
            raise SpillError("ptxas spilled 668 bytes of registers for sm_90a; choose smaller tiles")
        return launch.plan


@tg.spec
def wide_and_narrow(M=4096, H=4096):
    x = tg.input("x", (M, H))
    y = tg.linear(x, tg.weight("w1", (11008, H)), name="wide")
    return tg.linear(y[:, :512], tg.weight("w2", (256, 512)), name="narrow")


def test_of_launches_those_that_spill_get_smaller_tiles() -> None:
    program, place = wide_and_narrow(), select.place("h200")
    first, again = (Libraries(program, place, 70) for _ in range(2))
    before = {p.graph.ops[0].name: sums(p) for p in Libraries(program, place, 256)(Options())}
    assert before["wide"] > 70 >= before["narrow"]
    made = fitted_launches(program, place, Options(), first)
    after = {p.graph.ops[0].name: sums(p) for p in made}
    assert after["wide"] <= 70 and after["narrow"] == before["narrow"] and set(first.refused) == {"wide"}
    assert [p.digest for p in fitted_launches(program, place, Options(), again)] == [p.digest for p in made]
    assert not again.refused


@pytest.mark.parametrize("given, most", [({}, 8), ({"wide": (128, 256, 64)}, 70)])
def test_launches_that_never_fit_say_so(given: dict[str, tuple[int, ...]], most: int) -> None:
    """And where a tile was asked for it stays."""
    program, place = wide_and_narrow(), select.place("h200")
    with pytest.raises(SpillError, match="spilled 668 bytes"):
        fitted_launches(program, place, Options.of(tiles=given), Libraries(program, place, most))
