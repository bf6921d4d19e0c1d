"""A kernel's operator on a GPU: what torch knows of it is true; it is compiled, captured and replayed as one
call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.library import opcheck

import tilegen as tg
from tests.emulated.examples import EXAMPLES, program_of, titled
from tests.gpu.gemms import mlp
from tilegen.kernels.operator import called, folded
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
@pytest.mark.parametrize("name, sizes", [pytest.param(*e, id=titled(*e)) for e in EXAMPLES])
def test_what_torch_knows_of_it_is_true(name: str, sizes: dict[str, Any], lowering: str) -> None:
    program = program_of(name, sizes, "bfloat16")
    kernel = tg.compile(program, "cuda", lowering=lowering)
    arguments = random_arguments(program, 0, "cuda")
    opcheck(getattr(torch.ops.tilegen, kernel.operator).default, folded(arguments))
    if kernel.differentiable:
        differentiable = getattr(torch.ops.tilegen, called(kernel.key, True)).default
        opcheck(differentiable, folded([a.requires_grad_() for a in arguments]))
    kernel.check()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_compiled_model_is_one_graph_that_replays(prepared: bool) -> None:
    program = mlp(M=70, H=256, I=512)
    kernel = tg.compile(program, "cuda")
    x, w1, w2 = random_arguments(program, 0, "cuda")
    bound = kernel.prepare(w1=w1, w2=w2)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = bound(x + 1) if prepared else kernel(x + 1, w1, w2)
        return torch.relu(y)

    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), model(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        for seed in range(3):
            x.copy_(random_arguments(program, seed, "cuda")[0])
            graph.replay()
            assert torch.equal(y, model(x))
    kernel.check()


def test_its_gradient_is_the_programs() -> None:
    program = mlp(M=70, H=256, I=512)
    kernel = tg.compile(program, "cuda")
    arguments = [a.requires_grad_() for a in random_arguments(program, 0, "cuda")]
    found = torch.autograd.grad(kernel(*arguments).float().square().sum(), arguments)
    y = tg.reference(program, *arguments)
    wanted = torch.autograd.grad(y.square().sum(), arguments)
    for a, b in zip(found, wanted, strict=True):
        assert float((a.float() - b.float()).norm() / b.float().norm()) < 1e-2
