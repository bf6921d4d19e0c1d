"""Every example, planned in many ways, gives what the reference gives: interpreted, compiled, and under
ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import (
    BOUND,
    CASES,
    LAYER,
    Case,
    check,
    compiled,
    execute,
    given,
    interpreted,
    planned,
    run,
    states_of,
    stored,
)

import tilegen as tg
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.targets.cpu.library import sanitized
from tilegen.targets.interpret.interpreter import STRATEGIES


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in outputs and intermediates before each run: what is not written shows."""
    monkeypatch.setenv("TILEGEN_POISON", "1")


def quick(what: str) -> list[Any]:
    """The cases; those that do not ask for `what` only in full runs."""
    return [pytest.param(c, marks=[] if what in c.quick else [pytest.mark.full], id=str(c)) for c in CASES]


@pytest.mark.parametrize(("case", "strategy"), [(c, STRATEGIES[n % 4]) for n, c in enumerate(CASES)], ids=str)
def test_interpreted(case: Case, strategy: str) -> None:
    run(case, interpreted(case, strategy))


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_interpreted_in_every_order(case: Case, strategy: str) -> None:
    for seed in range(3 if strategy == "random" else 1):
        run(case, interpreted(case, strategy, seed))


def test_interpret_is_a_target() -> None:
    case = CASES[0]
    kernel = tg.compile(case.program, "interpret", on=case.on, **case.options)
    assert kernel.target == "interpret"
    run(case, kernel)


@pytest.mark.parametrize("case", quick("compile"))
def test_compiled(case: Case) -> None:
    kernel = compiled(case)
    assert kernel.target == "cpu"
    run(case, kernel)


@pytest.mark.parametrize("case", quick("sanitize"))
def test_sanitized(case: Case, tmp_path: Path) -> None:
    plan = planned(case)[0]
    arguments = {t.name: a for t, a in zip(case.program.arguments, given(case), strict=True)}
    done = execute(plan, sanitized(plan, tmp_path), arguments)
    assert done.returncode == 0, done.stderr[:4000]
    check(
        case, *([stored(plan, tmp_path, name) for name in names] for names in (plan.outputs, states_of(case)))
    )


# --- decoding token by token --------------------------------------------------------------------------------


def decoder(tokens: int, target: str, **options: Any) -> Kernel:
    return tg.compile(Case("llama_layer", {**LAYER, "S": tokens}).program, target, on="cpu:3", **options)


@pytest.mark.parametrize(
    ("target", "prefill"),
    [("interpret", 0), ("interpret", 4), ("cpu", 0), pytest.param("cpu", 4, marks=pytest.mark.full)],
)
def test_decoding_is_the_full_sequence(target: str, prefill: int) -> None:
    """One kernel, a growing position, a cache that starts as NaN: the outputs of all tokens at once."""
    tokens = 9
    whole = Case("llama_layer", {**LAYER, "S": tokens})
    arguments = dict(
        zip((t.name for t in whole.program.arguments), random_arguments(whole.program), strict=True)
    )
    arguments["pos"].fill_(0)
    y, *caches = tg.reference(whole.program, *arguments.values())

    x = arguments["x"]
    for name in ("k_cache", "v_cache"):
        arguments[name] = torch.full_like(arguments[name], float("nan"))
    step = decoder(1, target)
    at = 0
    while at < tokens:
        count = prefill if at < prefill else 1
        kernel = decoder(count, target) if count > 1 else step
        arguments |= {"x": x[:, at : at + count].contiguous(), "pos": torch.tensor([at], dtype=torch.int32)}
        out = kernel(*arguments.values())
        assert relative_error(out, y[:, at : at + count]) <= BOUND["float32"]
        at += count
        for name, reference in zip(("k_cache", "v_cache"), caches, strict=True):
            assert relative_error(arguments[name][:, :at], reference[:, :at]) <= BOUND["float32"]
            assert arguments[name][:, at:].isnan().all()
