"""A call on a GPU is made without Python from the second one on, and gives what the first one gave."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.emulated.examples import EXAMPLES, program_of, titled
from tests.gpu.gemms import CASES, mlp
from tilegen.errors import ArgumentError
from tilegen.runtime import fast_call
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing
from tilegen.runtime.launch_graph import LaunchGraph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient"),
]


def listed(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def cloned(results: Any) -> list[torch.Tensor]:
    return [r.clone() for r in listed(results)]


@pytest.mark.parametrize("lowering", ["persistent", "multi_launch"])
@pytest.mark.parametrize("name, sizes", [pytest.param(*e, id=titled(*e)) for e in EXAMPLES])
def test_it_gives_the_same_bits(name: str, sizes: dict[str, Any], lowering: str) -> None:
    program = program_of(name, sizes, "bfloat16")
    kernel = tg.compile(program, "cuda", lowering=lowering)
    first = [random_arguments(program, seed, "cuda") for seed in (0, 1)]
    again = [[a.clone() for a in given] for given in first]
    assert kernel.fast is None
    wanted = [cloned(kernel.launched(given)) for given in first[:1]]
    assert kernel.fast is not None
    wanted.append(cloned(kernel.launched(first[1], None if not kernel.outputs else _outputs(kernel))))
    for given, expected in zip(again, wanted, strict=True):
        found = kernel.fast(*given)
        assert found is not NotImplemented
        assert all(map(torch.equal, listed(found), expected))
    for a, b in zip(sum(first, []), sum(again, []), strict=True):
        assert torch.equal(a, b)  # states were written alike
    kernel.check()


def _outputs(kernel: Any) -> Any:
    made = [
        torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="cuda").fill_(float("nan"))
        for t in kernel.outputs
    ]
    return made[0] if len(made) == 1 else made


def test_streams_and_threads_have_launches_of_their_own() -> None:
    program = mlp(M=70, H=256, I=512)
    kernel = tg.compile(program, "cuda")
    x, w1, w2 = random_arguments(program, 0, "cuda")
    bound, failures = kernel.prepare(w1=w1, w2=w2), []
    xs = [random_arguments(program, seed, "cuda")[0] for seed in range(4)]
    wanted = [kernel(x, w1, w2) for x in xs]
    torch.cuda.synchronize()

    def run(n: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                y = bound(xs[n])
                torch.cuda.current_stream().synchronize()
                if not torch.equal(y, wanted[n]):
                    failures.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and bound.fast is not None
    bound.check()


def test_launches_that_wait_in_a_graph_keep_what_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four launches, as a graph of the driver's and one by one, hundreds of calls ahead of the GPU."""
    case = next(c for c in CASES if c.name == "chain of four")
    names = [t.name for t in case.program.arguments]
    x, *weights = random_arguments(case.program, 0, "cuda")
    xs = [random_arguments(case.program, seed, "cuda")[0] for seed in range(5)]
    found, graphs = [], list[Any]()
    for many in (fast_call.MANY, 1000):
        monkeypatch.setattr(fast_call, "MANY", many)
        monkeypatch.setattr(fast_call, "LaunchGraph", Counted(graphs))
        kernel = tg.compile(case.program, "cuda", lowering="multi_launch")
        bound = kernel.prepare(**dict(zip(names[1:], weights, strict=True)))
        assert bound(x) is not None and bound.fast is not None
        torch.cuda._sleep(50_000_000)  # clocks
        found.append([bound(xs[n % 5]) for n in range(300)])
        torch.cuda.synchronize()
        bound.check()
    assert len(graphs) == 1 and graphs[0] is not None
    assert all(map(torch.equal, *found))


class Counted:
    """LaunchGraph, noting what it makes."""

    def __init__(self, made: list[Any]):
        self.made = made

    def of(self, launches: Any) -> Any:
        self.made.append(LaunchGraph.of(launches))
        return self.made[-1]


def test_a_size_that_moves_and_a_graph_beside_it() -> None:
    kernel = tg.compile(mlp(M=tg.dim("M", max=300), H=256, I=512), "cuda")
    program = mlp(M=300, H=256, I=512)
    x, w1, w2 = random_arguments(program, 0, "cuda")
    bound, graph = kernel.prepare(w1=w1, w2=w2), torch.cuda.CUDAGraph()
    wanted = bound(x)
    for rows in (1, 17, 64, 65, 300, 17, 1):
        for _ in range(3):
            assert torch.allclose(bound(x[:rows]).float(), wanted[:rows].float(), rtol=0.02, atol=0.02)
    assert bound.at(17).fast is not None and bound.fast(x[:17]) is not NotImplemented
    assert bound.fast(x[:18]) is NotImplemented
    with torch.cuda.graph(graph):
        captured = bound(x[:17])
    bound(x[:17])
    graph.replay()
    assert torch.equal(captured, bound(x[:17]))
    bound.check()


def test_results_go_into_tensors_that_are_there() -> None:
    program = mlp(M=70, H=256, I=512)
    kernel = tg.compile(program, "cuda")
    x, w1, w2 = random_arguments(program, 0, "cuda")
    bound = kernel.prepare(w1=w1, w2=w2)
    wanted = bound(x)
    for _ in range(3):
        y = torch.full_like(wanted, float("nan"))
        assert bound(x, out=y) is y and torch.equal(y, wanted)
        listed = [torch.full_like(wanted, float("nan"))]
        assert kernel(x, w1, w2, out=listed) is listed and torch.allclose(listed[0], wanted)
    with pytest.raises(ArgumentError, match="shares memory with 'x'"):
        bound(x, out=x)
    with pytest.raises(ArgumentError, match="shares memory with 'w1'"):
        bound(x, out=w1.view(-1)[: x.numel()].view(x.shape))
    bound.check()


def test_a_trace_is_taken_anew() -> None:
    program = mlp(M=70, H=256, I=512)
    kernel = tg.compile(program, "cuda", lowering="persistent")
    given = random_arguments(program, 0, "cuda")
    kernel(*given)
    for _ in range(2):
        ranks = {t.rank for t in kernel.trace(*given).tiles}
        assert sorted(ranks) == list(range(kernel.plan.order.count))


def test_a_tensor_that_does_not_fit_is_named_as_before() -> None:
    kernel = tg.compile(mlp(M=70, H=256, I=512), "cuda")
    x, w1, w2 = random_arguments(mlp(M=70, H=256, I=512), 0, "cuda")
    kernel(x, w1, w2)
    with pytest.raises(ArgumentError, match="'x': expected shape"):
        kernel(x[:69], w1, w2)
    with pytest.raises(ArgumentError, match="'w1': expected dtype"):
        kernel(x, w1.half(), w2)
    x.requires_grad_()
    assert kernel(x, w1, w2).requires_grad
    kernel.check()
