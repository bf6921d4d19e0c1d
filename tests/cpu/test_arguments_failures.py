"""Tensors and calls that a kernel must refuse, on every target, in words that name the tensor and the way
out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_arguments import given, made
from test_launches import stream  # noqa: F401
from torch._subclasses import FakeTensorMode

import tilegen as tg
from tilegen.kernels.kernel import Kernel


@tg.spec
def appended():
    return tg.append(tg.state("cache", (1, 5, 2, 4), "float32"), tg.input("x", (1, 2, 8), "float32"), at=0)


@pytest.fixture(params=("cpu", "interpret", "multi_launch"))
def kernel(request: pytest.FixtureRequest, stream: object) -> Kernel:  # noqa: F811
    return made(request.param)


def refused(run: Callable[[], Any], *words: str) -> None:
    with pytest.raises(tg.ArgumentError) as caught:
        run()
    assert all(word in str(caught.value) for word in words), str(caught.value)


# --- names ------------------------------------------------------------


def test_names_that_do_not_fit(kernel: Kernel) -> None:
    held = given()
    x, w1, w2 = held.values()
    refused(lambda: kernel(x, w1, w3=w2), "pair has no argument 'w3'", "x, w1, w2")
    refused(lambda: kernel(x, w11=w1, w2=w2), "'w11' (nearest: 'w1')")
    refused(lambda: kernel(x, w1, w2=w2, w1=w1), "'w1' is given twice, by position and by name")
    refused(lambda: kernel(x, w2=w2), "takes 3 tensors", "2 were given", "missing w1")
    refused(lambda: kernel(), "0 were given", "missing x, w1, w2")
    refused(lambda: kernel.prepare(w1=w1)(x, w1=w1, w2=w2), "'w1' was fixed by prepare()", "x, w2")
    refused(lambda: kernel.prepare(w=w1), "'w' is not an argument of pair")


# --- grad mode ------------------------------------------------------------


def test_parameters_while_grad_mode_is_on(kernel: Kernel) -> None:
    """Where there is no gradient: arguments that are fixed, states, results that are given."""
    held = given()
    parameter = torch.nn.Parameter(held["w1"])
    words = ("requires grad and grad mode is on", "torch.no_grad()", ".detach()")
    refused(lambda: kernel.prepare(w1=parameter), "'w1'", *words)
    room = torch.empty(4, 8)
    refused(lambda: kernel(held["x"], parameter, held["w2"], out=room), "out", "differentiated")
    keeps = tg.compile(appended(), "cpu")
    refused(lambda: keeps(torch.zeros(1, 5, 2, 4), torch.nn.Parameter(torch.randn(1, 2, 8))), "'x'", *words)


# --- tensors without memory of their own ------------------------------------------------------------


def test_fake_tensors_and_their_mode(kernel: Kernel) -> None:
    """Their address is 0: a segmentation fault on a CPU."""
    held = given()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(held["x"])
    refused(lambda: kernel(fake, held["w1"], held["w2"]), "'x' is a FakeTensor", "pass a plain torch.Tensor")
    refused(lambda: kernel.prepare(x=fake), "'x' is a FakeTensor")
    assert kernel(*held.values()).any()  # nothing fake was kept


def test_wrappers_of_torch_func(kernel: Kernel) -> None:
    x, w1, w2 = given().values()
    refused(lambda: torch.func.vmap(lambda a: kernel(a, w1, w2))(torch.stack([x, x])), "'x'", "torch.func")
    refused(lambda: torch.func.functionalize(lambda a: kernel(a, w1, w2))(x), "'x'", "torch.func")


def test_negated_and_conjugated_views(kernel: Kernel) -> None:
    """Their memory holds other values than they show."""
    held = given()
    z = torch.complex(held["w2"], held["w1"].T.contiguous())
    x = torch._neg_view(held["x"])
    refused(lambda: kernel(x, held["w1"], held["w2"]), "'x' is a negated view", "x.resolve_neg()")
    assert torch.equal(
        kernel(x.resolve_neg(), held["w1"], held["w2"]), kernel(-held["x"], held["w1"], held["w2"])
    )
    refused(lambda: kernel(held["x"], held["w1"], z.conj()), "'w2'", "complex64", "resolve_conj()")
    refused(lambda: kernel.prepare(w2=torch._neg_view(held["w2"])), "'w2' is a negated view")


class Wrapper(torch.Tensor):
    """A tensor that only stands for another one."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


NO_MEMORY = {
    "sparse": (lambda x: x.to_sparse(), ("sparse_coo", "x.to_dense()")),
    "sparse rows": (lambda x: x.to_sparse_csr(), ("sparse_csr", "x.to_dense()")),
    "mkldnn": (lambda x: x.to_mkldnn(), ("_mkldnn", "x.to_dense()")),
    "quantised": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), ("qint8", ".dequantize()")),
    "wrapper": (Wrapper, ("Wrapper", "plain torch.Tensor")),
    "lazy": (lambda x: torch.nn.LazyLinear(3).weight, ("UninitializedParameter", "lazy module")),
    "zeros that are not there": (lambda x: torch._efficientzerotensor((4, 8)), ("without data of its own",)),
}


@pytest.mark.parametrize("kind", NO_MEMORY)
def test_layouts_and_subclasses_without_plain_storage(kernel: Kernel, kind: str) -> None:
    make, words = NO_MEMORY[kind]
    held = given()
    refused(lambda: kernel(make(held["x"]), held["w1"], held["w2"]), "'x'", *words)


def test_a_subclass_with_plain_storage_is_taken(kernel: Kernel) -> None:
    class Named(torch.Tensor):
        pass

    held = given()
    assert torch.equal(kernel(held["x"].as_subclass(Named), held["w1"], held["w2"]), kernel(*held.values()))
