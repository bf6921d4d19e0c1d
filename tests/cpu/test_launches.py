"""MultiLaunchKernel with CPU kernels as its launches: what is passed between them, outputs, workspaces,
export. The GPU's own is tests/gpu/test_multi_launch.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import chain, fan, gated, mlp
from tilegen.errors import TargetError
from tilegen.frontend.program import Program
from tilegen.kernels import gpu_kernel
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.launches import MultiLaunchKernel
from tilegen.options import Options
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.runtime.verify import verify
from tilegen.runtime.verify_launches import certify_launches
from tilegen.schedule.launches import launch_plans, whole_plan
from tilegen.targets.cpu.library import Library
from tilegen.targets.select import place

PROGRAMS = {
    "mlp": lambda: mlp(M=9, H=64, I=48),
    "gated": lambda: gated(M=9, H=64, I=48),
    "chain": lambda: chain(M=5, H=32),
    "fan": lambda: fan(M=5, H=32, I=48),
    "two outputs": lambda: two_outputs(),
}


@tg.spec
def two_outputs(M=8, N=32):
    """The first is an output and read by the second."""
    x = tg.input("x", (2, M, N), "bfloat16")
    a = tg.relu(tg.linear(x, tg.weight("w1", (N, N), "bfloat16"), name="first"), name="a")
    return a, tg.linear(a, tg.weight("w2", (N, N), "bfloat16"), name="second")


class Launch(Kernel):
    """A CPU kernel in a CudaKernel's place, which counts its calls and checks."""

    calls = checks = 0

    def __init__(self, *of: Any, programmatic: bool = False, **more: Any):
        super().__init__(*of, **more)
        self.programmatic = programmatic

    def prepared(self, weights: Any, copies: Any, once: Any = None) -> Launch:
        of = self.plan, self.proof, self._library, self.workers, self._with_bound(weights)
        return Launch(*of, None, self.size, self.plan_at, programmatic=self.programmatic)

    def __reduce__(self) -> Any:
        of = self.plan, self.proof, self._library, self.workers, self._bound
        return Launch, (*of, None, self.size, self.plan_at)

    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any:
        self.calls += 1
        return super().launched(arguments, out)

    def check(self) -> None:
        self.checks += 1


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A CPU in the GPU's place; `number` is the current stream, `capture` the graph being captured."""
    now = SimpleNamespace(number=0, capture=None)
    monkeypatch.setattr(gpu_kernel, "current_stream", lambda device: now.number)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now.capture is not None)
    monkeypatch.setattr(gpu_kernel, "_capture_id", lambda stream: now.capture)
    monkeypatch.setattr(gpu_kernel.GpuKernel, "_place", "cpu")
    monkeypatch.setattr(gpu_kernel.GpuKernel, "_current_device", lambda self: torch.device("cpu"))
    return now


def compiled(program: Program, **options: Any) -> MultiLaunchKernel:
    whole = whole_plan(program, place("cpu:2"), Options.of(**options))
    plans = launch_plans(whole, place("cpu:2"), Options.of(**options))
    proofs = [verify(p) for p in plans]
    launches: list[Any] = [Launch(p, c, Library(p), 2) for p, c in zip(plans, proofs, strict=True)]
    return MultiLaunchKernel(whole, certify_launches(whole, proofs, plans, False), launches, program=program)


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_against_float32_and_one_launch(make: Callable[[], Program]) -> None:
    program = make()
    arguments = random_arguments(program)
    found, one = compiled(program), tg.compile(program, "cpu", on="cpu:2", threads=2)
    wanted = tensors(tg.reference(program, *arguments))
    results = tensors(found(*arguments))
    assert all(relative_error(y, w) < 1e-2 for y, w in zip(results, wanted, strict=True))
    assert all(torch.equal(y, w) for y, w in zip(results, tensors(one(*arguments)), strict=True))
    assert all(launch.calls == 1 for launch in found._launches)  # type: ignore[attr-defined]


def test_split_sum() -> None:
    program = PROGRAMS["mlp"]()
    arguments = random_arguments(program)
    found = compiled(program, tiles={"up": (16, 16, 16)}, split_k={"up": 3})
    assert (
        len(found.plans) == 4 and relative_error(found(*arguments), tg.reference(program, *arguments)) < 1e-2
    )


def test_prepared_and_out() -> None:
    program = PROGRAMS["fan"]()
    arguments = random_arguments(program)
    found = compiled(program)
    want, out = found(*arguments), torch.empty(5, 32, dtype=torch.bfloat16)
    weights = {t.name: a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "weight"}
    bound = found.prepare(**weights)
    assert bound(arguments[0], out=out) is out and torch.equal(out, want)
    assert torch.equal(
        found.prepare(wq=weights["wq"])(
            *(a for t, a in zip(program.arguments, arguments, strict=True) if t.name != "wq")
        ),
        want,
    )


def test_workspaces(stream: SimpleNamespace) -> None:
    """Intermediates of a stream are kept; another stream, each captured graph, and each stream of a graph's
    branches has its own."""
    program = PROGRAMS["mlp"]()
    found, arguments = compiled(program), random_arguments(program)
    held = []
    for number, capture in ((0, None), (7, None), (7, -5), (7, -6), (8, -6), (7, -6), (0, None)):
        stream.number, stream.capture = number, capture
        found(*arguments)
        held.append([w["h"].data_ptr() for w in found._workspaces])
    assert [len(h) for h in held] == [1, 2, 3, 4, 5, 5, 5] and len(set(held[-1])) == 5


def test_what_it_is(tmp_path: Path) -> None:
    program = PROGRAMS["mlp"]()
    found = compiled(program)
    assert (
        found.target == "cpu"
        and found.proof.ok
        and found.plan.lowering == "multi_launch"
        and len(found.plans) == 2
    )
    assert found.workspace_bytes == 4 * 256 + sum(launch.workspace_bytes for launch in found._launches)
    with pytest.raises(TargetError, match="is 2 launches; compile with lowering='persistent'"):
        found.trace(*random_arguments(program))
    assert (
        all(launch.source in found.source for launch in found._launches)
        and "kernel boundaries" in found.explain()
    )
    found.check()
    assert [launch.checks for launch in found._launches] == [1, 1]  # type: ignore[attr-defined]
    files = sorted(
        str(p.relative_to(tmp_path)) for p in found.export(tmp_path / "out").rglob("*") if p.is_file()
    )
    folders = ("out/0_up/", "out/1_down/")
    order = ("certificate.json", "certificate.txt", "launch.json")
    names = sorted((*order, "kernel.cpp", "plan.json"))
    assert files == [
        *(folder + name for folder in folders for name in names),
        *(f"out/{name}" for name in order),
    ]
    assert all(tg.verify(tmp_path / folder / "plan.json").ok for folder in folders)
