"""Programs beyond the examples: random ones planned at random, all functions of an epilogue, single ops."""

from __future__ import annotations

from typing import Any

import pytest
from random_plans import FAMILIES, random_plan

import tilegen as tg
from tilegen.kernels.kernel import Kernel
from tilegen.ops.pointwise import FUNCTIONS
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.library import Library
from tilegen.targets.interpret.interpreter import STRATEGIES, Interpreter


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_POISON", "1")


def compare(program: tg.Program, plan: Plan, library: Any, bound: float = 1e-5) -> None:
    arguments = random_arguments(program)
    reference = tg.reference(program, *(a.clone() for a in arguments))
    results = Kernel(plan, tg.verify(plan), library)(*arguments)
    states = [a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state"]
    found = [*(results if isinstance(results, tuple) else (results,)), *states]
    wanted = reference if isinstance(reference, tuple) else (reference,)
    assert all(relative_error(y, r) <= bound for y, r in zip(found, wanted, strict=True))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[pytest.mark.full] if n else []) for n in range(0, 120, 5)]
)
def test_random_plans_interpreted(family: Any, first: int) -> None:
    for seed in range(first, first + 5):
        program, plan = random_plan(family, seed)
        compare(program, plan, Interpreter(plan, STRATEGIES[seed % len(STRATEGIES)], seed))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.full] if n else []) for n in range(20)])
def test_random_plans_compiled(family: Any, seed: int) -> None:
    program, plan = random_plan(family, seed)
    compare(program, plan, Library(plan))


@tg.spec
def functions(dtype: str = "float32") -> Any:
    """Everything that an epilogue may call, and ops that no example has."""
    x = tg.input("x", (2, 9, 21), dtype)
    w, v = tg.weight("w", (24, 21), dtype), tg.weight("v", (24,), dtype)
    mean, var, gain, bias = (tg.weight(n, (24,), dtype) for n in ("mean", "var", "gain", "bias"))
    y = tg.linear(x, w, v, name="y")
    normed = tg.batch_norm(y, mean, var, gain, bias, eps=1e-3, name="normed")
    scaled = tg.scale(tg.sigmoid(normed), -0.25, name="scaled")
    masked = tg.softmax(x, scale=0.5, causal=True, name="masked")
    weighed = tg.matmul(masked, x, transpose_a=True, name="weighed")
    words = tg.softplus(tg.abs(scaled) + 0.5) / (1.0 + tg.exp(-normed)) - tg.clamp(tg.tanh(normed), -0.5, 0.9)
    more = tg.log(words**2 + 1.0) * tg.rsqrt(tg.sqrt(tg.abs(words)) + 0.1)
    both = tg.add(tg.leaky_relu(more, 0.2), tg.hardswish(3.0 * words), name="words")
    free = tg.pointwise("relu(e0) * gelu_erf(e1) - 2 * silu(e1) + gelu_tanh(e0)", normed, scaled, name="free")
    picked = tg.where(normed <= scaled, tg.maximum(normed, -0.5), tg.minimum(scaled, y))
    chosen = tg.sub(picked, y < 0.25, name="chosen")
    told = tg.log_softmax(weighed, scale=-2.0, name="told")
    return y, scaled, tg.softmax(weighed, name="p"), free, both, chosen, told


@tg.spec
def single(op: str = "linear") -> Any:
    """An op alone: nothing to wait for, nothing to post."""
    x = tg.input("x", (2, 9, 21), "float32")
    if op == "linear":
        return tg.linear(x, tg.weight("w", (24, 21), "float32"), name="y")
    return tg.softmax(x, causal=True, name="y") if op == "softmax" else tg.relu(x, name="y")


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        pytest.param("bfloat16", marks=pytest.mark.full),
        pytest.param("float16", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("target", [Interpreter, Library])
def test_all_functions(target: Any, dtype: str) -> None:
    program = functions(dtype=dtype)
    plan = tg.plan(program, "cpu:3", tiles={"y": (8, 8, 16), "masked": (4,), "weighed": (8, 16, 8)})
    expressions = " ".join(op.epilogue.expression for op in plan.graph.ops if op.epilogue)
    assert [f for f in FUNCTIONS if f"{f}(" not in expressions] == []
    compare(program, plan, target(plan), 1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("op", ["linear", "softmax", "relu"])
@pytest.mark.parametrize("target", [Interpreter, Library])
def test_single_ops(target: Any, op: str) -> None:
    plan = tg.plan(single(op=op), "cpu:3")
    assert not plan.edges
    assert not plan.targets
    compare(single(op=op), plan, target(plan))


def test_nan_goes_through() -> None:
    """A NaN in one row of the input makes that row of the output NaN, no other."""
    program = single()
    plan = tg.plan(program, "cpu:3")
    x, w = random_arguments(program)
    x[1, 3, 5] = float("nan")
    bad = Kernel(plan, tg.verify(plan), Library(plan))(x, w).isnan()
    assert bad[1, 3].all()
    assert int(bad.sum()) == 24
