"""Memory order under stress: variants of the kernels that sleep for random times at waits, posts and between
products must give the same bits, always.

python -m benchmarks.stress [LAUNCHES [WORD]]: at least that many launches (default 100,000) over the cases of
tests/gpu/gemms.py, plain and packed, at several sizes, and of tests/gpu/ops.py, or those of them whose names
hold a word. A pool of processes compiles them first. Outputs, intermediates and the rows of caches that the
launch appends are NaN before each launch, and each result is compared on the GPU, bit for bit, with the
kernel's that does not sleep. (Not poisoned, they would hold what the launch before left there: the right
values.) Prints one line a shape; status 1 on any difference.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch

import tilegen as tg
from benchmarks.precompile import alone, compile_kernels, plans_of
from tests.gpu.gemms import CASES, Case
from tests.gpu.ops import NORMED, OPS
from tilegen.bench.contenders import Way
from tilegen.frontend.program import Program
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.options import Options
from tilegen.runtime.data import random_arguments
from tilegen.targets.sm90.library import HopperLibrary


@cache
def shapes() -> list[tuple[Case, bool]]:
    """(case, packed) of every chain of GeMMs at its own size and at two others, and of all other ops'
    cases."""
    found = [(case, False) for case in OPS] + [(case, True) for case in NORMED]
    for case in CASES:
        for rows in (None, 5, 77):
            made = (
                case
                if rows is None
                else dataclasses.replace(
                    case, name=f"{case.name}, M = {rows}", sizes={**case.sizes, "M": rows}
                )
            )
            found += [(made, False), *([(made, True)] if case.packed else [])]
    return found


def compile_shape(n: int) -> None:
    """Both kernels of the nth shape, into the cache that `stress` reads; needs no GPU."""
    case, packed = shapes()[n]
    options, way = Options.of(**case.options), Way(lowering="persistent", prepared=packed)
    compile_kernels(case.program, options, way, None)
    (plan,) = plans_of(case.program, options, way)
    weights = frozenset(t.name for t in case.program.arguments if packed and t.role == "weight")
    HopperLibrary(plan, weights, "jitter")


def compile_shapes(word: str, jobs: int) -> None:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=alone) as pool:
        wanted = [n for n, (case, _) in enumerate(shapes()) if word in case.name]
        for done in [pool.submit(compile_shape, n) for n in wanted]:
            done.result()


def appended(program: Program, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The rows of the states that a launch writes: the last ones, since random_arguments gives the last
    position."""
    position = next((int(a) for a in arguments if a.dtype == torch.int32 and a.numel() == 1), 0)
    return [a[:, position:] for t, a in zip(program.arguments, arguments, strict=True) if t.role == "state"]


def stress(case: Case, packed: bool, launches: int) -> int:
    """Launches whose result differs from the kernel's that does not sleep."""
    arguments = [a.cuda() for a in random_arguments(case.program)]
    kernel = tg.compile(case.program, "cuda", lowering="persistent", **case.options)
    assert isinstance(kernel, CudaKernel)
    weights = {
        t.name: a
        for t, a in zip(case.program.arguments, arguments, strict=True)
        if packed and t.role == "weight"
    }
    given = [a for t, a in zip(case.program.arguments, arguments, strict=True) if t.name not in weights]
    still = kernel.prepare(**weights) if packed else kernel
    library = HopperLibrary(kernel.plan, frozenset(weights), "jitter")
    jittery = CudaKernel(kernel.plan, kernel.proof, library, False, weights)
    rows = appended(case.program, arguments)
    result = still(*given)
    outputs = result if isinstance(result, tuple) else (result,)
    outs = [torch.empty_like(t) for t in outputs]
    want = [*outputs, *(t.clone() for t in rows)]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(launches):
        for t in rows:
            t.fill_(float("nan"))
        jittery(*given, out=outs if len(outs) > 1 else outs[0])
        wrong += torch.stack([(out != t).any() for out, t in zip([*outs, *rows], want, strict=True)]).any()
    jittery.check()
    return int(wrong)


def main(arguments: list[str]) -> int:
    os.environ["TILEGEN_POISON"] = "1"
    total: Any = int(arguments[0]) if arguments else 100_000
    word = arguments[1] if len(arguments) > 1 else ""
    cases, failed = [shape for shape in shapes() if word in shape[0].name], 0
    each = -(-total // len(cases))
    compile_shapes(word, max(1, (os.cpu_count() or 2) - 1))
    for case, packed in cases:
        wrong = stress(case, packed, each)
        failed += wrong > 0
        print(
            f"{case.name:<44}{'packed' if packed else 'plain':<8}{each:>7} launches{wrong:>7} wrong",
            flush=True,
        )
    print(f"{len(cases)} shapes, {each * len(cases):,} launches, {failed} shapes wrong")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
