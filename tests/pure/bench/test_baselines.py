"""torch's side of the comparison: straight-line code that is right, that torch.compile can take whole, and
which GeMMs cublasLt fuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import tilegen as tg
from tilegen.bench.accuracy import error_of
from tilegen.bench.attentions import flash
from tilegen.bench.baselines import conv_chains, eager, gelu_pairs, linear_chains
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.runtime.data import random_arguments

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL: dict[str, dict[str, Any]] = {
    "gpt3_mlp": {"M": 4, "H": 64, "I": 32},
    "llama_mlp": {"M": 4, "H": 64, "I": 32},
    "resnet38": {"stage": 2, "dtype": "float32"},
    "vgg19": {"block": 1, "dtype": "float32"},
}


@tg.spec
def rows(M=6, N=16):
    """Everything that the examples leave out: a causal softmax, matmul, rope, norms, an append at a fixed
    place."""
    x = tg.input("x", (1, M, N), "float32")
    w, b = tg.weight("w", (N,), "float32"), tg.weight("b", (N,), "float32")
    cache = tg.append(tg.state("cache", (1, 2 * M, N), "float32"), tg.rope(x, heads=2), at=M)
    y = tg.layer_norm(tg.rms_norm(x, w), w, b)
    p = tg.softmax(tg.matmul(y, x, transpose_b=True), scale=0.5, causal=True)
    return tg.matmul(p, y), cache


@tg.spec
def routed(M=6, N=16):
    """The largest numbers, of themselves and of others, and given ones."""
    x, y = tg.input("x", (M, N), "float32"), tg.input("y", (M, N), "float32")
    values, ids = tg.topk(x, 3)
    given = tg.take_along(y, tg.input("ids", (M, 2), "int32"))
    return values, ids, tg.take_along(y, ids), tg.argmax(y), given


OWN = {"rows": rows, "routed": routed}


def small(name: str) -> Program:
    return OWN[name]() if name in OWN else load_program(str(EXAMPLES / f"{name}.py"), SMALL[name])


@pytest.mark.parametrize("name", [*OWN, *SMALL])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "fullgraph"])
def test_it_computes_the_program(name: str, compiled: bool) -> None:
    program = small(name)
    arguments = random_arguments(program)
    expected = tg.reference(program, *arguments)
    f: Any = eager(program, arguments)
    if compiled:
        torch._dynamo.reset()
        f = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        assert error_of(f(*arguments), expected) < 1e-2
        other = random_arguments(program, seed=1)
        assert error_of(f(*other), tg.reference(program, *other)) < 1e-2


def test_positions_are_read_once() -> None:
    """A captured graph may not read the device: what remains is torch calls on constants."""
    program = load_program(str(EXAMPLES / "llama_layer.py"), {"S": 2})
    arguments = [torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in program.arguments]
    arguments = [torch.tensor([7], dtype=torch.int32) if a.dtype == torch.int32 else a for a in arguments]
    code = eager(program, arguments).code
    assert "slice(7, 9, None)" in code and "item()" not in code and "int(" not in code


def test_caches_are_written_in_place_as_a_user_writes_them() -> None:
    """A slice of the argument in its own shape: through a view torch.compile would copy the whole cache and
    back."""
    program = load_program(
        str(EXAMPLES / "llama_layer.py"),
        {"H": 64, "heads": 4, "kv_heads": 2, "D": 16, "I": 32, "S": 2, "S_max": 12},
    )
    arguments = random_arguments(program)
    code = eager(program, arguments).code
    lines = [line for line in code.splitlines() if ".copy_(" in line]
    assert len(lines) == 2 and ".view(" not in code
    caches = [n for n, t in enumerate(program.arguments) if t.role == "state"]
    before = [arguments[n].clone() for n in caches]
    expected = tg.reference(program, *arguments)
    for n in caches:
        arguments[n][:, 10:] = float("nan")
    with torch.no_grad():
        y = eager(program, arguments)(*arguments)
    given = (y, *(arguments[n] for n in caches))
    assert error_of(given, expected) < 1e-2 and all(
        torch.equal(arguments[n][:, :10], b[:, :10]) for n, b in zip(caches, before, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("llama_layer", {"S": 1, "B": 2}), ("llama_layer", {"S": 3, "S_max": 40}), ("gpt3_attention", {"S": 8})],
)
def test_flash_attention_takes_what_it_is_given(name: str, sizes: dict[str, int]) -> None:
    """The op's own shape function agrees with the call; nothing but a GPU can run it."""
    heads = {"kv_heads": 2, "I": 64} if name == "llama_layer" else {}
    program = load_program(str(EXAMPLES / f"{name}.py"), {"H": 64, "heads": 4, "D": 16, **heads, **sizes})
    arguments = random_arguments(program)
    traced = eager(program, arguments, attention=flash)
    assert traced.code.count("_flash_attention_forward(") == 1
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        assert (
            traced(*(mode.from_tensor(a) for a in arguments)).shape
            == program.tensor(program.outputs[0]).shape
        )


@tg.spec
def pairs(M=4, N=32):
    x = tg.input("x", (M, N), "float32")
    w, b = tg.weight("w", (N, N), "float32"), tg.weight("b", (N,), "float32")
    plain = tg.gelu(tg.linear(x, w), approximate="tanh", name="plain")
    biased = tg.gelu(tg.linear(plain, w, b), approximate="tanh", name="biased")
    erf = tg.gelu(tg.linear(biased, w), name="erf")
    shared = tg.linear(erf, w, name="shared")
    residual = tg.gelu(
        tg.add(tg.linear(tg.gelu(shared, approximate="tanh"), w), x), approximate="tanh", name="residual"
    )
    return tg.add(residual, shared)


def test_which_gemms_torch_fuses() -> None:
    program = pairs()
    found = {result: [c.kind for c in chain] for result, (chain, _) in gelu_pairs(program).items()}
    assert found == {"plain": ["linear", "pointwise"], "biased": ["linear", "pointwise", "pointwise"]}
    assert not gelu_pairs(small("llama_mlp")) and list(gelu_pairs(small("gpt3_mlp"))) == ["h"]


def test_every_linear_goes_to_cublaslt_with_the_longest_chain_that_it_can_fuse() -> None:
    found = {result: [c.kind for c in chain] for result, (chain, _) in linear_chains(pairs()).items()}
    assert found.pop("plain") == ["linear", "pointwise"] and found.pop("biased") == [
        "linear",
        "pointwise",
        "pointwise",
    ]
    assert list(found.values()) == 3 * [["linear"]]  # erf's, shared and the one before the residual: alone
    assert {c.result for c in pairs().calls if c.kind == "linear"} == {
        chain[0].result for chain, _ in linear_chains(pairs()).values()
    }


def test_fused_gemms_are_right() -> None:
    program = pairs()
    arguments = random_arguments(program)
    traced = eager(program, arguments, gelu_pairs(program))
    assert traced.code.count("aten._addmm_activation(") == 2
    error = error_of(traced(*arguments), tg.reference(program, *arguments))
    assert error < 3e-3  # on the CPU the op has the erf form of gelu


def test_which_convolutions_cudnn_fuses() -> None:
    """In a block: the first with its bias and ReLU, the second with the residual too; the 1 x 1 beside it has
    no ReLU of its own."""
    program = small("resnet38")
    kinds = {result: len(chain) for result, (chain, _) in conv_chains(program).items()}
    assert kinds == {f"s2n{n}{which}": count for n in range(4) for which, count in (("h", 3), ("y", 4))}
    assert not conv_chains(small("llama_mlp"))
