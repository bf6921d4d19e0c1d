"""Every lowering of every family, weights prepared or not, dynamic or static, replayed in CUDA graphs of
twelve argument sets: no hang, the same bits.

What goes wrong between launches goes wrong here: an arrival that overtook a load hung one replay in some
hundred, and no launch by itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tests.gpu.families import drawn, lora
from tests.gpu.gemms import Case
from tilegen.bench.accuracy import error_of
from tilegen.bench.compare import outcome
from tilegen.bench.ladder import on_device_reference
from tilegen.frontend.program import Program
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient"),
]
SETS = 12
WAYS: dict[str, dict[str, Any]] = {
    "as given": {},
    "one launch": {"lowering": "persistent"},
    "one launch, dynamic": {"lowering": "persistent", "scheduling": "dynamic"},
    "one launch, lists": {"lowering": "persistent", "scheduling": "static"},
    "a launch for each op": {"lowering": "multi_launch"},
    "programmatic": {"lowering": "multi_launch", "programmatic": True},
    "programmatic, dynamic": {"lowering": "multi_launch", "programmatic": True, "scheduling": "dynamic"},
}
HUNG = [Case(f"lora M={m}", lora, {"M": m}) for m in (257, 278, 300)]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("case", drawn(20261122, 28), ids=lambda c: c.name)
def test_replays(case: Case, how: str) -> None:
    replay(case.program, WAYS[how], 40)


@pytest.mark.parametrize("case", HUNG, ids=lambda c: c.name)
def test_replays_of_what_hung(case: Case) -> None:
    """Pairs that draw ranks, of which some start while the launch before runs and draw several; every CTA
    reads its tile before the next is written."""
    replay(case.program, WAYS["programmatic"], 3000)


def replay(program: Program, how: dict[str, Any], count: int) -> None:
    kernel: Any = tg.compile(program, "cuda", **how)
    sets = [random_arguments(program, seed, "cuda") for seed in range(SETS)]
    for prepared in (False, True):
        calls = [
            (bound(kernel, program, arguments) if prepared else (kernel, arguments)) for arguments in sets
        ]
        outs = [outputs_of(program) for _ in sets]
        wanted = [on_device_reference(program, arguments) for arguments in sets]
        results = replayed(calls, outs, count)
        for result, arguments, want in zip(results, sets, wanted, strict=True):
            assert error_of(outcome(program, result, arguments), want) < 5e-3
        for k, _ in calls:
            k.check()


def replayed(calls: list[Any], outs: list[Any], count: int) -> list[Any]:
    """What each call wrote in the last of `count` replays, the same bits as in the first."""

    def step() -> list[Any]:
        return [kernel(*given, out=out) for (kernel, given), out in zip(calls, outs, strict=True)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    graph.replay()
    torch.cuda.synchronize()
    first = [[t.clone() for t in flat(result)] for result in results]
    for _ in range(count):
        graph.replay()
    torch.cuda.synchronize()
    for result, before in zip(results, first, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(flat(result), before, strict=True))
    return results


def flat(result: Any) -> tuple[torch.Tensor, ...]:
    return () if result is None else result if isinstance(result, tuple) else (result,)


def bound(kernel: Any, program: Program, arguments: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    named = {t.name: a for t, a in zip(program.arguments, arguments, strict=True)}
    weights = {t.name: named.pop(t.name) for t in program.arguments if t.role == "weight"}
    return kernel.prepare(**weights), list(named.values())


def outputs_of(program: Program) -> Any:
    """What out= takes: NaN everywhere, or None where only caches are written."""
    made = [program.tensor(name) for name in program.outputs]
    outs = [torch.full(t.shape, float("nan"), dtype=getattr(torch, t.dtype), device="cuda") for t in made]
    return None if not outs else outs[0] if len(outs) == 1 else outs
