"""Rungs that fail: each becomes a note or an error, the others are measured."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from ladder_on_cpu import Checked, compiled, stand_in
from test_ladder import ALL, EXAMPLES, mini_layer, mlp

from tilegen.bench import contenders as module
from tilegen.bench.compare import own_variants
from tilegen.bench.contenders import knobs
from tilegen.bench.ladder import ladder
from tilegen.bench.table import failed
from tilegen.errors import CompileError, HangError, PlanError
from tilegen.frontend.loader import load_program
from tilegen.options import Options
from tilegen.runtime import timing


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def measured(select: tuple[str, ...] = ("graph", "tilegen-barrier", "tilegen")) -> Any:
    program = mlp()
    return ladder(program, own_variants(program, Options()), select, 1)


def test_inductor_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(traced: Any) -> Any:
        def run(*arguments: Any) -> Any:
            raise RuntimeError("Failed to find C compiler\nlong log")

        return run

    monkeypatch.setattr(module, "inductor", broken)
    cell = measured(ALL)
    assert [r.variant for r in cell.rows] == [name for name in ALL if name != "inductor"] and not failed(
        [cell]
    )
    assert [(n.workload, n.variant, n.error) for n in cell.notes] == [
        ("gpt3_mlp", "inductor", "RuntimeError: Failed to find C compiler")
    ]


def test_a_plan_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(program: Any, target: str, options: Options, **how: Any) -> Any:
        if options.policies:
            raise CompileError("ptxas spilled 8 bytes", "log", "source")
        return compiled(program, target, options, **how)

    monkeypatch.setattr(module.api, "compile", refuses)
    cell = measured()
    assert [r.variant for r in cell.rows] == ["graph", "tilegen"] and failed([cell])
    assert [(n.variant, n.error) for n in cell.notes] == [
        ("tilegen-barrier", "CompileError: ptxas spilled 8 bytes")
    ]


class Broken(Checked):
    """Writes nothing after its first `good` calls, or hangs at its check number `hangs`."""

    good, hangs, value = 10**9, 10**9, math.nan

    def prepare(self, **weights: torch.Tensor) -> Any:
        bound = type(self)(self.kernel.prepare(**weights))
        bound.calls = 0
        return bound

    def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
        self.calls += 1
        if self.calls <= self.good:
            return super().__call__(*arguments, out=out)
        return out.fill_(self.value)

    def check(self) -> None:
        super().check()
        if self.checks >= self.hangs:
            raise HangError("down(0, 1) waits for semaphore 3: 5 of 8 posts")


def use(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    kind = type("Kind", (Broken,), values)
    monkeypatch.setattr(module.api, "compile", lambda *a, **k: kind(compiled(*a, **k).kernel))


@pytest.mark.parametrize("good", [0, 1, 2], ids=["at once", "in the graph", "in its replay"])
@pytest.mark.parametrize("value", [math.nan, 0.0, 7.0])
def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch, good: int, value: float) -> None:
    use(monkeypatch, good=good, value=value)
    cell = measured()
    assert {r.variant: r.wrong for r in cell.rows} == {
        "graph": False,
        "tilegen-barrier": True,
        "tilegen": True,
    } and failed([cell])


def test_a_wrong_result_of_another_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []

    def prepare(self: Any, **weights: torch.Tensor) -> Any:
        prepared.append(Broken.prepare(self, **weights))
        prepared[-1].good = 0 if len(prepared) == 2 else 10**9
        return prepared[-1]

    use(monkeypatch, prepare=prepare)
    cell = measured(("graph", "tilegen-barrier", "tilegen"))
    assert {r.variant: r.wrong for r in cell.rows} == {
        "graph": False,
        "tilegen-barrier": True,
        "tilegen": False,
    } and failed([cell])


def test_a_cache_that_is_not_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a contender before it has written the same rows."""

    class Forgets(Checked):
        def prepare(self, **weights: torch.Tensor) -> Any:
            return type(self)(self.kernel.prepare(**weights))

        def __call__(self, *arguments: torch.Tensor, out: Any = None) -> Any:
            return super().__call__(*(a.clone() for a in arguments), out=out)

    monkeypatch.setattr(module.api, "compile", lambda *a, **k: Forgets(compiled(*a, **k).kernel))
    cell = ladder(mini_layer(), {"tilegen": Options()}, ("graph", "tilegen"), 1)
    assert {r.variant: r.wrong for r in cell.rows} == {"graph": False, "tilegen": True}


def test_one_wrong_element_of_a_later_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a peer, too: all argument sets of all contenders are compared, element by element."""
    usual = module.eager

    def spoiled(program: Any, arguments: Any, *more: Any, **named: Any) -> Any:
        f = usual(program, arguments, *more, **named)

        def run(*given: torch.Tensor) -> torch.Tensor:
            y = f(*given).clone()
            if given[0] is not arguments[0]:
                y[1, 2] += 4.0
            return y

        return run

    monkeypatch.setattr(module, "eager", spoiled)
    cell = measured(("eager", "graph", "tilegen"))
    assert {r.variant: r.wrong for r in cell.rows} == {"eager": True, "graph": True, "tilegen": False}


def test_a_gpu_that_is_lost_is_told_with_who_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(traced: Any) -> Any:
        def lost() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    monkeypatch.setattr(module, "inductor", breaks)
    with pytest.raises(timing.ContenderDied, match="illegal memory access") as raised:
        measured(("graph", "inductor", "tilegen"))
    assert raised.value.variant == "inductor"


@pytest.mark.parametrize("hangs", [1, 2, 3], ids=["at once", "in the replay", "while it is timed"])
def test_a_hang_is_a_note(monkeypatch: pytest.MonkeyPatch, hangs: int) -> None:
    use(monkeypatch, hangs=hangs)
    cell = measured()
    assert [r.variant for r in cell.rows] == ["graph"] and failed([cell])
    assert [n.variant for n in cell.notes] == ["tilegen-barrier", "tilegen"]
    assert cell.notes[0].error == "HangError: down(0, 1) waits for semaphore 3: 5 of 8 posts"


def test_a_call_that_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = timing.ready

    def refuses(c: timing.Contender) -> Any:
        if c.captured:
            raise RuntimeError("operation not permitted when stream is capturing")
        return usual(c)

    monkeypatch.setattr(timing, "ready", refuses)
    cell = measured(("eager", "graph", "tilegen"))
    assert [r.variant for r in cell.rows] == ["eager"] and [n.variant for n in cell.notes] == [
        "graph",
        "tilegen",
    ]


def test_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, hangs=1)
    cell = measured(("tilegen",))
    assert cell.rows == () and len(cell.notes) == 1 and cell.clock is None


def test_nothing_is_offered() -> None:
    program = mlp("llama_mlp")
    with pytest.raises(PlanError, match="llama_mlp: none of cudnn is offered"):
        ladder(program, {}, ("cudnn",))


def test_open_sizes() -> None:
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), ["M=?"])
    with pytest.raises(PlanError, match="left open"):
        ladder(program, {}, ALL)


def test_knobs_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_POISON", "0")
    monkeypatch.delenv("TILEGEN_TIMEOUT_MS", raising=False)
    with pytest.raises(ValueError), knobs(TILEGEN_POISON="1", TILEGEN_TIMEOUT_MS="5"):
        raise ValueError
    assert os.environ["TILEGEN_POISON"] == "0" and "TILEGEN_TIMEOUT_MS" not in os.environ
