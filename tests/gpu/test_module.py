"""A layer whose weights a GPU holds once: packed, and not as they are besides."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import mlp
from tilegen.frontend.loader import load_program
from tilegen.nn.module import Module
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient"),
]

LAYER = {"B": 2, "H": 1024, "I": 2816, "heads": 8, "kv_heads": 2, "S_max": 128}


def layers(program: Any, **options: Any) -> tuple[Module, dict[str, torch.Tensor], list[torch.Tensor]]:
    """A module, copies of its weights, and its other arguments."""
    given = dict(zip((t.name for t in program.arguments), random_arguments(program, 0, "cuda"), strict=True))
    names = [t.name for t in program.arguments if t.role == "weight"]
    weights = {n: given.pop(n) for n in names}
    before = {n: w.clone() for n, w in weights.items()}
    return tg.module(program, keep=False, options=options, **weights), before, list(given.values())


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
def test_memory_is_that_of_one_copy(lowering: str) -> None:
    torch.cuda.empty_cache()
    start = torch.cuda.memory_allocated()
    program = mlp(M=16, H=2048, I=4096)
    module, before, (x,) = layers(program, lowering=lowering)
    copies = sum(w.nbytes for w in before.values())
    with torch.no_grad():
        y = module(x)
        held = torch.cuda.memory_allocated() - start - copies
        assert held < 1.1 * copies, (held, copies)
        wanted = tg.reference(program, x, *before.values())
        assert float((y.float() - wanted).norm() / wanted.norm()) < 1e-2
    module.kernel.check()


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
def test_a_whole_layer_is_saved_copied_and_trained(lowering: str) -> None:
    program = load_program("examples/llama_layer.py", LAYER)
    module, before, given = layers(program, lowering=lowering)
    assert set(module._dropped) == {"wqkv", "wo", "w1", "w2"}
    assert all(torch.equal(w, before[n]) for n, w in module.state_dict().items())
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    with torch.no_grad():
        kept = tg.module(program, options={"lowering": lowering, "norms": "separate"}, **before)
        y = kept(*(a.clone() for a in given))
        for other in (module, copy.deepcopy(module), module.to("cuda")):
            assert torch.equal(other(*(a.clone() for a in given)), y)
        for w in kept.parameters():
            w.zero_()
        file.seek(0)
        module.load_state_dict(torch.load(file))
        assert torch.equal(module(*(a.clone() for a in given)), y)
    module.kernel.check()


def test_it_is_traced_and_differentiated() -> None:
    module, before, (x,) = layers(mlp(M=16, H=256, I=512))
    with torch.no_grad():
        y = module(x)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), y) and module._dropped
    x.requires_grad_()
    module(x).float().sum().backward()
    assert x.grad is not None
    given = [x.detach().requires_grad_(), *before.values()]
    tg.reference(mlp(M=16, H=256, I=512), *given).sum().backward()
    assert given[0].grad is not None
    assert float((x.grad.float() - given[0].grad.float()).norm() / given[0].grad.float().norm()) < 1e-2


def test_what_moves_is_held_once_where_one_copy_serves_all_sizes() -> None:
    """Up to 64 rows; above, tiles differ. Tiles that a width is no multiple of are packed with zeros."""
    x, w1, w2 = random_arguments(mlp(M=300, H=512, I=1024), 0, "cuda")
    for most, bytes in ((300, 0), (64, w1.nbytes + w2.nbytes)):
        program = mlp(M=tg.dim("M", max=most), H=512, I=1024)
        module = tg.module(program, keep=False, w1=w1.clone(), w2=w2.clone())
        with torch.no_grad():
            for rows in (1, 17, most):
                wanted = tg.reference(mlp(M=rows, H=512, I=1024), x[:rows], w1, w2)
                assert float((module(x[:rows]).float() - wanted).norm() / wanted.norm()) < 1e-2
        assert bool(module._dropped) == (most == 64)
        assert bytes <= module._prepared().packed_bytes <= 1.1 * bytes
        assert torch.equal(module.state_dict()["w1"], w1)
