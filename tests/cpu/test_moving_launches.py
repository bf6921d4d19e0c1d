"""Launches of single ops whose size moves, with CPU kernels in a GPU's place: one set of kernels gives the
program at every size, in the same memory. The GPU's own is tests/gpu/test_moving.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.cpu.test_launches import Launch, stream  # noqa: F401
from tests.moving import EXAMPLES, drawn, moving, right
from tests.shares import share
from tilegen.frontend.dims import filled, limited, the_dim
from tilegen.frontend.program import Program
from tilegen.kernels import launches as of_launches
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.launches import moving_kernel
from tilegen.kernels.moving import MovingKernel, Regime
from tilegen.options import Options
from tilegen.runtime.request import Part, planned_moving, planned_moving_launches
from tilegen.targets.cpu.library import Library
from tilegen.targets.select import place

ON = place("cpu:2")
Load = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def a_cpu(monkeypatch: pytest.MonkeyPatch, stream: SimpleNamespace) -> SimpleNamespace:  # noqa: F811
    monkeypatch.setattr(of_launches, "CudaKernel", Launch)
    return stream


def part(program: Program, first: int, last: int, lowering: str) -> Part:
    dim = the_dim(program)
    assert dim is not None
    return Part(limited(program, dim, last), ((first, last),), Options(), lowering)


def in_launches(program: Program, first: int, last: int) -> Regime:
    proved = planned_moving_launches(part(program, first, last, "multi_launch"), ON, Options(), True)
    libraries = [Library(launch.plan.open) for launch in proved.each]
    return Regime(proved.whole.plan, proved.whole.certificate, moving_kernel(proved, libraries, True))


def in_one_launch(program: Program, first: int, last: int) -> Regime:
    plan, proof = planned_moving(part(program, first, last, "persistent"), ON, Options())
    most = filled(plan.program, plan.dim, plan.dim.most)
    of = {"program": most, "size": plan.dim.most, "plan_at": plan.at}
    return Regime(plan, proof, Kernel(plan.most, proof, Library(plan.open), 2, **of))


def kernel_of(name: str) -> MovingKernel:
    program = moving(name)
    dim = the_dim(program)
    assert dim is not None
    return MovingKernel((in_launches(program, 1, dim.most),))


@pytest.mark.parametrize("name", share(EXAMPLES, 2))
def test_launches_give_the_program_at_every_size(name: str) -> None:
    kernel = kernel_of(name)
    assert kernel.proof.ok and kernel.proof.proved_at and "kernel boundaries" in kernel.explain()
    for size in EXAMPLES[name][3]:
        right(kernel, size)
        launches = kernel.at(size)._launches  # type: ignore[attr-defined]
        assert {launch.size for launch in launches} == {size} and all(x.programmatic for x in launches)


def test_what_passes_between_launches_is_in_the_same_memory_at_every_size() -> None:
    kernel = kernel_of("llama_mlp")
    held = set()
    for size in (300, 1, 17, 300):
        right(kernel, size)
        (workspace,) = kernel.at(size)._workspaces  # type: ignore[attr-defined]
        assert workspace["h"].shape == (size, 48)
        held.add(workspace["h"].data_ptr())
    assert len(held) == 1


def test_one_size_may_be_launches_and_another_one_launch() -> None:
    program = moving("llama_mlp")
    kernel = MovingKernel((in_launches(program, 1, 16), in_one_launch(program, 17, 300)))
    for size in (16, 17, 1, 300):
        right(kernel, size)
    assert [kernel.at(n).plan.lowering for n in (1, 16, 17, 300)] == 2 * ["multi_launch"] + 2 * ["persistent"]
    assert kernel.at(300) is kernel.at(300) and kernel.identity != kernel_of("llama_mlp").identity


def test_weights_are_prepared_once_for_all_sizes() -> None:
    kernel = kernel_of("llama_mlp")
    x, *weights = drawn(filled(kernel.program, kernel.dim, 300))
    names = [t.name for t in kernel.arguments[1:]]
    prepared = kernel.prepare(**dict(zip(names, weights, strict=True)))
    assert set(prepared.bound) == set(names)
    for size in (1, 129, 300):
        assert torch.equal(prepared(x[:size]), kernel(x[:size], *weights))


@pytest.mark.parametrize("made", [copy.deepcopy, lambda k: k.__reduce__()[0](*k.__reduce__()[1])])
def test_a_copy_gives_the_same(made: Callable[[MovingKernel], MovingKernel]) -> None:
    kernel = kernel_of("llama_mlp")
    other = made(kernel)
    given = drawn(filled(kernel.program, kernel.dim, 17))
    assert torch.equal(other(*given), kernel(*given)) and other.proof == kernel.proof


def test_plans_and_proofs_come_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kernel_of("gpt3_mlp")
    monkeypatch.setattr("tilegen.runtime.request.prove_launches", None)
    again = kernel_of("gpt3_mlp")
    assert again.proof == first.proof and again.identity == first.identity
    right(again, 129)
