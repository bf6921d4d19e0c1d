"""Kernels that are alike but for names are compiled once, and each is right for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import tilegen as tg
from tests.oracles.sass import Sass
from tilegen.arch.machine import machine
from tilegen.errors import CompileError
from tilegen.options import Options
from tilegen.runtime.nvrtc import Cubin, compile_cuda
from tilegen.schedule.launches import launches_of
from tilegen.schedule.plan import Plan
from tilegen.targets import alike_texts
from tilegen.targets.select import place
from tilegen.targets.sm90.emit import generate


@tg.spec
def net(M=64, dtype="bfloat16"):
    x = tg.input("given", (M, 256), dtype)
    first, second = (tg.weight(name, (256, 256), dtype) for name in ("w_first", "second"))
    wide = tg.weight("wide", (512, 256), dtype)
    y = tg.relu(tg.linear(x, first, name="one"))
    y = tg.relu(tg.linear(y, second, name="another_one"))
    return tg.linear(y, wide, name="last")


def launches() -> Sequence[Plan]:
    return launches_of(net(), place(machine("h200"), "sm_90a"), Options()).each


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are compiled."""
    texts: list[str] = []

    def counted(text: str, architecture: str) -> Cubin:
        texts.append(text)
        return compile_cuda(text, architecture)

    monkeypatch.setattr(alike_texts, "compile_cuda", counted)
    monkeypatch.setattr(alike_texts, "_known", type(alike_texts._known)())
    return texts


def test_what_differs_in_names_alone_is_compiled_once(compiled: list[str], tmp_path: Path) -> None:
    plans = launches()
    texts = [generate(plan).text for plan in plans]
    made = [alike_texts.compiled(text, plan, "sm_90a") for text, plan in zip(texts, plans, strict=True)]
    assert texts[0] != texts[1] and compiled == [texts[0], texts[2]]
    for text, cubin in zip(texts, made, strict=True):
        own = compile_cuda(text, "sm_90a").code
        assert Sass.of(cubin.code, tmp_path).code == Sass.of(own, tmp_path).code


def test_a_number_that_differs_is_another_kernel() -> None:
    (one, another, last), plan = (generate(p).text for p in launches()), launches()[0]
    assert alike_texts.nameless(one, plan) == alike_texts.nameless(another, launches()[1])
    assert alike_texts.nameless(one, plan) != alike_texts.nameless(one.replace("64", "72"), plan)
    assert alike_texts.nameless(one, plan) != alike_texts.nameless(last, launches()[2])


def test_names_that_change_places_are_another_kernel() -> None:
    plan = launches()[0]
    text = "void f() { y[0] = x[0] + x[1]; }".replace("y", plan.outputs[0])
    turned = text.replace("x[0]", f"{plan.outputs[0]}[0]")
    assert alike_texts.nameless(text, plan) != alike_texts.nameless(turned, plan)


def test_what_the_compiler_refuses_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch, compiled) -> None:
    plan = launches()[0]
    counted = alike_texts.compile_cuda

    def refuses(text: str, architecture: str) -> Cubin:
        raise CompileError("no room")

    monkeypatch.setattr(alike_texts, "compile_cuda", refuses)
    with pytest.raises(CompileError, match="no room"):
        alike_texts.compiled(generate(plan).text, plan, "sm_90a")
    monkeypatch.setattr(alike_texts, "compile_cuda", counted)
    alike_texts.compiled(generate(plan).text, plan, "sm_90a")
    assert len(compiled) == 1
