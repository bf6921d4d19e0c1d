"""The command line: the same verbs as the Python API. Imports neither torch nor SymPy until a verb needs
them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilegen import __version__
from tilegen.config import write_whole
from tilegen.errors import TilegenError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 when a check fails; 2 for bad input."""
    options = parser().parse_args(arguments)
    try:
        return int(options.verb(options))
    except TilegenError as error:
        print(f"tilegen: {type(error).__name__}: {error}", file=sys.stderr)
        return 1 if type(error).__name__ in ("ProofError", "RaceError", "DeadlockError", "HangError") else 2
    except BrokenPipeError:
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tilegen: {where}{error.strerror or error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        "tilegen", description="Tiles of dependent operations side by side in one kernel, derived and proved."
    )
    p.add_argument("--version", action="version", version=f"tilegen {__version__}")
    verbs = p.add_subparsers(dest="command", required=True, metavar="VERB")

    def verb(name: str, run: Callable[[Any], int], text: str, spec: bool = True) -> argparse.ArgumentParser:
        v = verbs.add_parser(name, help=text, description=text)
        v.set_defaults(verb=run)
        if spec:
            _spec_arguments(v)
        v.add_argument("--json", action="store_true", help="print JSON")
        return v

    def target(v: argparse.ArgumentParser, auto: str) -> None:
        words = f"auto ({auto}), sm_90a, sm_80, cpu, interpret or cuda-emulated; cuda: the best for this GPU"
        v.add_argument("--target", default="auto", help=words)

    of_plan = "that of --machine; cpu and interpret run plans made for any"
    v = verb(
        "explain",
        explain,
        "every dependence and policy as a formula, with the reason for the choice; -s M=? leaves M open,"
        " -s M=1..512 lets it move; of a function that gives a model and a call's arguments: which regions of"
        ' it torch.compile(backend="tilegen") takes',
    )
    target(v, of_plan)
    v = verb("plan", plan, "the plan: tiles, semaphores, order")
    target(v, of_plan)
    v.add_argument(
        "--svg", metavar="FILE", help="also draw the simulated timeline: a row per SM, a bar per tile"
    )
    v.add_argument(
        "--expand",
        action="store_true",
        help="with every tile's reads, waits, writes and posts (docs/plan-format.md)",
    )
    v = verb(
        "verify",
        verify,
        "check a plan file, or the plan of a spec, by code that shares nothing with the planner",
    )
    target(v, of_plan)
    v = verb(
        "generate", generate, "write source, plan, proof and all that a launch needs, on and for any machine"
    )
    target(v, "the best of --machine, else what `run` would take")
    v.add_argument(
        "--lowering",
        default="auto",
        help="auto, persistent (one launch of all ops), multi_launch (one for each)",
    )
    v.add_argument(
        "--programmatic",
        action="store_true",
        help="multi_launch: launches may start while the one before ends",
    )
    v.add_argument("-o", "--out", default="generated", help="folder (default: generated)")
    v = verb(
        "run", run, "plan, prove, compile and run on random data; error against float32 torch, and times"
    )
    target(v, "the GPU if there is one, else cpu")
    v.add_argument("--repeat", type=int, default=3, help="timed runs (default: 3)")
    v.add_argument(
        "--race",
        type=int,
        nargs="?",
        const=24,
        metavar="RUNS",
        help="with --target cuda-emulated: so many runs (default: 24), each interleaved in another way, every"
        " access checked for its order",
    )
    v = verb(
        "compare",
        compare,
        "error and time beside torch in one interleaved run; sizes may be lists: -s M=1,16,64",
    )
    target(v, "the GPU if there is one, else cpu")
    v.add_argument("--only", default="", metavar="eager,tilegen", help="these contenders alone")
    v.add_argument(
        "--no-inductor", action="store_true", help="without torch.compile, which takes up to a minute a size"
    )
    v.add_argument(
        "--rounds", type=int, default=None, help="interleaved rounds (default: 9 on a GPU, else 5)"
    )
    v.add_argument("-o", "--out", help="also write the result file here, anew after each size")
    v.add_argument("--svg", metavar="FILE", help="also draw a bar chart")
    v = verb(
        "trace",
        trace,
        "where the time of a launch goes, tile by tile, from inside the kernel; what each dependence cost",
    )
    v.add_argument(
        "-o", "--out", metavar="FILE.json", help="also write all tiles for Perfetto or chrome://tracing"
    )
    v.add_argument(
        "--svg", metavar="FILE", help="also draw it, measured above simulated: a row per SM, a bar per tile"
    )
    target(v, "the GPU, which must be a Hopper GPU")
    v.add_argument("--simulate", action="store_true", help="on the machine's model alone, which needs no GPU")
    v = verb(
        "tune",
        tune,
        "time the best few plans on the GPU and remember the fastest; `compile` then uses it; sizes may be"
        " lists",
    )
    target(v, "the GPU")
    v.add_argument("--seconds", type=float, default=60.0, help="for each size (default: 60)")
    v.add_argument(
        "-o", "--out", help="file of choices to write into (default: tuned.json in the cache folder)"
    )
    verb("info", info, "versions, compiler, threads, cache and knobs", spec=False)
    v = verb("cache", cache, "list or clear the cache of plans and binaries", spec=False)
    v.add_argument("action", choices=("ls", "clear"))
    return p


def _spec_arguments(v: argparse.ArgumentParser) -> None:
    v.add_argument(
        "spec", metavar="SPEC.py[:name]", help="file of a @tg.spec function (verify: or a plan's JSON)"
    )
    v.add_argument(
        "-s", "--size", action="append", default=[], metavar="M=512", help="a parameter of the spec"
    )
    v.add_argument("--tile", action="append", default=[], metavar="up=128x256", help="tile of an op")
    v.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="'up->down=row'",
        help="kernel, row, column, class, step, tile or chunk:N, per edge or tensor",
    )
    v.add_argument(
        "--split-k",
        action="append",
        default=[],
        metavar="up=2",
        help="split a linear's sum over K (partial tensors)",
    )
    v.add_argument(
        "--split-kv",
        action="append",
        default=[],
        metavar="attn=4",
        help="split the keys of an attention over caches (partial tensors)",
    )
    v.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="up=2:m",
        help="run an op's tiles by clusters of CTAs that split K, M or N between them",
    )
    v.add_argument(
        "--pingpong",
        action="append",
        default=[],
        metavar="up",
        help="compute an op's tiles by the two math warpgroups in turn",
    )
    v.add_argument("--order", default="auto", help="auto, op_major, op_major:GROUP, banded:N or banded:N:LAG")
    v.add_argument("--scheduling", default="auto", help="auto, dynamic, static or lists")
    v.add_argument(
        "--norms",
        default="auto",
        help="auto, separate (each norm an op of its own) or fused (into the linears that read it)",
    )
    v.add_argument(
        "--appends",
        default="auto",
        help=(
            "auto, awaited (by the attention that reads their caches) or forwarded"
            " (to it, as rows of their own)"
        ),
    )
    v.add_argument(
        "--machine",
        help="to plan for: cpu, cpu:N (threads), a GPU such as h200 (tilegen info), a number of SMs",
    )
    v.add_argument("--threads", type=int, default=None, help="worker threads of the CPU target")


def _options(o: argparse.Namespace) -> Any:
    from tilegen.errors import PlanError
    from tilegen.options import Options

    def pairs(flag: str, items: Sequence[str], parse: Callable[[str], Any]) -> dict[str, Any]:
        found = {}
        for item in items:
            name, equals, value = item.rpartition("=")
            try:
                if not equals or not name:
                    raise ValueError
                found[name] = parse(value)
            except ValueError:
                raise PlanError(f"{flag} {item}: expected NAME=VALUE, see --help") from None
        return found

    return Options.of(
        tiles=pairs("--tile", o.tile, lambda v: tuple(int(n) for n in v.split("x"))),
        policies=pairs("--policy", o.policy, str),
        split_k=pairs("--split-k", o.split_k, int),
        split_kv=pairs("--split-kv", o.split_kv, int),
        cluster=pairs("--cluster", o.cluster, str),
        pingpong=dict.fromkeys(o.pingpong, True),
        order=o.order,
        scheduling=o.scheduling,
        norms=o.norms,
        appends=o.appends,
    )


class Progress:
    """One line on stderr, rewritten, for whatever takes over a second; nothing when stderr is no terminal and
    the work is short."""

    def __init__(self) -> None:
        self.start, self.shown, self.last = time.monotonic(), 0, 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self.start < 1.0 or (not sys.stderr.isatty() and now - self.last < 1.0):
            return
        self.last = now
        line = f"[{now - self.start:5.1f} s] {text}"[:118]
        print(
            f"\r{line:<{self.shown}}" if sys.stderr.isatty() else line,
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )
        self.shown = len(line)

    def done(self) -> None:
        if self.shown and sys.stderr.isatty():
            print("\r" + " " * self.shown + "\r", end="", file=sys.stderr, flush=True)


def _program(o: argparse.Namespace) -> Any:
    from tilegen.frontend.loader import load_program

    return load_program(o.spec, o.size)


def _plan(o: argparse.Namespace) -> Any:
    from tilegen import api

    progress = Progress()
    made = api.plan(_program(o), o.machine or "cpu", _options(o), progress, target=_target(o))
    progress.done()
    return made


def _target(o: argparse.Namespace) -> str:
    """The target that a plan is asked for; that of the machine where the verb's own says where it is
    measured."""
    return str(o.target) if o.verb in (plan, verify) else "auto"


def _print(data: Any) -> None:
    print(json.dumps(data, ensure_ascii=False))


def explain(o: argparse.Namespace) -> int:
    from tilegen import api
    from tilegen.frontend.loader import load_model

    model = load_model(o.spec)
    if model is not None:
        text = _explained(model, o)
    else:
        text = api.explain(_program(o), o.machine or "cpu", _options(o), target=o.target)
    if o.json:
        _print({"text": text.splitlines()})
    else:
        print(text)
    return 0


def _explained(model: Callable[[], Any], o: argparse.Namespace) -> str:
    """A model under torch.compile, whose sizes and options are its own."""
    from tilegen.backend.explain import explain_model
    from tilegen.errors import SpecError
    from tilegen.frontend.loader import failed
    from tilegen.options import Options

    machine = o.machine or ""
    if o.size or _options(o) != Options() or o.target != "auto" or machine.startswith("cpu"):
        raise SpecError(
            f"{o.spec} is a model: --machine alone stands beside it, the GPU by which regions are judged"
        )
    try:
        return explain_model(model, machine)
    except TilegenError:
        raise
    except Exception as error:
        raise failed(o.spec.partition(":")[0], error) from error


def plan(o: argparse.Namespace) -> int:
    from tilegen.schedule.expand import expanded
    from tilegen.schedule.moving import MovingPlan
    from tilegen.schedule.simulate import simulate

    made = _plan(o)
    if isinstance(made, MovingPlan):
        return _plan_moving(o, made)
    if o.svg:
        from tilegen.tools.svg import svg
        from tilegen.tools.trace import Trace

        write_whole(Path(o.svg), svg([(made.program, Trace.simulated(made))]))
    if o.json or o.expand:
        _print(expanded(made) if o.expand else made.to_json())
        return 0
    print(
        f"{made.program} on {made.machine.name}: {made.order.count} tiles, {len(made.targets)} semaphores,"
        f" order {made.order.name}, plan {made.digest}"
    )
    for m in made.semaphores:
        print(f"  {m.tensor}: policy {dict(made.policies)[m.tensor]}, {m.count} semaphores")
    print(simulate(made).text())
    return 0


def _plan_moving(o: argparse.Namespace, made: Any) -> int:
    """A plan in which a size moves: counts as formulas; --json has the plan at the largest size."""
    from tilegen.analysis.regions import pretty

    if o.expand or o.svg:
        name = made.dim.name
        raise TilegenError(f"{name} moves: --expand and --svg show one size; give -s {name}=N")
    if o.json:
        _print({"moves": {made.dim.name: [1, made.dim.most]}, "largest": made.most.to_json()})
        return 0
    print(made)
    for m in made.open.semaphores:
        print(f"  {m.tensor}: policy {dict(made.open.policies)[m.tensor]}, {pretty(m.count)} semaphores")
    return 0


def verify(o: argparse.Namespace) -> int:
    from tilegen.runtime.verify import certify, load_json

    is_plan = o.spec.endswith(".json")
    certificate = certify(load_json(o.spec) if is_plan else _plan(o))
    if o.json:
        _print(certificate.to_dict())
    else:
        print(certificate.text())
    return 0 if certificate.ok else 1


def generate(o: argparse.Namespace) -> int:
    from tilegen.kernels.generate import generate as generated

    program, progress = _program(o), Progress()
    how = {"lowering": o.lowering, "programmatic": o.programmatic, "progress": progress}
    made = generated(program, o.target, o.machine, _options(o), **how)
    out = made.export(o.out)
    progress.done()
    files = sorted(made.files())
    if o.json:
        facts = {"target": made.target, "architecture": made.architecture, "machine": made.machine.name}
        _print({"folder": str(out), "files": files, **facts, "cubin": made.has_cubin, "remark": made.remark})
        return 0
    compiled = f", compiled for {made.architecture}" if made.has_cubin else ""
    print(
        f"{program.name} for target {made.target}, planned for"
        f" {made.machine.name}{compiled}{_why(o, made.target)}"
    )
    print(f"{out}: {', '.join(files)}")
    if made.remark:
        print(made.remark)
    return 0


def _why(o: argparse.Namespace, found: str) -> str:
    """What chose the target, where --target did not name it."""
    if o.target not in ("auto", "cuda"):
        return ""
    if o.machine:
        return " (the best of that machine)"
    if found == "cpu":
        return " (what `run` takes on this machine; --target sm_90a or sm_80 writes CUDA)"
    return " (what `run` takes on this GPU)"


def run(o: argparse.Namespace) -> int:
    import torch

    from tilegen import api
    from tilegen.bench.accuracy import error_kind, error_of
    from tilegen.kernels.empty import EmptyKernel
    from tilegen.kernels.gpu_kernel import GpuKernel
    from tilegen.kernels.moving import MovingKernel
    from tilegen.runtime.data import random_arguments

    program, progress = _program(o), Progress()
    kernel = api.compile(
        program, o.target, on=o.machine, options=_options(o), threads=o.threads, progress=progress
    )
    if isinstance(kernel, EmptyKernel):
        progress.done()
        print(kernel.explain())
        return 0
    if isinstance(kernel, MovingKernel):  # at the largest size
        kernel = kernel.at(kernel.dim.most)
        assert kernel.program is not None
        program = kernel.program
    progress("random data")
    arguments = random_arguments(program)
    progress("float32 reference")
    expected = api.reference(program, *arguments)
    if isinstance(kernel, GpuKernel):
        arguments = [a.cuda() for a in arguments]
    times = []
    result = None
    for n in range(max(1, o.repeat)):
        progress(f"run {n + 1}")
        start = time.perf_counter()
        result = kernel(*arguments)
        if isinstance(kernel, GpuKernel):
            kernel.check()
        times.append(time.perf_counter() - start)
    if o.race:
        _check_races(kernel, program, o.race, progress)
    progress.done()
    if result is None:  # only states are written
        result = tuple(a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state")
    error = error_of(tuple(r.cpu() for r in (result if isinstance(result, tuple) else (result,))), expected)
    ok = error <= (1e-2 if any(t.dtype in ("bfloat16", "float16") for t in program.tensors) else 1e-4)
    report = {
        "program": program.name,
        "target": kernel.target,
        "machine": kernel.plan.machine.name,
        "workers": kernel.workers,
        "threads": torch.get_num_threads(),
        "error": error,
        "ok": ok,
        "us": [round(1e6 * t, 1) for t in times],
        "workspace_bytes": kernel.workspace_bytes,
        "proved": kernel.proof.ok,
    }
    if o.json:
        _print(report)
    else:
        print(kernel.explain())
        print(
            f"\nran on target {kernel.target} with {kernel.workers} workers, {kernel.workspace_bytes:,} bytes"
            " of workspace"
        )
        print(
            f"error against float32 torch: {error:.2e} ({error_kind(expected)}){'' if ok else '  TOO LARGE'}"
        )
        print(f"times: {', '.join(f'{1e3 * t:.2f} ms' for t in times)}")
        if o.race:
            print(f"{o.race} runs, each interleaved in another way: all accesses ordered, the same bits")
    return 0 if ok else 1


def _check_races(kernel: Any, program: Any, runs: int, progress: Progress) -> None:
    from tilegen.errors import TargetError
    from tilegen.runtime.data import random_arguments
    from tilegen.targets.emulated.library import EmulatedLibrary
    from tilegen.targets.emulated.races import check_races

    library = kernel._library
    if not isinstance(library, EmulatedLibrary):
        raise TargetError(f"--race checks target cuda-emulated, the target is {kernel.target}")

    def run() -> list[Any]:
        arguments = random_arguments(program)
        result = kernel(*arguments)
        states = [a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state"]
        return [*(result if isinstance(result, tuple) else () if result is None else (result,)), *states]

    check_races(library, run, runs, progress)


def compare(o: argparse.Namespace) -> int:
    from tilegen.bench.compare import INDUCTOR, failed, own_variants, result_file, save, table
    from tilegen.bench.contest import contest
    from tilegen.errors import SpecError
    from tilegen.frontend.dims import dims_of
    from tilegen.frontend.loader import load_moving, load_program

    progress, options = Progress(), _options(o)
    without = INDUCTOR if o.no_inductor else ()
    ladder = contest(o.target, o.only, without, rounds=o.rounds, threads=o.threads, progress=progress)
    cells, data = [], {}
    for program, moving in [(load_program(o.spec, s), load_moving(o.spec, s)) for s in _grid(o.size)]:
        if dims_of(program):
            raise SpecError(f"{program.name}: compare measures sizes; give some, as in -s M=1,64,300")
        cells.append(ladder.measure(program, own_variants(program, options, moving), moving))
        data = result_file(cells, "compare " + " ".join([Path(o.spec).name, *o.size]), ladder.environment)
        if o.out:
            save(data, Path(o.out))
    progress.done()
    if o.svg:
        from tilegen.bench.chart import chart

        write_whole(Path(o.svg), chart([r for c in cells for r in c.rows]))
    if o.json:
        _print(data)
    else:
        print(table(cells))
    return 1 if failed(cells) else 0


def trace(o: argparse.Namespace) -> int:
    from tilegen.tools.trace import Trace
    from tilegen.tools.trace_export import chrome, lost, lost_text

    found = {} if o.simulate else {"measured": _measured(o)}
    plan = _plan(o) if o.simulate else found["measured"].plan
    if o.simulate or o.svg:
        found["simulated"] = Trace.simulated(plan)
    first = next(iter(found.values()))
    if o.out:
        write_whole(Path(o.out), json.dumps(chrome(first)))
    if o.svg:
        from tilegen.tools.svg import svg

        write_whole(Path(o.svg), svg([(f"{plan.program}, {how}", t) for how, t in found.items()]))
    if o.json:
        edges = {
            r.edge: {"tiles": r.tiles, "sum_us": r.sum_us, "max_us": r.max_us, "worst": r.worst}
            for r in lost(first)
        }
        _print(
            {
                "program": plan.program,
                "how": next(iter(found)),
                "us": first.makespan,
                "busy": first.busy,
                "edges": edges,
            }
        )
    else:
        print(f"{first.text()}\n\n{lost_text(first)}")
    return 0


def _measured(o: argparse.Namespace) -> Any:
    """The trace of a launch on random data."""
    from tilegen import api
    from tilegen.runtime.data import random_arguments
    from tilegen.targets.select import on_a_gpu

    program, progress = _program(o), Progress()
    target = on_a_gpu("trace", o.target, "; --simulate shows the plan's simulation instead")
    kernel: Any = api.compile(
        program, target, on=o.machine, options=_options(o), lowering="persistent", progress=progress
    )
    made = kernel.trace(*(a.cuda() for a in random_arguments(program)))
    progress.done()
    return made


def tune(o: argparse.Namespace) -> int:
    from tilegen.errors import PlanError
    from tilegen.frontend.loader import load_program
    from tilegen.kernels.tuning import tune as measure
    from tilegen.runtime.tuned import remember
    from tilegen.targets.base import known
    from tilegen.targets.select import on_a_gpu, place

    if not o.seconds > 0:
        raise PlanError(f"--seconds {o.seconds:g}: expected more than 0")
    target = on_a_gpu("tune", o.target)
    on, progress, found = place(target=target), Progress(), []
    for sizes in _grid(o.size):
        program = load_program(o.spec, sizes)
        best, times = measure(program, on, known()[target], o.seconds, progress)
        path = remember(program, on.label, best, Path(o.out) if o.out else None)
        progress.done()
        found.append({**best.to_json(), "times": times})
        if not o.json:
            print(
                f"{program.name} {' '.join(sizes)}: {best.us:.1f} µs, the fastest of {best.tried}; kept in"
                f" {path}"
            )
            for name, us in times.items():
                print(f"  {us:9.1f} µs  {name}")
    if o.json:
        _print(found)
    return 0


def _grid(sizes: Sequence[str]) -> list[list[str]]:
    """M=1,16 H=64 -> [[M=1, H=64], [M=16, H=64]]"""
    rows: list[list[str]] = [[]]
    for item in sizes:
        name, _, values = item.partition("=")
        rows = [[*r, f"{name}={v}"] for r in rows for v in values.split(",")]
    return rows


def info(o: argparse.Namespace) -> int:
    import importlib.metadata
    import os
    import platform
    from dataclasses import asdict

    import tilegen
    from tilegen.arch.gpus import GPUS
    from tilegen.config import KNOBS, cache_dir
    from tilegen.errors import CompileError
    from tilegen.runtime.cxx import compiler, version
    from tilegen.targets.select import TARGETS, best_here

    try:
        found = version(compiler())
    except CompileError as error:
        found = f"none: {error}"
    versions = {}
    for name in ("torch", "sympy", "jinja2", "numpy", "cuda-python"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    data = {
        "tilegen": tilegen.__version__,
        "python": platform.python_version(),
        **versions,
        "compiler": found,
        "threads": len(os.sched_getaffinity(0)),
        "cache": str(cache_dir()),
        "targets": list(TARGETS[1:]),
        "auto": best_here(),
        "machines": {name: asdict(gpu) for name, gpu in GPUS.items()},
        "knobs": {k: os.environ.get(k, "") for k in KNOBS},
    }
    if o.json:
        _print(data)
    else:
        for key, value in data.items():
            if key not in ("knobs", "machines"):
                print(f"{key:<12}{', '.join(value) if isinstance(value, list) else value}")
        print("machines    cpu, cpu:N (N threads), a number N (N SMs of an H200), and")
        for name, gpu in GPUS.items():
            print(f"            {name:<11}{gpu.text}")
        for key, text in KNOBS.items():
            print(f"{key}={os.environ.get(key, '')}\n            {text}")
    return 0


def cache(o: argparse.Namespace) -> int:
    from tilegen.runtime import cache as store

    if o.action == "clear":
        count = store.clear()
        _print({"removed": count}) if o.json else print(f"removed {count} entries")
        return 0
    rows = store.entries()
    if o.json:
        _print([{"level": level, "key": key, "bytes": size, "note": note} for level, key, size, note in rows])
    else:
        for level, key, size, note in rows:
            print(f"{level:<10}{key}  {size:>10,}  {note}")
        print(f"{len(rows)} entries, {sum(r[2] for r in rows):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
