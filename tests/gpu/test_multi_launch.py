"""The streams lowering on a GPU: a launch for each op, ordinary and programmatic, against float32 and each
other, captured, on several streams."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import CASES, Case
from tests.gpu.ops import CONVOLUTIONS
from tests.gpu.test_hopper import arguments_of, check_replays, expected
from tilegen.errors import ArgumentError, TargetError
from tilegen.kernels.launches import MultiLaunchKernel
from tilegen.runtime.data import relative_error
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient"),
]
BOTTLENECK = next(c for c in CONVOLUTIONS if c.name == "bottleneck")
SOME = [
    c
    for c in CASES
    if c.name
    in ("split sum", "mlp, M = 17, static", "mlp, rows shared", "chain of four", "fan", "fan, M = 1")
]


def compiled(case: Case, programmatic: bool, target: str = "cuda") -> MultiLaunchKernel:
    options = {k: v for k, v in case.options.items() if k != "policies"}
    kernel = tg.compile(case.program, target, lowering="multi_launch", programmatic=programmatic, **options)
    assert isinstance(kernel, MultiLaunchKernel) and kernel.target in ("sm_90a", "sm_80") and kernel.proof.ok
    return kernel


def prepared(
    case: Case, kernel: MultiLaunchKernel, arguments: list[torch.Tensor]
) -> tuple[MultiLaunchKernel, list[torch.Tensor]]:
    """With its weights fixed, and the arguments that are left."""
    roles = [t.role for t in case.program.arguments]
    weights = {
        t.name: a for t, a in zip(case.program.arguments, arguments, strict=True) if t.role == "weight"
    }
    bound = kernel.prepare(**weights)
    assert isinstance(bound, MultiLaunchKernel)
    return bound, [a for a, role in zip(arguments, roles, strict=True) if role != "weight"]


@pytest.mark.parametrize("case", [*CASES, BOTTLENECK], ids=lambda c: c.name)
def test_against_float32_and_each_other(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisoned between launches, then back to back: ordinary, programmatic, and programmatic on packed
    weights give the same bits."""
    arguments = arguments_of(case)
    monkeypatch.setenv("TILEGEN_POISON", "1")
    ordinary, early = compiled(case, False), compiled(case, True)
    first = ordinary(*arguments)
    ordinary.check()
    assert relative_error(first.cpu(), expected(case, arguments)) < 5e-3
    assert torch.equal(early(*arguments), first)
    monkeypatch.setenv("TILEGEN_POISON", "0")
    ordinary, early = compiled(case, False), compiled(case, True)
    bound, rest = prepared(case, early, arguments)
    assert bound.packed_bytes > 0 or not case.packed
    results = [
        kernel(*given)
        for _ in range(20)
        for kernel, given in ((ordinary, arguments), (early, arguments), (bound, rest))
    ]
    early.check()
    bound.check()
    assert all(torch.equal(y, first) for y in results)


@pytest.mark.parametrize("case", SOME, ids=lambda c: c.name)
def test_calls_overlap_without_harm(case: Case) -> None:
    """Programmatic calls with other inputs each time, nothing between them: no launch reads or overwrites
    what another call's uses."""
    kernel = compiled(case, True)
    arguments = arguments_of(case)
    bound, [x] = prepared(case, kernel, arguments)
    inputs = [torch.roll(x, n, 0) if n % 2 else (n + 1) * x for n in range(4)]
    wanted = []
    for given in inputs:
        wanted.append(bound(given))
        torch.cuda.synchronize()
    assert not torch.equal(wanted[0], wanted[2])
    results = [bound(inputs[n % 4]) for n in range(200)]
    bound.check()
    assert all(torch.equal(y, wanted[n % 4]) for n, y in enumerate(results))


@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize("case", SOME, ids=lambda c: c.name)
def test_graph_replay(case: Case, programmatic: bool) -> None:
    """Captured launches can be replayed beside the stream's own: the graph has its own intermediates."""
    check_replays(compiled(case, programmatic), arguments_of(case))


def test_on_several_streams() -> None:
    """Two streams at once, each with its own intermediates."""
    case = next(c for c in SOME if c.name == "fan")
    kernel, arguments = compiled(case, True), arguments_of(case)
    want = kernel(*arguments)
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(2)], []
    for turn in range(60):
        with torch.cuda.stream(streams[turn % 2]):
            results.append(kernel(*arguments))
    kernel.check()
    assert all(torch.equal(y, want) for y in results)


def test_portable() -> None:
    case = next(c for c in SOME if c.name == "chain of four")
    kernel, arguments = compiled(case, False, "sm_80"), arguments_of(case)
    assert relative_error(kernel(*arguments).cpu(), expected(case, arguments)) < 5e-3
    kernel.check()
    with pytest.raises(TargetError, match="programmatic"):
        compiled(case, True, "sm_80")


def test_arguments_are_refused_in_the_programs_words() -> None:
    case = next(c for c in SOME if c.name == "fan")
    kernel, arguments = compiled(case, True), arguments_of(case)
    with pytest.raises(ArgumentError, match="fan takes 5 tensors"):
        kernel(*arguments[1:])
    with pytest.raises(ArgumentError, match="'x' is on cpu"):
        kernel(arguments[0].cpu(), *arguments[1:])
