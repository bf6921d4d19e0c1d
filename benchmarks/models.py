"""Whole models under torch.compile(backend="tilegen") beside Inductor, each forward pass in a CUDA graph.

python -m benchmarks.models bert llama -o FILE --rounds 7        on this GPU; no name: all of them
python -m benchmarks.models --more -o FILE                    those that FILE has not yet

Configurations are those of the packages, weights random, nothing is fetched; decoders have four layers.
Eager, Inductor and tilegen take turns, round by round, and with transformers' models Inductor without masks
that hide nothing (inductor-flash); errors are against float32. A row: µs of all rounds in a CUDA graph; of
calls one after another (calls), where the host may be slower than the GPU; seconds to compile; regions. Each
side compiles with empty caches, but that with --max-autotune inductor-flash finds what Inductor has timed, so
its seconds are too few. With --choices FOLDER what Inductor has timed is kept there, so that the next call
goes on where one was ended, and no model has timed what another has; its seconds are those of all calls, less
what was timed for others. Each model has a process of its own; with --jobs several compile side by side, on
all GPUs, and are timed, one after another on each, when all are ready. While Inductor or cuDNN times its
choices it has its GPU's lock, so no other process's timing is beside it, but what others run while they
compile may be; cuDNN tries all its plans. A model that ends before, such as for want of its package, is a
note.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.choices import kept
from benchmarks.inductor import gpu_alone, inductor_times_alone
from benchmarks.zoo import MODELS, cast, first, named
from tilegen.backend.backend import tilegen
from tilegen.bench.environment import environment
from tilegen.bench.results import heading, save

DEVICE, READY = "cuda", "ready"
WARM_S = WINDOW_S = 0.2


def captured(
    run: Callable[..., Any], given: tuple[torch.Tensor, ...], lock: Path
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A call as a graph, and its results, which a replay writes again."""
    cudnn = torch.backends.cudnn
    with torch.no_grad():
        cudnn.benchmark = False
        run(*given)
        torch.cuda.synchronize()
        with gpu_alone(lock):
            cudnn.benchmark, cudnn.benchmark_limit = True, 0
            for _ in range(2):
                run(*given)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run(*given)
    return graph, results


def timed(call: Callable[[], Any]) -> float:
    """µs of a call, such as a graph's replay, on the GPU's clock, over WINDOW_S. Before it is timed it runs
    for WARM_S, for what came before, such as another side's idle host, leaves the GPU with more power to
    spend; at the power limit the clock goes up and down within tenths of a second."""
    begun, warm = time.perf_counter(), 0
    while time.perf_counter() - begun < WARM_S:
        call()
        torch.cuda.synchronize()
        warm += 1
    calls = max(20, round(warm * WINDOW_S / WARM_S))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


@contextlib.contextmanager
def masks_as_eager() -> Iterator[None]:
    """While torch traces, transformers' models make masks of what hides nothing or what a flag says, too, and
    none of torch's fast attentions takes such masks. Here they leave them out, as where nothing is traced."""
    from transformers import masking_utils

    with mock.patch.object(masking_utils, "is_tracing", lambda padding=None: padding is not None):
        yield


@dataclass(frozen=True)
class Side:
    """A way to run a model. during: what holds while it is traced and called."""

    label: str
    backend: Any = None
    during: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


EAGER, INDUCTOR, TILEGEN = Side("eager"), Side("inductor", "inductor"), Side("tilegen", tilegen)
FLASH = Side("inductor-flash", "inductor", masks_as_eager)


def sides(model: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[Side, ...]:
    """Those of a model. With a mask of the caller's, transformers looks at its values unless it traces."""
    masks = type(model).__module__.startswith("transformers.") and len(given) == 1
    return (EAGER, INDUCTOR, *([FLASH] if masks else []), TILEGEN)


@dataclass(frozen=True)
class Ready:
    """A model each way, each a graph and a call: rows that lack their times."""

    sides: list[Side]
    rows: list[dict[str, Any]]
    graphs: list[torch.cuda.CUDAGraph]
    calls: list[Callable[[], Any]]

    def timed(self, rounds: int) -> list[dict[str, Any]]:
        turns = [[*range(len(self.rows))], [*reversed(range(len(self.rows)))]]
        with torch.no_grad():
            for n in range(rounds):
                for k in turns[n % 2]:
                    self.rows[k]["us"].append(round(timed(self.graphs[k].replay), 2))
                for k in turns[n % 2]:
                    with self.sides[k].during():
                        self.rows[k]["calls"].append(round(timed(self.calls[k]), 2))
        return self.rows


def ready(name: str, batch: int, max_autotune: bool, lock: Path, choices: Path | None) -> Ready:
    """A model each way, compiled with empty caches, but for Inductor's choices of calls before."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    mode: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"} if max_autotune else {}
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model, given = MODELS[name](batch)
    model = model.eval()
    with torch.no_grad():
        exact = first(model(*given)).double().cpu()
    model = model.bfloat16()
    given = cast(given, torch.bfloat16)
    made = Ready([], [], [], [])
    with contextlib.ExitStack() as caches:
        for side in sides(model, given):
            counters.clear()
            if side is not FLASH or not max_autotune:
                caches.close()
                caches.enter_context(fresh_cache())
            keeps = kept(choices, f"{name}-{batch}") if choices and side is INDUCTOR else None
            begun = time.perf_counter()
            run = torch.compile(copy.copy(model), backend=side.backend, **mode) if side.backend else model
            with side.during(), keeps or contextlib.nullcontext(0.0) as before:
                graph, results = captured(run, given, lock)
            seconds = before + time.perf_counter() - begun
            if side.backend and not counters["stats"]["unique_graphs"]:
                continue  # a model without masks: the graph is Inductor's other one
            graph.replay()
            error = float((first(results).double().cpu() - exact).norm() / exact.norm())
            said = counters["tilegen"]
            left = sorted((k for k in said if k.startswith("left")), key=lambda k: -said[k])
            made.rows.append(
                {
                    **{"model": name, "batch": batch, "backend": side.label, "error": error},
                    **{"seconds": round(seconds, 1), "regions": said["regions"], "left": left[:5]},
                    **{"us": [], "calls": []},
                }
            )
            made.sides.append(side)
            made.graphs.append(graph)
            made.calls.append(functools.partial(run, *given))
    return made


# --- side by side, then one after another -------------------------------------------------------------------


def work(name: str, asked: argparse.Namespace) -> None:
    """In a process of its own: compile, say so, and measure when asked to."""
    inductor_times_alone(asked.lock)
    made = ready(name, asked.batch, asked.max_autotune, asked.lock, asked.choices)
    print(READY, flush=True)
    sys.stdin.readline()
    print(json.dumps(made.timed(asked.rounds)), flush=True)


def _visible(gpu: int) -> str:
    """As the driver numbers it: one of those that this process was given."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[gpu] if given else str(gpu)


class Worker:
    """A process with a model; it is ended when it is not ready after some seconds."""

    def __init__(self, name: str, gpu: int, arguments: Sequence[str], seconds: float, folder: Path):
        self.name, self.gpu, self.errors = name, gpu, folder / name
        self.late = ""  # why it was ended, where it was
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.models",
                    "--lock",
                    str(folder / f"gpu{gpu}"),
                    name,
                    *arguments,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": _visible(gpu),
                    "TILEGEN_CACHE_DIR": str(folder / f"{name}.cache"),
                },
            )
        self.limit = threading.Timer(seconds, self._give_up, [f"not ready in {seconds:.0f} s"])
        self.limit.start()

    def _give_up(self, why: str) -> None:
        self.late = why
        self.process.kill()

    def _line(self, wanted: Callable[[str], bool]) -> str:
        """The next line of the process that is wanted; empty where it ends before."""
        assert self.process.stdout is not None
        return next((line for line in self.process.stdout if wanted(line)), "")

    def is_ready(self) -> bool:
        found = self._line(lambda line: line.strip() == READY)
        self.limit.cancel()
        return bool(found)

    def rows(self) -> list[dict[str, Any]]:
        """Asked of one worker of a GPU at a time; none where it ends before."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; then there is no line, either
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        line = self._line(lambda line: line.startswith("[{"))
        self.process.kill()  # its end takes a second, and nothing is left to do
        self.process.wait()
        return json.loads(line) if line else []

    def why(self) -> str:
        """Why it gave no rows: it was late, or what it said last."""
        self.process.wait()
        return f"{self.name}: {self.late or f'ended: {self.errors.read_text().strip()[-300:]}'}"


class File:
    """A result file, written after each model, so that nothing is lost where time runs out. earlier: such a
    file, whose rows stay."""

    def __init__(self, out: Path | None, begun: dict[str, Any], earlier: Mapping[str, Any] | None = None):
        self.out = out
        self.begun = {**begun, "remarks": remarks_of(earlier) if earlier else []}
        self.rows: list[Any] = list(earlier["rows"]) if earlier else []
        self.notes: list[str] = list(earlier["notes"]) if earlier else []
        self.lock = threading.Lock()

    def measure(self, workers: Sequence[Worker]) -> None:
        """Those of one GPU, one after another."""
        for worker in workers:
            if found := worker.rows():
                self.take(found)
            else:
                self.note(worker.name, worker.why())

    def take(self, found: Sequence[dict[str, Any]]) -> None:
        with self.lock:
            self._forget(found[0]["model"])
            self.rows += found
            for row in found:
                _say(row)
            self._save()

    def note(self, name: str, text: str) -> None:
        """What became of a model, in place of what a file says of it."""
        with self.lock:
            self._forget(name)
            self.notes.append(text)
            print(text, flush=True)
            self._save()

    def _forget(self, name: str) -> None:
        self.notes = [n for n in self.notes if not n.startswith(f"{name}: ")]

    def _save(self) -> None:
        if self.out:
            save({**self.begun, "notes": self.notes, "rows": self.rows}, self.out)


def models_of(data: Mapping[str, Any]) -> list[str]:
    """Those that a result file has."""
    return list(dict.fromkeys(row["model"] for row in data["rows"]))


def remarks_of(earlier: Mapping[str, Any]) -> list[str]:
    """Which models a file had before others were measured, and how."""
    told = [r.partition(" by `")[0].split(", ") for r in earlier["remarks"]]
    own = [name for name in models_of(earlier) if all(name not in names for names in told)]
    when = f"commit {earlier['commit']}, {earlier['date'][:16]}"
    return [*earlier["remarks"], *([f"{', '.join(own)} by `{earlier['run']}` ({when})"] if own else [])]


def command(name: str, *files: Path | None) -> str:
    """As it was given, without the folders of its files."""
    names = {str(f): f.name for f in files if f}
    return " ".join([name, *(names.get(a, a) for a in sys.argv[1:])])


def _say(row: dict[str, Any]) -> None:
    us, calls = (statistics.median(row[what]) for what in ("us", "calls"))
    print(f"{row['model']:13} {row['backend']:14} {us:9.1f} us, {calls:9.1f} called", end=", ")
    print(f"error {row['error']:.1e}", end=", ")
    print(f"{row['seconds']} s to compile, {row['regions']} regions", flush=True)
    for word in row["left"]:
        print(f"    {word}")


def main() -> None:
    p = argparse.ArgumentParser(
        "models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", type=named, metavar="MODEL", help=", ".join(MODELS))
    p.add_argument("-o", "--out", type=Path)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--jobs", type=int, default=1, help="so many compile side by side")
    p.add_argument("--max-autotune", action="store_true", help="Inductor's best beside it: minutes a model")
    p.add_argument("--choices", type=Path, help="a folder of what Inductor has timed, to go on from")
    p.add_argument("--seconds", type=float, default=600, help="a model is given up that is not ready by then")
    p.add_argument("--more", action="store_true", help="rows that the result file has stay, their models too")
    p.add_argument("--lock", type=Path, help=argparse.SUPPRESS)  # of a worker
    asked = p.parse_args()
    if asked.more and not asked.out:
        p.error("--more: of which result file? give -o FILE")
    names = asked.models or list(MODELS)
    if asked.lock:
        work(names[0], asked)
        return
    how = ["--batch", str(asked.batch), "--rounds", str(asked.rounds)]
    how += ["--max-autotune"] if asked.max_autotune else []
    how += ["--choices", str(asked.choices)] if asked.choices else []
    gpus = torch.cuda.device_count()
    earlier = json.loads(asked.out.read_text()) if asked.more and asked.out.exists() else None
    if earlier:
        if unlike := {row["batch"] for row in earlier["rows"]} - {asked.batch}:
            p.error(f"--more: {asked.out} is of batch {', '.join(map(str, unlike))}, asked is {asked.batch}")
        names = [name for name in names if name not in models_of(earlier)]
    ran = command("python -m benchmarks.models", asked.out, asked.choices)
    file = File(asked.out, heading(ran, environment()), earlier)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        for k in range(0, len(names), asked.jobs):
            workers = [
                Worker(name, n % gpus, how, asked.seconds, Path(folder))
                for n, name in enumerate(names[k : k + asked.jobs])
            ]
            known = list(pool.map(Worker.is_ready, workers))
            ready = [w for w, is_ready in zip(workers, known, strict=True) if is_ready]
            for worker in workers:
                if worker not in ready:
                    file.note(worker.name, worker.why())
            list(pool.map(file.measure, ([w for w in ready if w.gpu == gpu] for gpu in range(gpus))))


if __name__ == "__main__":
    main()
