"""The portable kernel on a GPU: against float32, poisoned, the same bits every time, on several streams and
from a graph."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu import portable
from tests.gpu.gemms import CASES, Case, mlp
from tests.gpu.test_ops import poisoned
from tilegen import api
from tilegen.bench.accuracy import error_of
from tilegen.bench.compare import outcome
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]


def compiled(case: Case) -> CudaKernel:
    kernel = tg.compile(case.program, "sm_80", **case.options)
    assert isinstance(kernel, CudaKernel) and kernel.proof.ok and "mma.sync" in kernel.source
    return kernel


def arguments_of(case: Case) -> list[torch.Tensor]:
    return [a.cuda() for a in random_arguments(case.program)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_against_float32(case: Case) -> None:
    kernel, arguments = compiled(case), arguments_of(case)
    first = kernel(*arguments)
    kernel.check()
    assert relative_error(first.cpu(), api.reference(case.program, *(a.cpu() for a in arguments))) < 5e-3
    for _ in range(20):
        assert torch.equal(kernel(*arguments), first)
    kernel.check()


@pytest.mark.parametrize(
    "case",
    [*portable.CASES, *portable.SHARED, *portable.ODD, *portable.ATTENTIONS, *portable.LAYERS],
    ids=lambda c: c.name,
)
def test_every_kind_of_op(case: Case) -> None:
    program = case.program
    kernel = tg.compile(program, "sm_80", **case.options)
    assert isinstance(kernel, CudaKernel) and kernel.target == "sm_80" and kernel.proof.ok
    given = poisoned(program, random_arguments(program))
    want = api.reference(program, *given)
    wanted = want if isinstance(want, tuple) else (want,)
    for _ in range(3):
        arguments = [a.cuda() for a in given]
        found = outcome(program, kernel(*arguments), arguments)
        kernel.check()
        results = found if isinstance(found, tuple) else (found,)
        assert error_of(tuple(r.cpu() for r in results), wanted) < 5e-3


@pytest.mark.parametrize(
    "tiles",
    [(512, 512, 128), (80, 200, 48), (16, 8, 16), (256, 384, 64)],
    ids=lambda t: "x".join(map(str, t)),
)
def test_any_tile(tiles: tuple[int, int, int]) -> None:
    """Tiles larger than a block, steps that are no whole chunks, the smallest of all."""
    case = Case("any", mlp, {"M": 600}, {"tiles": {"up": tiles, "down": tiles}})
    kernel, arguments = compiled(case), arguments_of(case)
    assert (
        relative_error(kernel(*arguments).cpu(), api.reference(case.program, *(a.cpu() for a in arguments)))
        < 5e-3
    )
    kernel.check()


def test_graph_and_streams() -> None:
    case = Case("mlp", mlp, {"M": 300})
    kernel, arguments = compiled(case), arguments_of(case)
    want, out = kernel(*arguments), torch.empty_like(kernel(*arguments))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*arguments, out=out)
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    streams, results = [torch.cuda.Stream() for _ in range(3)], []
    for stream in streams:
        with torch.cuda.stream(stream):
            results += [kernel(*arguments) for _ in range(10)]
    torch.cuda.synchronize()
    assert all(torch.equal(r, want) for r in results)
    kernel.check()
