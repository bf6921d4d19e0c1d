"""A kernel whose size moves: at every size the program's result, its plan proved, no binary but the first."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.moving import EXAMPLES, drawn, moving, right
from tests.shares import share
from tilegen.frontend.dims import Dim, filled
from tilegen.frontend.loader import load_spec
from tilegen.kernels.moving import MovingKernel
from tilegen.runtime.verify import certify
from tilegen.schedule.moving import MovingPlan


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_size_gives_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_POISON", "1")
    kernel = tg.compile(moving(name), "cpu")
    assert isinstance(kernel, MovingKernel)
    binary = kernel.source
    for size in EXAMPLES[name][3]:
        right(kernel, size)
        assert kernel.at(size).source == binary


@pytest.mark.parametrize("name", share(EXAMPLES, 2))
def test_the_interpreter_runs_the_plan_at_every_size(name: str) -> None:
    kernel = tg.compile(moving(name), "interpret", on=4)
    assert isinstance(kernel, MovingKernel)
    for size in EXAMPLES[name][3][:2]:
        right(kernel, size)


@pytest.mark.parametrize("machine", ["cpu:4", "h200"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_is_proved_at_sizes_that_its_own_proof_left_out(name: str, machine: str) -> None:
    plan = tg.plan(moving(name), machine)
    assert isinstance(plan, MovingPlan)
    largest = plan.dim.most
    for size in {largest // 2 + 1, max(1, largest // 3), largest - 1}:
        assert certify(plan.at(size)).ok, size


@pytest.mark.parametrize("policy", ["kernel", "row", "tile", "chunk:2"])
def test_targets_follow_the_size_under_every_policy(policy: str) -> None:
    mlp = load_spec("examples/gpt3_mlp.py")(H=96, I=256, M=tg.dim("M", max=300))
    kernel = tg.compile(mlp, "cpu", policies={"h": policy}, tiles={"up": (64, 32, 32), "down": (64, 32, 32)})
    assert isinstance(kernel, MovingKernel)
    for size in (1, 64, 65, 300, 129):
        right(kernel, size)


@pytest.mark.parametrize("order", ["op_major", "op_major:3", "banded:2", "banded:4:2"])
def test_orders_follow_the_size(order: str) -> None:
    mlp = load_spec("examples/gpt3_mlp.py")(H=96, I=256, M=tg.dim("M", max=300))
    kernel = tg.compile(mlp, "cpu", order=order, tiles={"up": (32, 64, 32), "down": (64, 32, 32)})
    assert isinstance(kernel, MovingKernel)
    for size in (1, 33, 64, 300, 200):
        right(kernel, size)


def test_a_row_has_the_same_bits_whatever_the_size() -> None:
    kernel = tg.compile(moving("gpt3_mlp"), "cpu")
    x, *weights = drawn(filled(kernel.program, kernel.dim, 300))
    whole = kernel(x, *weights)
    for size in (1, 17, 128, 129, 299):
        assert torch.equal(kernel(x[:size], *weights), whole[:size])


def test_no_rows_give_no_rows() -> None:
    kernel = tg.compile(moving("gpt3_mlp"), "cpu")
    x, *weights = drawn(filled(kernel.program, kernel.dim, 3))
    assert kernel(x[:0], *weights).shape == (0, 96)


def test_a_prepared_kernel_moves() -> None:
    kernel = tg.compile(moving("gpt3_mlp"), "cpu")
    x, *weights = drawn(filled(kernel.program, kernel.dim, 7))
    prepared = kernel.prepare(w1=weights[0], w2=weights[1])
    assert torch.equal(prepared(x), kernel(x, *weights))
    assert torch.equal(prepared(x[:2]), kernel(x[:2], w2=weights[1], w1=weights[0]))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_it_is_copied_and_pickled(again: Any) -> None:
    kernel = tg.compile(moving("gpt3_mlp"), "cpu")
    x, *weights = drawn(filled(kernel.program, kernel.dim, 7))
    assert torch.equal(again(kernel)(x, *weights), kernel(x, *weights))


def test_the_certificate_says_where_it_was_checked() -> None:
    kernel = tg.compile(moving("gpt3_mlp"), "cpu")
    text = kernel.proof.text()
    assert "M = 1 … 300" in text and "1, 128, 129, 256, 257, 300" in text
    assert tg.verify(tg.plan(moving("gpt3_attention"), "cpu")).proved_at == "every B of 1 … 3"


def test_the_largest_size_is_the_plan_without_what_moves() -> None:
    plan = tg.plan(moving("gpt3_mlp"), "h200")
    assert isinstance(plan, MovingPlan)
    assert plan.at(300).digest == plan.most.digest


def test_a_module_moves() -> None:
    program = moving("gpt3_mlp")
    x, *weights = drawn(filled(program, Dim("M", 300), 5))
    layer = tg.module(program, w1=weights[0], w2=weights[1])
    with torch.no_grad():
        assert torch.equal(layer(x[:2]), layer(x)[:2])


def test_a_notebook_shows_it_at_its_largest() -> None:
    program = moving("gpt3_mlp")
    plan = tg.plan(program, "cpu")
    x, *weights = drawn(filled(program, Dim("M", 300), 5))
    layer = tg.module(program, w1=weights[0], w2=weights[1])
    assert isinstance(layer.kernel, MovingKernel)
    assert "<svg" in plan._repr_html_() and "<svg" in layer._repr_html_()
    assert "M = 1 … 300" in layer._repr_html_() and layer._repr_html_() == layer.kernel._repr_html_()


def test_an_order_holds_at_every_size_or_is_not_taken() -> None:
    """Bands that the largest batch fills let a tile of one sequence wait for one behind it."""
    program = load_spec("examples/gpt_layer.py")(S=256, H=512, heads=4, I=1024, B=tg.dim("B", max=16))
    plan = tg.plan(program, "h200")
    assert isinstance(plan, MovingPlan)
    assert all(certify(plan.at(n)).ok for n in (1, 2, 7, 15, 16))
    with pytest.raises(tg.ProofError, match="progress"):
        tg.verify(tg.plan(program, "h200", order="banded:4:1"))
