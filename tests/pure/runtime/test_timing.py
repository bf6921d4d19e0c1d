"""Timing: how many argument sets and replays, the order of the rounds, warm-up before capture."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilegen.runtime import timing
from tilegen.runtime.timing import Contender


@pytest.mark.parametrize(
    ("set_bytes", "sets"),
    [
        (0, 24),
        (1, 24),
        (7_500_000, 24),
        (7_500_001, 24),
        (18_000_000, 10),
        (45_000_000, 4),
        (60_000_000, 3),
        (301_989_888, 3),
    ],
)
def test_sets_exceed_three_caches(set_bytes: int, sets: int) -> None:
    assert timing.set_count(set_bytes) == sets
    assert sets == 24 or sets * set_bytes >= 3 * timing.L2_BYTES
    assert timing.fits_l2(set_bytes, sets) == (sets * set_bytes < timing.L2_BYTES)


@pytest.mark.parametrize(("free", "sets"), [(10**12, 10), (4 * 5 * 18_000_000, 5), (1, 1)])
def test_sets_fit_into_memory(free: int, sets: int) -> None:
    assert timing.set_count(18_000_000, free) == sets


@pytest.mark.parametrize(
    ("us", "n"), [(0.0, 4_000_000), (1.7, 2353), (240.0, 17), (1333.0, 4), (2000.0, 3), (50_000.0, 3)]
)
def test_a_measurement_takes_4_ms(us: float, n: int) -> None:
    assert timing.replays(us * 1e-6) == n


def test_rounds_are_interleaved_and_each_goes_first_in_turn() -> None:
    log: list[str] = []
    ticks = {"a": 1e-3, "b": 5e-3}
    runs = {name: lambda name=name: log.append(name) or ticks[name] for name in ticks}

    def seconds(run: Any, count: int) -> float:
        return sum(run() for _ in range(count))

    counts = timing.counted(runs, seconds)
    assert counts == {"a": 4, "b": 3} and log == ["a"] * 8 + ["b"] * 7
    log.clear()
    times = timing.interleave(runs, counts, seconds, 3, lambda n: log.append(str(n)))
    assert "".join(log) == "0aaaabbb1bbbaaaa2aaaabbb"
    assert times["a"] == pytest.approx([1e-3] * 3) and times["b"] == pytest.approx([5e-3] * 3)


def test_spread() -> None:
    assert timing.spread([2.0, 1.0, 4.0]) == 1.5


class Gpu:
    """Stands in for torch.cuda: keeps the current stream, and says what was called while it captured."""

    def __init__(self) -> None:
        self.current, self.capturing, self.log = "usual", False, []

    def namespace(self) -> SimpleNamespace:
        return SimpleNamespace(
            current_stream=lambda: Stream(self.current),
            Stream=lambda: Stream("side"),
            stream=self.on,
            graph=self.graph,
            set_stream=lambda s: setattr(self, "current", s.name),
            synchronize=lambda: self.log.append("synchronize"),
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
        )

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: Any, stream: Stream) -> Iterator[None]:
        self.current, self.capturing = stream.name, True
        yield  # as torch: an exception leaves the stream as it is
        self.current, self.capturing = "usual", False

    def call(self, name: str) -> Any:
        def run() -> str:
            self.log.append(f"{name} on {self.current}{' captured' if self.capturing else ''}")
            return name

        return run


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(timing, "cuda", gpu.namespace())
    return gpu


def test_warm_up_and_capture_on_one_stream(gpu: Gpu) -> None:
    checks: list[int] = []
    runner = timing.ready(Contender((gpu.call("x"), gpu.call("y")), check=lambda: checks.append(1)))
    assert gpu.log == ["x on side", "y on side", "synchronize", "x on side captured", "y on side captured"]
    assert runner.captured and runner.results == ("x", "y") and checks == [1] and gpu.current == "usual"
    runner.run()
    assert gpu.log[-1] == "replay"


def test_without_a_graph(gpu: Gpu) -> None:
    runner = timing.ready(Contender((gpu.call("x"), gpu.call("y")), captured=False))
    runner.run()
    assert (
        gpu.log == ["x on usual", "y on usual", "synchronize", "x on usual", "y on usual"]
        and not runner.captured
    )


def test_a_runner_holds_what_its_graph_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph holds addresses, not tensors: outputs that only the calls hold must live as long as it can be
    replayed."""
    monkeypatch.setattr(timing, "cuda", FakeCuda())
    outputs = [torch.zeros(4), torch.zeros(4)]
    alive = [weakref.ref(o) for o in outputs]
    contender = timing.Contender(
        tuple(functools.partial(torch.add, torch.ones(4), 1, out=o) for o in outputs)
    )
    runner = timing.ready(contender)
    del contender, outputs
    gc.collect()
    assert all(o() is not None for o in alive) and runner.captured


class FakeCuda:
    """torch.cuda as far as `ready` needs it; a graph that captures nothing."""

    class CUDAGraph:
        def replay(self) -> None:
            raise AssertionError("not replayed here")

    class Stream:
        def wait_stream(self, _: object) -> None: ...

    def current_stream(self) -> FakeCuda.Stream:
        return FakeCuda.Stream()

    def stream(self, _: object) -> Any:
        return contextlib.nullcontext()

    def graph(self, *_: object, **__: object) -> Any:
        return contextlib.nullcontext()

    def synchronize(self) -> None: ...

    def set_stream(self, _: object) -> None: ...
