"""A kernel whose size moves, on a GPU: the program at every size, in graphs captured per size, without a
compilation or an encoded tensor map when the size changes."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

import tilegen as tg
from tests.moving import EXAMPLES, drawn, spec_of
from tilegen.frontend.dims import filled
from tilegen.frontend.program import Program
from tilegen.kernels.moving import MovingKernel
from tilegen.runtime.driver import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]

SIZES = {
    "gpt3_mlp": ({"H": 512, "I": 256}, "M", 1000, (1, 17, 64, 65, 300, 999, 1000)),
    "llama_mlp": ({"H": 512, "I": 256}, "M", 300, (1, 8, 64, 129, 300)),
    "llama_layer": (
        {"S": 1, "S_max": 200, "H": 256, "heads": 8, "kv_heads": 2, "D": 64, "I": 512},
        "B",
        40,
        (1, 4, 5, 17, 40),
    ),
    "llama_layer, tokens": (
        {"B": 2, "S_max": 700, "H": 512, "heads": 8, "kv_heads": 2, "D": 64, "I": 1024},
        "S",
        600,
        (1, 17, 128, 129, 300, 513, 600),
    ),
    "gpt_layer, tokens": ({"B": 2, "H": 512, "heads": 8}, "S", 500, (1, 64, 65, 200, 256, 500)),
    **{name: EXAMPLES[name] for name in ("gpt3_attention", "gpt_layer", "resnet38", "vgg19")},
}


def program_of(name: str) -> Program:
    sizes, dim, largest, _ = SIZES[name]
    return spec_of(name)(**sizes, **{dim: tg.dim(dim, max=largest)})


LOWERINGS = ("persistent", "multi_launch")
SEVERAL = ("gpt_layer, tokens", "llama_layer, tokens", "resnet38", "vgg19")  # dozens of kernels to compile


def compiled(name: str, lowering: str) -> MovingKernel:
    kernel = tg.compile(program_of(name), "sm_90a", lowering=lowering, programmatic=lowering == LOWERINGS[1])
    assert isinstance(kernel, MovingKernel)
    assert {r.plan.most.lowering for r in kernel.regimes} == {lowering}
    return kernel


def at(kernel: MovingKernel, size: int) -> list[torch.Tensor]:
    return [a.cuda() for a in drawn(filled(kernel.program, kernel.dim, size), size)]


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found.float().cpu() - expected.float()).norm() <= 0.01 * expected.float().norm())


@pytest.mark.parametrize(
    ("name", "lowering"),
    [(name, how) for name in SIZES for how in (LOWERINGS[:1] if name in SEVERAL else LOWERINGS)],
)
def test_every_size_gives_the_program(name: str, lowering: str) -> None:
    kernel = compiled(name, lowering)
    for size in SIZES[name][3]:
        given = at(kernel, size)
        program = filled(kernel.program, kernel.dim, size)
        expected = tg.reference(program, *(a.cpu().clone() for a in given))
        expected = expected[0] if isinstance(expected, tuple) else expected
        found = kernel(*given)
        kernel.check()
        assert close(found, expected), size


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_weights_are_prepared_once_for_all_sizes(lowering: str) -> None:
    kernel = compiled("gpt3_mlp", lowering)
    weights = at(kernel, 5)[1:]
    prepared = kernel.prepare(w1=weights[0], w2=weights[1])
    for size in SIZES["gpt3_mlp"][3]:
        x = at(kernel, size)[0]
        assert close(prepared(x), kernel(x, *weights).cpu())


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_graph_is_captured_for_each_size(lowering: str) -> None:
    kernel = compiled("gpt3_mlp", lowering)
    weights = at(kernel, 5)[1:]
    inputs = {size: at(kernel, size)[0] for size in (1, 65, 1000)}
    for x in inputs.values():
        kernel(x, *weights)
    torch.cuda.synchronize()
    graphs, results = {}, {}
    for size, x in inputs.items():
        graphs[size] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[size]):
            results[size] = kernel(x, *weights)
    for size in (65, 1, 1000, 1, 65):
        results[size].zero_()
        graphs[size].replay()
        assert close(results[size], kernel(inputs[size], *weights).cpu()), size


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sizes_change_without_encoding(lowering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled("gpt3_mlp", lowering)
    weights = at(kernel, 5)[1:]
    for size in (1, 65, 1000):
        kernel(at(kernel, size)[0], *weights)
    encoded = []
    monkeypatch.setattr("tilegen.targets.sm90.library.encode", lambda *a: encoded.append(a))
    for size in (1000, 1, 65, 1):
        held = [torch.empty(1 << 20, device="cuda")]  # so that addresses are others
        x = at(kernel, size)[0]
        expected = tg.reference(filled(kernel.program, kernel.dim, size), *(a.cpu() for a in (x, *weights)))
        assert close(kernel(x, *weights), expected) and held
    assert not encoded


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_row_has_the_same_bits_within_a_regime(lowering: str) -> None:
    kernel = compiled("gpt3_mlp", lowering)
    x, *weights = at(kernel, 64)
    whole = kernel(x, *weights)
    for size in (1, 7, 17, 63):
        assert torch.equal(kernel(x[:size].contiguous(), *weights), whole[:size])


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_torch_compile_traces_it_once(lowering: str) -> None:
    kernel = compiled("gpt3_mlp", lowering)
    opcheck(getattr(torch.ops.tilegen, kernel.operator).default, tuple(at(kernel, 17)))

    def model(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return torch.relu(kernel(x + 1, w1, w2))

    torch._dynamo.utils.counters.clear()
    recorded = torch.compile(model, backend="aot_eager", fullgraph=True)
    for size in (7, 300, 65):
        x, *weights = at(kernel, size)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(recorded(x, *weights), model(x, *weights))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    kernel.check()
