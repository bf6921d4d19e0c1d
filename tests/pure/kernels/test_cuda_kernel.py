"""A GPU kernel's face where there is no GPU: it travels as plan and weights; NVRTC compiles it, nothing is
launched."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import mlp
from tilegen.kernels import cuda_kernel, gpu_kernel
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.runtime.data import random_arguments
from tilegen.schedule.moving import MovingPlan
from tilegen.targets.sm80 import library as portable
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm90.library import HopperLibrary

PROGRAM = mlp(M=64, H=128, I=128)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU in the GPU's place, on which nothing is launched."""
    for library in (HopperLibrary, PortableLibrary):
        monkeypatch.setattr(library, "launcher", lambda self, *given: lambda parameters, stream: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(gpu_kernel.GpuKernel, "_place", "cpu")
    monkeypatch.setattr(gpu_kernel.GpuKernel, "_current_device", lambda self: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_kernel, "missing", lambda: "")
    monkeypatch.setattr(portable, "here", lambda: "sm_80")
    yield


def made(kind: Any, **given: Any) -> CudaKernel:
    plan = tg.plan(PROGRAM, "h200" if kind is HopperLibrary else 16, target=kind.target)
    return CudaKernel(plan, tg.verify(plan), kind(plan), **given)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("kind", [HopperLibrary, PortableLibrary])
def test_a_copy_is_the_same_kernel(kind: Any, again: Any) -> None:
    kernel = made(kind, exclusive=True)
    x, w1, w2 = random_arguments(PROGRAM)
    for k in (kernel, kernel.prepare(w1=w1, w2=w2)):
        other = again(k)
        assert (
            type(other) is CudaKernel
            and other.plan == k.plan
            and other.proof == k.proof
            and other.source == k.source
        )
        assert [t.name for t in other.given] == [
            t.name for t in k.given
        ] and other.packed_bytes == k.packed_bytes
        assert other._exclusive and type(other._library) is kind
        assert (
            all(torch.equal(a, k._packed[name]) for name, a in other._packed.items())
            and other._packed.keys() == k._packed.keys()
        )
    assert ("prepared with w1, w2" in repr(other)) and repr(other) == repr(k)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_the_text_over_what_moves(again: Any) -> None:
    plan = tg.plan(mlp(M=tg.dim("M", max=64), H=128, I=128), "h200", target="sm_90a")
    assert isinstance(plan, MovingPlan)
    kernel = CudaKernel(
        plan.most, tg.verify(plan), HopperLibrary(plan.open), size=plan.dim.most, plan_at=plan.at
    )
    other = again(kernel)
    assert other.source == kernel.source and "tg_sizes" in other.source
    assert other._library.plan.dim == plan.dim and other.proof == kernel.proof
    assert other.at_size(5).size == 5 and other.at_size(5)._library.plan.dim == plan.dim


def test_parameters_are_constants_once_prepared() -> None:
    kernel, w1 = made(PortableLibrary), random_arguments(PROGRAM)[1]
    parameter = torch.nn.Parameter(w1)
    with pytest.raises(tg.ArgumentError, match="'w1' requires grad and grad mode is on"):
        kernel.prepare(w1=parameter)
    with torch.no_grad():
        bound = kernel.prepare(w1=parameter)
    assert not bound._bound["w1"].requires_grad and bound._bound["w1"].data_ptr() == w1.data_ptr()


def test_a_pickle_on_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(made(PortableLibrary))
    monkeypatch.setattr(cuda_kernel, "missing", lambda: "no NVIDIA driver")
    with pytest.raises(tg.TargetError, match="runs on a GPU: no NVIDIA driver"):
        pickle.loads(data)


def test_the_machine_code_knows_its_lines() -> None:
    """So that a profiler shows them."""
    assert b".debug_line" in HopperLibrary(tg.plan(PROGRAM, "h200")).code


@pytest.mark.parametrize(
    ("knob", "listens", "ranges"), [("", False, 0), ("", True, 1), ("1", False, 1), ("0", True, 0)]
)
def test_a_profiler_sees_the_ops_of_a_launch(
    monkeypatch: pytest.MonkeyPatch, knob: str, listens: bool, ranges: int
) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    monkeypatch.setattr(gpu_kernel, "current_stream", lambda index: 0)
    monkeypatch.setenv("TILEGEN_NVTX", knob)
    if listens:
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/some/profiler.so")
    kernel = made(PortableLibrary)
    monkeypatch.setattr(kernel, "_run", lambda *given: said.append("launch"))
    kernel(*random_arguments(PROGRAM))
    name = ["mlp(M=64, H=128, I=128): up, down"] if ranges else []
    assert said == [*name, "launch", *["end"] * ranges]
