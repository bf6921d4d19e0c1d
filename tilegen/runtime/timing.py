"""Time per call, contenders side by side in one run, on a GPU in CUDA graphs with arguments from device
memory.

t = (stop - start) / (n·R): between two events, n replays of a graph that runs R argument sets once, in order.
All sets together exceed three times the L2 cache where that takes no more than SETS of them, so that a set's
weights and activations have left the cache when their turn comes again, as in a model of many layers. Where
even the most sets fit into the cache, a row says so (in_l2).
"""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tilegen.frontend.program import Program

L2_BYTES = 60_000_000
MEASUREMENT_S = 4e-3
SETS = (3, 24)  # at least, at most

Run = Callable[[], Any]
cuda: Any = torch.cuda  # parts of it carry no types


def set_count(set_bytes: int, free: int | None = None) -> int:
    """R = ⌈3·L2 / bytes of a set⌉, within SETS, and in no more than a quarter of the free bytes; at least
    1."""
    least, most = SETS
    wanted = min(most, max(least, math.ceil(3 * L2_BYTES / max(1, set_bytes))))
    return wanted if free is None else max(1, min(wanted, free // 4 // max(1, set_bytes)))


def fits_l2(set_bytes: int, sets: int) -> bool:
    """Whether all sets together stay in the L2 cache, so that no run reads device memory."""
    return set_bytes * sets < L2_BYTES


def replays(seconds: float) -> int:
    """n: as many runs of this length as fill a measurement, at least 3."""
    return max(3, math.ceil(MEASUREMENT_S / max(seconds, 1e-9)))


def paired(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of first / second, round by round: both of a round have the same clocks."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class Contender:
    """calls: one for each argument set, enqueueing work and giving the result. check: raises when an earlier
    run went wrong.

    launches: of a call, where that is known.
    """

    calls: tuple[Run, ...]
    captured: bool = True
    check: Run = lambda: None
    launches: int | None = None


def of_kernel(
    kernel: Any,
    program: Program,
    sets: Sequence[Sequence[torch.Tensor]],
    prepared: bool = True,
    out: Callable[[], Any] = lambda: None,
) -> Contender:
    """A kernel's call on each set. prepared: with its weights; out: gives the outputs of a call, by default
    new ones."""
    calls, kernels = [], []
    for arguments in sets:
        named = {t.name: a for t, a in zip(program.arguments, arguments, strict=True)}
        weights = {t.name: named.pop(t.name) for t in program.arguments if t.role == "weight" and prepared}
        kernels.append(kernel.prepare(**weights) if prepared else kernel)
        calls.append(partial(kernels[-1], *named.values(), out=out()))

    def check() -> None:
        for bound in dict.fromkeys(kernels):
            bound.check()

    return Contender(tuple(calls), check=check, launches=launch_count(kernel))


def launch_count(kernel: Any) -> int:
    """Of a call."""
    return len(getattr(kernel, "plans", ())) or 1


@dataclass(frozen=True)
class Runner:
    """A contender ready to be timed. run: all sets once. results: of each set; where they are captured, a run
    writes them anew.

    calls: held, since a graph keeps alive no memory but its pool's: outputs given, constants of the traced
    module, packed weights are the calls'.
    """

    run: Run
    check: Run
    captured: bool
    results: tuple[Any, ...] = ()
    calls: tuple[Run, ...] = ()
    launches: int | None = None


def ready(c: Contender) -> Runner:
    """Warm up; then, where that is asked for, capture on the stream that warmed up: what libraries set up per
    stream is there then."""
    usual = cuda.current_stream()
    stream = cuda.Stream() if c.captured else usual
    stream.wait_stream(usual)
    with cuda.stream(stream):
        _all(c.calls)
    cuda.synchronize()
    c.check()
    if not c.captured:
        return Runner(lambda: _all(c.calls), c.check, False, calls=c.calls, launches=c.launches)
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph, stream=stream):
            results = tuple(call() for call in c.calls)  # held, so that no later call gets their memory
    finally:
        cuda.set_stream(usual)  # a capture that fails leaves its own stream behind
    return Runner(graph.replay, c.check, True, results, c.calls, c.launches)


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


class ContenderDied(RuntimeError):
    """An error on the GPU while a contender ran; the process can hardly go on."""

    def __init__(self, variant: str, error: object):
        super().__init__(f"{variant}, while it was timed: {error}")
        self.variant = variant


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """An error on the GPU inside is reported with the contender that was running: CUDA itself does not
    tell."""
    try:
        yield
    except RuntimeError as error:
        raise ContenderDied(name, error) from error


def interleave(
    runs: Mapping[str, Run],
    counts: Mapping[str, int],
    seconds: Callable[[Run, int], float],
    rounds: int,
    before: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Seconds of one run in each round, A B C, B C A, C A B …: all contenders see the same clocks, and none
    always follows the same other.

    before: called ahead of each round.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for n in range(rounds):
        before(n)
        first = n % max(1, len(names))
        for name in names[first:] + names[:first]:
            with blamed(name):
                times[name].append(seconds(runs[name], counts[name]) / counts[name])
    return times


def spread(times: Sequence[float]) -> float:
    """(max - min) / median"""
    return (max(times) - min(times)) / statistics.median(times)


def nvidia_smi(field: str, meanwhile: Run = lambda: time.sleep(0.01)) -> str | None:
    """One field of nvidia-smi's query for the first GPU, or None where it cannot say. meanwhile: called until
    it has answered."""
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
