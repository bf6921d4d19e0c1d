"""Linears that share their code, by the rules of the GPU's memory: each has its own numbers and tensors."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import tilegen as tg
from tests.moving import drawn
from tilegen.kernels.kernel import Kernel
from tilegen.targets.emulated.library import Adversary, EmulatedLibrary
from tilegen.targets.select import known
from tilegen.targets.sm90 import linear_loads

WIDTHS = (64, 128, 72, 200)


@tg.spec
def net(M=17, N=10, dtype="bfloat16"):
    """Linears of four widths, some with a bias, some with an earlier result added."""
    x, before, made = tg.input("x", (M, WIDTHS[-1]), dtype), WIDTHS[-1], dict[int, Any]()
    for n in range(N):
        wide = WIDTHS[n % 4]
        y = tg.linear(x, tg.weight(f"w{n}", (wide, before), dtype), name=f"l{n}")
        if n % 3 == 0:
            y = tg.add(y, tg.weight(f"b{n}", (wide,), dtype), name=f"z{n}")
        elif wide in made:
            y = tg.add(y, made[wide], name=f"r{n}")
        x, before = tg.relu(y, name=f"h{n}"), wide
        made[wide] = x
    return x


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten are many here."""
    monkeypatch.setattr(linear_loads, "FEW_LINEARS", 8)


def compiled(M: int, **options: Any) -> Kernel:
    kernel = tg.compile(net(M=M), "cuda-emulated", on=4, **options)
    assert isinstance(kernel, Kernel)
    return kernel


def error(kernel: Kernel, M: int) -> float:
    given = drawn(net(M=M), M)
    wanted = tg.reference(net(M=M), *given)
    return float((kernel(*given).float() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("M", [1, 17, 70, 150])
@pytest.mark.parametrize("tile", [(64, 32, 64), (128, 16, 64)], ids=str)
def test_each_gives_its_own_result(M: int, tile: tuple[int, int, int]) -> None:
    kernel = compiled(M, tiles={f"l{n}": tile for n in range(10)})
    assert "tg_member_of_" in kernel.source
    for seed in range(3):
        kernel._library.adversary = Adversary.drawn(seed, kernel._library.launch.grid)
        assert error(kernel, M) < 0.01


@pytest.mark.parametrize("table", ["columns_of", "steps_of", "member_by_op"])
def test_numbers_of_another_member_are_seen(table: str) -> None:
    """Planted: two members' numbers change places."""
    kernel = compiled(17, tiles={f"l{n}": (64, 32, 64) for n in range(10)})
    found = [
        m
        for m in re.finditer(rf"tg_{table}_\w+\[\d+\] = {{ ([^}}]*) }};", kernel.source)
        if len(set(m.group(1).split(", "))) > 1
    ]
    assert found
    numbers = found[0].group(1).split(", ")
    n = next(n for n in range(len(numbers) - 1) if numbers[n] != numbers[n + 1])
    numbers[n], numbers[n + 1] = numbers[n + 1], numbers[n]
    start, end = found[0].span(1)
    text = kernel.source[:start] + ", ".join(numbers) + kernel.source[end:]
    emitted = replace(known()["sm_90a"].emit(kernel.plan), text=text)
    wrong = Kernel(kernel.plan, kernel.proof, EmulatedLibrary(kernel.plan, emitted), None, program=net(M=17))
    with suppress(tg.HangError, tg.RaceError):
        assert not error(wrong, 17) < 0.01
