"""A program planned, proved, compiled and run on random data."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tilegen.cli.given import Progress, options_of, print_json, program_of


def run(o: argparse.Namespace) -> int:
    from tilegen import api
    from tilegen.bench.accuracy import error_kind
    from tilegen.kernels.empty import EmptyKernel
    from tilegen.kernels.gpu_kernel import GpuKernel
    from tilegen.kernels.moving import MovingKernel
    from tilegen.runtime.data import random_arguments

    program, progress = program_of(o), Progress()
    kernel = api.compile(
        program, o.target, on=o.machine, options=options_of(o), threads=o.threads, progress=progress
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
    result, seconds = _timed(kernel, arguments, max(1, o.repeat), progress)
    if o.race:
        _check_races(kernel, program, o.race, progress)
    progress.done()
    if result is None:  # only states are written
        result = _states(program, arguments)
    report = _report(kernel, program, result, expected, seconds)
    if o.json:
        print_json(report)
    else:
        _print_report(kernel, report, error_kind(expected), o.race)
    return 0 if report["ok"] else 1


def _timed(
    kernel: Any, arguments: Sequence[Any], runs: int, progress: Progress
) -> tuple[Any, tuple[float, ...]]:
    """The last run's result, and seconds of each, the host's among them."""
    from tilegen.kernels.gpu_kernel import GpuKernel

    result, seconds = None, []
    for n in range(runs):
        progress(f"run {n + 1}")
        start = time.perf_counter()
        result = kernel(*arguments)
        if isinstance(kernel, GpuKernel):
            kernel.check()
        seconds.append(time.perf_counter() - start)
    return result, tuple(seconds)


def _report(
    kernel: Any, program: Any, result: Any, expected: Any, seconds: Sequence[float]
) -> dict[str, Any]:
    import torch

    from tilegen.bench.accuracy import error_of

    error = error_of(tuple(r.cpu() for r in (result if isinstance(result, tuple) else (result,))), expected)
    ok = error <= (1e-2 if any(t.dtype in ("bfloat16", "float16") for t in program.tensors) else 1e-4)
    return {
        "program": program.name,
        "target": kernel.target,
        "machine": kernel.plan.machine.name,
        "workers": kernel.workers,
        "threads": torch.get_num_threads(),
        "error": error,
        "ok": ok,
        "us": [round(1e6 * t, 1) for t in seconds],
        "workspace_bytes": kernel.workspace_bytes,
        "proved": kernel.proof.ok,
    }


def _print_report(kernel: Any, report: Mapping[str, Any], kind: str, races: int | None) -> None:
    """kind: of error; races: how many runs were looked at for them."""
    print(kernel.explain())
    print(
        f"\nran on target {report['target']} with {report['workers']} workers,"
        f" {report['workspace_bytes']:,} bytes of workspace"
    )
    large = "" if report["ok"] else "  TOO LARGE"
    print(f"error against float32 torch: {report['error']:.2e} ({kind}){large}")
    print(f"times: {', '.join(f'{us / 1e3:.2f} ms' for us in report['us'])}")
    if races:
        print(f"{races} runs, each interleaved in another way: all accesses ordered, the same bits")


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
        written = result if isinstance(result, tuple) else () if result is None else (result,)
        return [*written, *_states(program, arguments)]

    check_races(library, run, runs, progress)


def _states(program: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state")
