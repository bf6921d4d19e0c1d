"""Every kind of op on a GPU: against float32, poisoned, the same bits every time."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.ops import NORMED, OPS
from tilegen import api
from tilegen.bench.accuracy import error_of
from tilegen.bench.compare import outcome
from tilegen.bench.ladder import on_device_reference
from tilegen.frontend.program import Program
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.runtime.data import free_rows, random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]


def poisoned(program: Program, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments, with NaN in the caches' rows from the position on: nobody may read them before they are
    appended."""
    position = next((t.name for t in program.arguments if t.dtype == "int32" and t.shape == (1,)), "")
    for t, a in zip(program.arguments, arguments, strict=True):
        if t.role == "state":
            a[:, free_rows(program, position) - 20 :] = float("nan")
        if t.name == position:
            a -= 20
    return arguments


@pytest.mark.parametrize("case", OPS, ids=lambda c: c.name)
def test_against_float32(case: Case) -> None:
    against_float32(case)


def against_float32(case: Case) -> None:
    program = case.program
    kernel = tg.compile(program, "cuda", lowering="persistent", **case.options)
    assert isinstance(kernel, CudaKernel) and kernel.target == "sm_90a" and kernel.proof.ok
    given = poisoned(program, random_arguments(program))
    want = api.reference(program, *given)
    results = []
    for _ in range(5):
        arguments = [a.cuda() for a in given]
        results.append(outcome(program, kernel(*arguments), arguments))
        kernel.check()
    wanted = want if isinstance(want, tuple) else (want,)
    for result in results:
        found = result if isinstance(result, tuple) else (result,)
        assert error_of(tuple(r.cpu() for r in found), wanted) < 5e-3
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                found, results[0] if isinstance(results[0], tuple) else (results[0],), strict=True
            )
        )


@pytest.mark.parametrize("case", NORMED, ids=lambda c: c.name)
def test_norms_in_packed_weights(case: Case) -> None:
    program = case.program
    given = [a.cuda() for a in random_arguments(program)]
    named = {t.name: a for t, a in zip(program.arguments, given, strict=True)}
    weights = {t.name: named.pop(t.name) for t in program.arguments if t.role == "weight"}
    kernel = tg.compile(program, "cuda", **case.options).prepare(**weights)  # type: ignore[attr-defined]
    results = [outcome(program, kernel(*named.values()), given) for _ in range(3)]
    kernel.check()
    assert error_of(results[0], on_device_reference(program, given)) < 5e-3
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(result, results[0], strict=True))


def test_trace_of_shares_without_keys() -> None:
    """At position 0 one share of the keys has a block, the others none: no role may wait for a stage that
    nobody fills."""
    case = next(c for c in OPS if c.name == "caches, keys shared out")
    kernel = tg.compile(case.program, "cuda", **case.options)
    assert isinstance(kernel, CudaKernel)
    arguments = [a.cuda() for a in random_arguments(case.program)]
    for t, a in zip(case.program.arguments, arguments, strict=True):
        if t.dtype == "int32":
            a.zero_()
    trace = kernel.trace(*arguments)
    assert {t.op for t in trace.tiles} == {op.name for op in kernel.plan.graph.ops}
