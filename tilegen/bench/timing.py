"""Time per call, contenders side by side in one run, on a GPU in CUDA graphs with weights from device memory.

t = (stop - start) / (n·R): between two events, n replays of a graph that runs R argument sets once, in order. All weights together
exceed three times the L2 cache, so that a set's weights have left it when their turn comes again, as in a model of many layers.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

L2_BYTES = 60_000_000
MEASUREMENT_S = 4e-3
SETS = (3, 12)  # at least, at most

Run = Callable[[], Any]
cuda: Any = torch.cuda  # parts of it carry no types


def set_count(weight_bytes: int) -> int:
    """R = ⌈3·L2 / weight bytes⌉, within SETS."""
    least, most = SETS
    return min(most, max(least, math.ceil(3 * L2_BYTES / max(1, weight_bytes))))


def replays(seconds: float) -> int:
    """n: as many runs of this length as fill a measurement, at least 3."""
    return max(3, math.ceil(MEASUREMENT_S / max(seconds, 1e-9)))


@dataclass(frozen=True)
class Contender:
    """calls: one for each argument set, enqueueing work and giving the result. check: raises when an earlier run went wrong.

    outputs: what each call writes, where it always writes the same tensors.
    """

    calls: tuple[Run, ...]
    captured: bool = True
    check: Run = lambda: None
    outputs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Runner:
    """A contender ready to be timed. run: all sets once. first: the first set's result; where it is captured, a run writes it anew.

    calls: held, since a graph keeps alive no memory but its pool's: outputs given, constants of the traced module, packed weights are the calls'.
    """

    run: Run
    check: Run
    captured: bool
    first: Any = None
    calls: tuple[Run, ...] = ()
    outputs: tuple[Any, ...] = ()


def ready(c: Contender) -> Runner:
    """Warm up; then, where that is asked for, capture on the stream that warmed up: what libraries set up per stream is there then."""
    usual = cuda.current_stream()
    stream = cuda.Stream() if c.captured else usual
    stream.wait_stream(usual)
    with cuda.stream(stream):
        _all(c.calls)
    cuda.synchronize()
    c.check()
    if not c.captured:
        return Runner(lambda: _all(c.calls), c.check, False, outputs=c.outputs)
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph, stream=stream):
            first = c.calls[0]()  # held, so that no later call gets its memory
            _all(c.calls[1:])
    finally:
        cuda.set_stream(usual)  # a capture that fails leaves its own stream behind
    return Runner(graph.replay, c.check, True, first, c.calls, c.outputs)


def _all(calls: Sequence[Run]) -> None:
    for call in calls:
        call()


def host_seconds(run: Run, count: int) -> float:
    """Of `count` runs, by the host's clock: for work that is done when the call returns."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start


def event_seconds(run: Run, count: int) -> float:
    """Of `count` runs, between two events on the current stream."""
    start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        run()
    stop.record()
    stop.synchronize()
    return 1e-3 * start.elapsed_time(stop)


def counted(runs: Mapping[str, Run], seconds: Callable[[Run, int], float]) -> dict[str, int]:
    """n of each contender, from a first short measurement; that and one of full length warm it up."""
    counts = {}
    for name, run in runs.items():
        with blamed(name):
            run()
            counts[name] = replays(seconds(run, 3) / 3)
            seconds(run, counts[name])
    return counts


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """An error on the GPU inside is reported with the contender that was running: CUDA itself does not tell."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"{name}, while it was timed: {error}") from error


def interleave(
    runs: Mapping[str, Run],
    counts: Mapping[str, int],
    seconds: Callable[[Run, int], float],
    rounds: int,
    before: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Seconds of one run in each round, A B C A B C …, so that all contenders see the same clocks. before: called ahead of each round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for n in range(rounds):
        before(n)
        for name, run in runs.items():
            with blamed(name):
                times[name].append(seconds(run, counts[name]) / counts[name])
    return times


def spread(times: Sequence[float]) -> float:
    """(max - min) / median"""
    return (max(times) - min(times)) / statistics.median(times)


def nvidia_smi(field: str, meanwhile: Run = lambda: time.sleep(0.01)) -> str | None:
    """One field of nvidia-smi's query for the first GPU, or None where it cannot say. meanwhile: called until it has answered."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        query = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None
    deadline = time.monotonic() + 10
    while query.poll() is None and time.monotonic() < deadline:
        meanwhile()
    if query.poll() is None:
        query.kill()
    answer = (query.communicate()[0] or "").strip()
    return answer if query.returncode == 0 and answer and not answer.startswith("[") else None


def clock_under(load: Run) -> int | None:
    """The SM clock in MHz while the GPU runs a load: an idle one would say nothing."""

    def busy() -> None:
        load()
        cuda.synchronize()

    answer = nvidia_smi("clocks.sm", busy)
    return int(answer) if answer and answer.isdecimal() else None
