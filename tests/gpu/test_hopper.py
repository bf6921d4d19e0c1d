"""The Hopper kernel on a GPU: against float32, poisoned, on packed and plain weights, captured, on several streams, and hung."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import CASES, Case, mlp
from tilegen import api
from tilegen.cuda_kernel import CudaKernel
from tilegen.data import random_arguments, relative_error
from tilegen.targets.cuda import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_TIMEOUT_MS", "1000")
    monkeypatch.setenv("TILEGEN_POISON", "1")


def compiled(case: Case) -> CudaKernel:
    kernel = tg.compile(case.program, "cuda", **case.options)
    assert isinstance(kernel, CudaKernel) and kernel.target == "cuda" and kernel.proof.ok
    return kernel


def arguments_of(case: Case) -> list[torch.Tensor]:
    return [a.cuda() for a in random_arguments(case.program)]


def expected(case: Case, arguments: list[torch.Tensor]) -> torch.Tensor:
    return api.reference(case.program, *(a.cpu() for a in arguments))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_against_float32(case: Case) -> None:
    kernel, arguments = compiled(case), arguments_of(case)
    want = expected(case, arguments)
    first = kernel(*arguments)
    kernel.check()
    assert relative_error(first.cpu(), want) < 5e-3
    for _ in range(20):
        assert torch.equal(kernel(*arguments), first)
    kernel.check()
    if case.packed:
        weights = {t.name: a for t, a in zip(case.program.arguments, arguments, strict=True) if t.role == "weight"}
        bound = kernel.prepare(**weights)
        assert bound.packed_bytes > 0
        assert torch.equal(bound(*(a for t, a in zip(case.program.arguments, arguments, strict=True) if t.name not in weights)), first)
        bound.check()
