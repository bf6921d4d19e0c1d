"""The Hopper kernel on a GPU: against float32, poisoned, on packed and plain weights, captured, on several
streams, and hung."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import tilegen as tg
import tilegen.targets.sm90.library
from tests.gpu.gemms import HOPPER, Case, mlp
from tilegen import api
from tilegen.errors import ArgumentError, HangError
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.runtime.driver import missing
from tilegen.targets.sm90.emit import HopperSource, generate
from tilegen.targets.sm90.library import HopperLibrary

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]


def compiled(case: Case) -> CudaKernel:
    kernel = tg.compile(case.program, "cuda", lowering="persistent", **case.options)
    assert isinstance(kernel, CudaKernel) and kernel.target == "sm_90a" and kernel.proof.ok
    return kernel


def arguments_of(case: Case) -> list[torch.Tensor]:
    return [a.cuda() for a in random_arguments(case.program)]


def expected(case: Case, arguments: list[torch.Tensor]) -> torch.Tensor:
    return api.reference(case.program, *(a.cpu() for a in arguments))


def check_replays(kernel: Kernel, arguments: list[torch.Tensor]) -> None:
    """100 replays of two captured calls, beside the stream's own calls: all bits equal."""
    want = kernel(*arguments).clone()
    out = torch.empty_like(want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*arguments, out=out)
        kernel(*arguments, out=out)
    for _ in range(100):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(kernel(*arguments), want)
        assert torch.equal(out, want)
    kernel.check()


@pytest.mark.parametrize("case", HOPPER, ids=lambda c: c.name)
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
        weights = {
            t.name: a for t, a in zip(case.program.arguments, arguments, strict=True) if t.role == "weight"
        }
        bound = kernel.prepare(**weights)
        assert bound.packed_bytes > 0
        assert torch.equal(
            bound(
                *(a for t, a in zip(case.program.arguments, arguments, strict=True) if t.name not in weights)
            ),
            first,
        )
        bound.check()


@pytest.mark.parametrize(
    "case",
    [c for c in HOPPER if c.name in ("mlp, M = 17, static", "mlp, rows shared", "chain of four", "fan")],
    ids=lambda c: c.name,
)
def test_graph_replay(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured launch can be replayed: counters come back to zero by themselves, and the graph has its own
    workspace."""
    monkeypatch.setenv("TILEGEN_POISON", "0")
    check_replays(compiled(case), arguments_of(case))


def test_what_a_graph_keeps_is_allocated_while_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked for it: torch holds no memory then."""
    monkeypatch.setenv("TILEGEN_POISON", "0")
    (case,) = (c for c in HOPPER if c.name == "chain of four")
    kernel, arguments = compiled(case), arguments_of(case)
    want = kernel(*arguments)
    kernel.memory.bytes = 64 << 20  # more than a block that lies about
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(*arguments)
    graph.replay()
    assert torch.equal(found, want)


@pytest.mark.parametrize(
    "case",
    [c for c in HOPPER if c.name in ("mlp, M = 17, static", "chain of four", "fan")],
    ids=lambda c: c.name,
)
def test_branches_of_a_graph(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams of one capture run side by side in its replay: each has a workspace of its own."""
    monkeypatch.setenv("TILEGEN_POISON", "0")
    kernel, (x, *weights) = compiled(case), arguments_of(case)
    inputs = [x, 2 * x]
    wants = [kernel(a, *weights).clone() for a in inputs]
    outs = [torch.empty_like(w) for w in wants]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        for _ in range(10):
            kernel(inputs[0], *weights, out=outs[0])
            with torch.cuda.stream(side):
                kernel(inputs[1], *weights, out=outs[1])
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(50):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(out, want) for out, want in zip(outs, wants, strict=True))
    kernel.check()


def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel and another, scheduled statically and dynamically, on three streams at once: each stream has
    its own workspace."""
    monkeypatch.setenv("TILEGEN_POISON", "0")
    cases = [
        c for c in HOPPER if c.name in ("mlp, M = 17, static", "mlp, rows shared", "mlp, M = 1000, bands")
    ]
    kernels, given = [compiled(c) for c in cases], [arguments_of(c) for c in cases]
    wants = [k(*a).clone() for k, a in zip(kernels, given, strict=True)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    results: list[tuple[int, torch.Tensor]] = []
    for turn in range(60):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                which = (n + turn) % len(kernels)
                results.append((which, kernels[which](*given[which])))
    for kernel in kernels:
        kernel.check()
    assert all(torch.equal(y, wants[which]) for which, y in results)


def test_missing_post_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel whose first op posts nothing ends by itself, names who waits for what; the next launches, of
    it and of a right one, work."""
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEGEN_TIMEOUT_MS", "50")
    case = Case("hang", mlp, {"M": 200}, {"tiles": {"up": (128, 64, 64), "down": (128, 64, 64)}})
    right = compiled(case)

    def without_posts(*given: Any) -> HopperSource:
        made = generate(*given)
        first = made.text.index("tg_post(g, ", made.text.index("TG_FN void tg_posts"))
        return dataclasses.replace(
            made, write=lambda: made.text[:first] + "(void)(" + made.text[first + len("tg_post(g, ") :]
        )

    monkeypatch.setattr(tilegen.targets.sm90.library, "generate", without_posts)
    broken = CudaKernel(right.plan, right.proof, HopperLibrary(right.plan, variant="broken"))
    arguments = arguments_of(case)
    want = expected(case, arguments)
    for _ in range(2):
        broken(*arguments)
        with pytest.raises(
            HangError,
            match=r"down\(.*\) .* waits before step \d+ for 'h': semaphore \d+ of up has 0 of \d+ posts",
        ):
            broken.check()
        assert relative_error(right(*arguments).cpu(), want) < 5e-3
    broken(*arguments)
    torch.cuda.synchronize()
    with pytest.raises(HangError):
        broken(*arguments)
    right.check()


def test_out_and_errors() -> None:
    case = HOPPER[0]
    kernel, (x, w) = compiled(case), arguments_of(case)
    out = torch.empty(kernel(x, w).shape, dtype=torch.bfloat16, device="cuda")
    assert kernel(x, w, out=out) is out and torch.equal(out, kernel(x, w))
    with pytest.raises(ArgumentError, match="'x' is on cpu, this kernel was compiled for cuda"):
        kernel(x.cpu(), w)
    with pytest.raises(ArgumentError, match="expected shape"):
        kernel(x[:1], w)
    with pytest.raises(ArgumentError, match="shares memory"):
        kernel(x, w, out=x.view(-1)[: out.numel()].view(out.shape))
    with pytest.raises(ArgumentError, match="not an argument"):
        kernel.prepare(v=w)


@pytest.mark.parametrize(
    "case", [c for c in HOPPER if "shared" in c.name or c.name == "fan"][:6], ids=lambda c: c.name
)
def test_trace(case: Case) -> None:
    """Every tile once on each CTA of its cluster, its events in order."""
    kernel, arguments = compiled(case), arguments_of(case)
    trace = kernel.trace(*arguments)
    assert sorted({t.rank for t in trace.tiles}) == list(range(kernel.plan.order.count))
    assert len(trace.tiles) == kernel.plan.order.count * kernel.plan.cluster
    for t in trace.tiles:
        assert (
            0
            <= t.times["waited"]
            <= t.times["loaded"]
            <= t.times["multiplied"] + 1
            <= t.times["finished"] + 1
        )
