"""A kernel whose size moves is one operator of PyTorch: its shapes move with the arguments', and nothing is
compiled or traced again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

import tilegen as tg
from tests.moving import EXAMPLES, drawn, moving
from tilegen.frontend.dims import filled
from tilegen.kernels.moving import MovingKernel
from tilegen.kernels.operator import called, folded


def made(name: str = "gpt3_mlp") -> MovingKernel:
    kernel = tg.compile(moving(name), "cpu")
    assert isinstance(kernel, MovingKernel)
    return kernel


def given(kernel: MovingKernel, size: int) -> list[torch.Tensor]:
    return drawn(filled(kernel.program, kernel.dim, size), size)


def step(kernel: MovingKernel) -> Any:
    return lambda x, w1, w2: torch.relu(kernel(2 * x, w2=w2, w1=w1)) + 1


class Counted:
    """A backend that counts what it is given to compile."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_torch_knows_of_it_is_true(name: str) -> None:
    """Schema, mutated states, shapes of fake tensors and of symbols, gradients under torch's compiler."""
    kernel = made(name)
    arguments = given(kernel, EXAMPLES[name][3][0])
    opcheck(getattr(torch.ops.tilegen, called(kernel.key, False)).default, folded(arguments))
    if kernel.differentiable:
        asked = [a.requires_grad_() for a in arguments]
        opcheck(getattr(torch.ops.tilegen, called(kernel.key, True)).default, folded(asked))


def test_torch_compile_traces_a_dynamic_size_once() -> None:
    kernel, counted = made(), Counted()
    compiled = torch.compile(step(kernel), backend=counted, fullgraph=True)
    for size in (7, 300, 2, 64):
        x, *weights = given(kernel, size)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=300)
        assert torch.equal(compiled(x, *weights), step(kernel)(x, *weights))
    assert counted.graphs == 1


def test_a_trained_dynamic_size_is_traced_once() -> None:
    kernel = made()
    compiled = torch.compile(step(kernel), backend="aot_eager", fullgraph=True, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for size in (7, 33, 9):
        x, *weights = (a.requires_grad_() for a in given(kernel, size))
        found = torch.autograd.grad(compiled(x, *weights).sum(), (x, *weights))
        wanted = torch.autograd.grad(step(kernel)(x, *weights).sum(), (x, *weights))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported_with_the_size_that_moves(strict: bool) -> None:
    kernel = made()
    x, *weights = given(kernel, 7)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = map(torch.nn.Parameter, weights)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return step(kernel)(x, self.w1, self.w2)

    model, rows = Model(), torch.export.Dim("rows", min=1, max=300)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: rows}}, strict=strict)
    for size in (3, 300):
        x = given(kernel, size)[0]
        assert torch.equal(exported.module()(x), model(x))


def test_tracers_see_one_call() -> None:
    kernel = made()
    held = given(kernel, 5)
    fx = make_fx(step(kernel), tracing_mode="symbolic")(*held)
    assert sum(str(n.target) == f"tilegen.{kernel.operator}.default" for n in fx.graph.nodes) == 1
    for size in (5, 12):
        held = given(kernel, size)
        assert torch.equal(fx(*held), step(kernel)(*held))


@pytest.mark.parametrize("size", [1, 17, 0])
def test_gradients_are_those_of_the_size(size: int) -> None:
    kernel = made()
    x, *weights = (a.requires_grad_() for a in given(kernel, 300))
    rows = x[:size].detach().requires_grad_()
    found = torch.autograd.grad(kernel(rows, *weights).float().square().sum(), (rows, *weights))
    y = tg.reference(filled(kernel.program, kernel.dim, 300), x, *weights)[:size]
    wanted = torch.autograd.grad(y.square().sum(), (x, *weights))
    for a, b in zip(found, (wanted[0][:size], *wanted[1:]), strict=True):
        assert a.shape == b.shape
        assert (a.float() - b.float()).norm() <= 0.02 * b.float().norm()


def test_what_does_not_fit_is_named_before_it_is_recorded() -> None:
    kernel = made()
    x, *weights = (a.requires_grad_() for a in given(kernel, 3))
    with pytest.raises(tg.ArgumentError, match="'x': expected shape .* 0 ≤ M ≤ 300, given \\(301, 96\\)"):
        kernel(torch.zeros(301, 96, dtype=x.dtype, requires_grad=True), *weights)


def test_a_prepared_kernel_has_an_operator_of_its_own() -> None:
    kernel = made()
    x, w1, w2 = given(kernel, 6)
    bound = kernel.prepare(w1=w1)
    assert bound.operator != kernel.operator == made().operator
    compiled = torch.compile(lambda x: bound(x, w2) + 1, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (6, 9):
        x = given(kernel, size)[0]
        assert torch.equal(compiled(x), kernel(x, w1, w2) + 1)
