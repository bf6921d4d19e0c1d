"""A kernel is an operator of PyTorch: what torch knows of it is true, and what torch makes of it is right."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_arguments import given, made, pair
from test_launches import stream  # noqa: F401
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

import tilegen as tg
from tests.emulated.examples import EXAMPLES, program_of, titled
from tilegen.frontend.program import Program
from tilegen.kernels.gpu_kernel import GpuKernel
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.operator import called, folded
from tilegen.ops.reference import run
from tilegen.runtime.data import random_arguments


def operator(kernel: Kernel, differentiates: bool = False) -> Any:
    return getattr(torch.ops.tilegen, called(kernel.key, differentiates)).default


@pytest.fixture(params=("cpu", "interpret", "multi_launch"))
def kernel(request: pytest.FixtureRequest, stream: object) -> Kernel:  # noqa: F811
    return made(request.param)


@tg.spec
def of_all(B=2, S=5, heads=2, D=16):
    """Attention, norms, a rope, a softmax, column views, several results."""
    x = tg.input("x", (B, S, heads * D), "float32")
    n = tg.rms_norm(x, tg.weight("g", (heads * D,), "float32"), name="n")
    q, k, v = tg.linear(n, tg.weight("w", (3 * heads * D, heads * D), "float32"), name="qkv").chunk(3)
    a = tg.attention(tg.rope(q, heads=heads, name="r"), k, v, heads=heads, causal=True, name="a")
    y = tg.add(tg.linear(a, tg.weight("o", (heads * D, heads * D), "float32"), name="out"), x, name="y")
    return y, tg.softmax(tg.linear(y, tg.weight("u", (9, heads * D), "float32"), name="last"), name="p")


@tg.spec
def image(HW=6):
    x = tg.input("x", (2, HW, HW, 3), "float32")
    y = tg.relu(tg.conv2d(x, tg.weight("w", (8, 3, 3, 3), "float32"), padding=1, name="c"), name="y")
    return tg.linear(tg.flatten(tg.max_pool2d(y, 2, name="p")), tg.weight("f", (5, 72), "float32"), name="z")


PROGRAMS = [
    *[
        pytest.param(
            program_of(name, sizes, "bfloat16"),
            id=titled(name, sizes),
            marks=[pytest.mark.full] if name == "vgg19" else [],
        )
        for name, sizes in EXAMPLES
    ],
    *[pytest.param(spec(), id=spec.name) for spec in (pair, of_all, image)],
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_torch_knows_of_it_is_true(program: Program) -> None:
    """Schema, mutated states, shapes of fake tensors, gradients under torch's compiler."""
    kernel = tg.compile(program, "cpu")
    arguments = random_arguments(program)
    opcheck(operator(kernel), folded(arguments))
    if kernel.differentiable:
        opcheck(operator(kernel, True), folded([a.requires_grad_() for a in arguments]))


# --- recorded ---------------------------------------------------------------


def step(kernel: Kernel) -> Any:
    return lambda x, w1, w2: torch.relu(kernel(2 * x, w2=w2, w1=w1)) + 1


def calls_in(graph: Any) -> list[str]:
    return [str(n.target) for n in graph.nodes if str(n.target).startswith("tilegen.")]


def test_torch_compile_keeps_one_graph(kernel: Kernel) -> None:
    held = given()
    compiled = torch.compile(step(kernel), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**held), step(kernel)(**held))


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported_with_its_weights(kernel: Kernel, strict: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = (torch.nn.Parameter(given()[name]) for name in ("w1", "w2"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return step(kernel)(x, self.w1, self.w2)

    model, x = Model(), given()["x"]
    exported = torch.export.export(model, (x,), strict=strict)
    assert calls_in(exported.graph) == [f"tilegen.{kernel.operator}_grad.default"]
    assert set(exported.state_dict) == {"w1", "w2"}
    assert torch.equal(exported.module()(x), model(x))


def test_a_package_of_aotinductor_calls_the_kernel(tmp_path: Path) -> None:
    """Where a kernel of the program lives, which has registered the operator."""
    kernel = made("cpu")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
            return kernel(x + 1, w1, w2) * 2

    held = tuple(given().values())
    exported = torch.export.export(Model(), held)
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    assert torch.equal(torch._inductor.aoti_load_package(package)(*held), Model()(*held))


def test_tracers_see_one_call(kernel: Kernel) -> None:
    held = tuple(given().values())
    want = step(kernel)(*held)
    fx = make_fx(step(kernel))(*held)
    assert calls_in(fx.graph) == [f"tilegen.{kernel.operator}.default"] and torch.equal(fx(*held), want)
    jit = torch.jit.trace(step(kernel), held)
    assert f"tilegen::{kernel.operator}" in str(jit.graph) and torch.equal(jit(*held), want)


def test_a_prepared_kernel_has_an_operator_of_its_own(kernel: Kernel) -> None:
    held = given()
    bound, other = (kernel.prepare(w1=n * held["w1"]) for n in (1, 2))
    assert len({kernel.operator, bound.operator, other.operator}) == 3

    def both(x: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return bound(x, w2) - other(x, w2)

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(held["x"], held["w2"]), both(held["x"], held["w2"]))
    assert both(held["x"], held["w2"]).abs().max() > 0


def test_a_kernel_with_everything_fixed_is_recorded_too(kernel: Kernel) -> None:
    held = given()
    bound = kernel.prepare(**held)
    compiled = torch.compile(lambda: bound() + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(), kernel(*held.values()) + 1)


def test_a_state_is_known_to_change() -> None:
    """An op that reads the cache behind the kernel, and a copy made before, stay where they are."""
    kernel = tg.compile(program_of(*EXAMPLES[5], "float32"), "cpu")
    arguments = random_arguments(program_of(*EXAMPLES[5], "float32"))
    names = [t.name for t in kernel.arguments]
    caches = [n for n, t in enumerate(kernel.arguments) if t.role == "state"]
    assert caches and not kernel.differentiable
    alias = [a.alias_info is not None and a.alias_info.is_write for a in operator(kernel)._schema.arguments]
    assert [n for n, written in enumerate(alias) if written] == caches

    def observed(*given: torch.Tensor) -> Any:
        before = given[caches[0]].clone()
        y = kernel(*given)
        return y, given[caches[0]] - before

    compiled = torch.compile(observed, backend="aot_eager", fullgraph=True)
    eager, recorded = (f(*copy.deepcopy(arguments)) for f in (observed, compiled))
    assert all(map(torch.equal, eager, recorded)) and recorded[1].abs().max() > 0, names


# --- gradients --------------------------------------------------------------


def gradients(results: Any, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    together = results if isinstance(results, tuple) else (results,)
    weights = [torch.randn(r.shape, generator=torch.Generator().manual_seed(7)) for r in together]
    return list(
        torch.autograd.grad(
            together, arguments, [w.to(r.dtype) for w, r in zip(weights, together, strict=True)]
        )
    )


@pytest.mark.parametrize("spec", [pair, of_all, image], ids=lambda s: s.name)
@pytest.mark.parametrize("recorded", [False, True])
def test_gradients_are_the_programs(spec: Any, recorded: bool) -> None:
    program = spec()
    kernel = tg.compile(program, "cpu")
    arguments = [a.requires_grad_() for a in random_arguments(program)]
    call = torch.compile(kernel, backend="aot_eager", fullgraph=True) if recorded else kernel
    found = gradients(call(*arguments), arguments)
    wanted = gradients(run(program, arguments), arguments)
    for t, a, b in zip(kernel.arguments, found, wanted, strict=True):
        torch.testing.assert_close(a, b, msg=lambda said, name=t.name: f"{name}: {said}")


@tg.spec
def best(M=9, N=24, k=3):
    values, ids = tg.topk(tg.linear(tg.input("x", (M, 16), "float32"), tg.weight("w", (N, 16), "float32")), k)
    return tg.silu(values), ids


def test_whole_numbers_have_no_gradient_and_what_is_beside_them_has() -> None:
    kernel, arguments = tg.compile(best(), "cpu"), random_arguments(best())
    x, w = (a.requires_grad_() for a in arguments)
    y, ids = kernel(x, w)
    wanted = (x @ w.T).topk(3)
    assert torch.equal(ids, wanted.indices.int()) and not ids.requires_grad
    found = torch.autograd.grad(y.sum(), (x, w))
    for a, b in zip(
        found, torch.autograd.grad(torch.nn.functional.silu(wanted.values).sum(), (x, w)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_a_call_that_gives_whole_numbers_alone_has_no_gradient() -> None:
    @tg.spec
    def first(M=9, N=24):
        return tg.argmax(tg.input("x", (M, N), "float32"))

    x = torch.randn(9, 24, requires_grad=True)
    ids = tg.compile(first(), "cpu")(x)
    assert torch.equal(ids, x.argmax(-1, keepdim=True).int()) and not ids.requires_grad


def test_only_what_requires_a_gradient_gets_one(kernel: Kernel) -> None:
    held = given()
    w2 = held["w2"].requires_grad_()
    y = kernel(held["x"], held["w1"], w2)
    y.sum().backward()
    assert w2.grad is not None and held["x"].grad is None
    with torch.no_grad():
        assert not kernel(held["x"], held["w1"], w2).requires_grad
    bound = kernel.prepare(w1=held["w1"])
    (again,) = torch.autograd.grad(bound(held["x"], w2).sum(), w2)
    assert torch.equal(again, w2.grad)


# --- and its kernel ---------------------------------------------------------


def test_its_name_is_that_of_the_plan() -> None:
    name = made("cpu").operator
    assert name.startswith("pair_") and name == made("cpu").operator == copy.deepcopy(made("cpu")).operator
    assert name != made("interpret").operator and name != made("cpu", pair(M=5)).operator


def test_a_kernel_that_nobody_holds_is_gone_at_once(
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when garbage is collected: to free counters while a graph is captured would spoil the capture."""
    monkeypatch.setattr(GpuKernel, "_current_device", lambda self: torch.device("cuda", 0))
    held = given()
    gc.disable()
    try:
        made_now = [copy.deepcopy(kernel), kernel.prepare(w1=held["w1"])]
        for k in made_now:
            _ = k.operator
        seen = [weakref.ref(k) for k in made_now]
        del made_now, k
        assert [r() for r in seen] == [None, None]
    finally:
        gc.enable()


def test_without_its_kernel_it_says_so() -> None:
    kernel = made("cpu", pair(M=7))
    call = operator(kernel)
    del kernel
    gc.collect()
    with pytest.raises(tg.ArgumentError, match="its kernel is gone; keep it"):
        call(torch.randn(7, 8), torch.randn(16, 8), torch.randn(8, 16))


@pytest.mark.filterwarnings("ignore:Input .* is not a double precision")
@pytest.mark.parametrize("spec", [pair, of_all], ids=lambda s: s.name)
def test_gradients_are_those_of_the_kernels_own_results(spec: Any) -> None:
    """By differences of what the kernel gives, in the float32 that it computes in."""
    program = spec()
    kernel = tg.compile(program, "cpu")
    arguments = [a.requires_grad_() for a in random_arguments(program, 1)]

    def smooth(*given: torch.Tensor) -> torch.Tensor:
        found = kernel(*given)
        results = found if isinstance(found, tuple) else (found,)
        return torch.stack([(0.5 * r).tanh().sum() for r in results]).sum()

    torch.autograd.gradcheck(smooth, arguments, eps=3e-2, atol=2e-2, rtol=2e-2, fast_mode=True)


@pytest.mark.parametrize("spec", [pair, of_all, image], ids=lambda s: s.name)
def test_gradients_are_those_of_float64(spec: Any) -> None:
    """gradcheck of the program in float64, whose gradients the kernel's are held against."""
    program = spec()
    given = random_arguments(program, 1)
    doubles = [a.double().requires_grad_() for a in given]

    def smooth(results: Any) -> torch.Tensor:
        return sum((0.5 * r).tanh().sum() for r in (results if isinstance(results, tuple) else (results,)))

    assert torch.autograd.gradcheck(lambda *a: smooth(run(program, a)), doubles, fast_mode=True)
    wanted = torch.autograd.grad(smooth(run(program, doubles)), doubles)
    kernel = tg.compile(program, "cpu")
    arguments = [a.requires_grad_() for a in given]
    found = torch.autograd.grad(smooth(kernel(*arguments)), arguments)
    for a, b in zip(found, wanted, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 1e-5
