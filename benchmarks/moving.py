"""One kernel for every size beside the kernel that is compiled for the size, on this GPU.

python -m benchmarks.moving [DIR] [PROGRAM …]

GPT-3's and LLaMA's feed-forward blocks at 40 numbers of rows from 1 to 4,096: powers of two, the same plus
one, and others drawn by a seed; a layer of Llama-3-8B that decodes a token, at batches up to 64. Weights
are prepared, both kernels captured in CUDA graphs, tensors rotate, rounds are interleaved. Where both have
the same tiles they read the same packed copies: where a copy stands in memory moves a time by up to 3 %. So
all is timed with copies in PLACEMENTS places, and a ratio is the median over the rounds of all.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from benchmarks.precompile import alone, compile_kernels, gpu_here
from benchmarks.workloads import tag
from tilegen.arch.machine import H200, Machine
from tilegen.bench.contenders import Way
from tilegen.bench.environment import environment
from tilegen.bench.results import heading, save
from tilegen.frontend.loader import load_program
from tilegen.options import Options
from tilegen.runtime import timing
from tilegen.runtime.request import chosen_regimes
from tilegen.targets.select import place

ROOT = Path(__file__).resolve().parent
SETS, LAUNCHES, ROUNDS, COUNT, PLACEMENTS = 4, 12, 15, 40, 2
CACHED = 512  # tokens


@dataclass(frozen=True)
class Study:
    """A program, what moves in it, and up to where."""

    name: str
    dim: str
    most: int

    def sizes(self) -> list[int]:
        powers = [2**n for n in range(self.most.bit_length())]
        found = {n for p in powers for n in (p, p + 1) if n <= self.most}
        drawn = random.Random(0)
        while len(found) < min(COUNT, self.most):
            found.add(round(self.most ** drawn.random()))
        return sorted(found)

    def at(self, size: Any) -> tg.Program:
        given = {"S": 1, "S_max": CACHED + 64} if self.name == "llama_layer" else {}
        return load_program(str(ROOT.parent / "examples" / f"{self.name}.py"), {**given, self.dim: size})


STUDIES = {s.name: s for s in (Study("gpt3_mlp", "M", 4096), Study("llama_mlp", "M", 4096),
                               Study("llama_layer", "B", 64))}  # fmt: skip


def compile_frozen(study: Study, size: int, on: Machine | None) -> None:
    """What tg.compile and prepare will ask the cache for."""
    compile_kernels(study.at(size), Options(), Way(), on)


def choose_regimes(study: Study, on: Machine | None) -> None:
    """Half a minute of planning; what they choose is kept."""
    dim = tg.dim(study.dim, max=study.most)
    chosen_regimes(study.at(dim), place(on or H200, "sm_90a"), Options())


def precompile(studies: list[Study]) -> None:
    on = gpu_here()
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=alone) as pool:
        waiting = [pool.submit(choose_regimes, s, on) for s in studies]
        waiting += [pool.submit(compile_frozen, s, n, on) for s in studies for n in s.sizes()]
        for done in waiting:
            done.result()


def given(program: tg.Program) -> list[torch.Tensor]:
    """Inputs and states: normal numbers, positions that leave room."""
    made = []
    for t in program.arguments:
        if t.dtype == "int32":
            made.append(torch.full(t.shape, CACHED - 8, dtype=torch.int32, device="cuda"))
        elif t.role != "weight":
            made.append(torch.randn(t.shape, device="cuda").to(getattr(torch, t.dtype)))
    return made


def captured(kernel: Callable[..., Any], sets: list[list[torch.Tensor]]) -> torch.cuda.CUDAGraph:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for arguments in sets:
            kernel(*arguments)
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for n in range(LAUNCHES):
            kernel(*sets[n % SETS])
    return graph


@torch.no_grad()
def rows(study: Study) -> Iterator[dict[str, Any]]:
    moving: Any = tg.compile(study.at(tg.dim(study.dim, max=study.most)), "cuda")
    weights = {
        t.name: (torch.randn(t.shape, device="cuda") * t.shape[-1] ** -0.5).to(getattr(torch, t.dtype))
        for t in study.at(1).arguments
        if t.role == "weight"
    }
    copies: list[dict[str, torch.Tensor]] = [{} for _ in range(PLACEMENTS)]
    placed = [(moving.prepared(weights, of), of) for of in copies]
    for size in study.sizes():
        frozen = tg.compile(study.at(size), "cuda")
        sets = [given(study.at(size)) for _ in range(SETS)]
        us: dict[str, list[float]] = {"frozen": [], "moving": []}
        for own, of in placed:
            pair = {"frozen": frozen.prepared(weights, dict(of)), "moving": own}
            want, found = (k(*(a.clone() for a in sets[0])).float() for k in pair.values())
            runs = {n: captured(k, sets).replay for n, k in pair.items()}
            times = timing.interleave(runs, dict.fromkeys(runs, 1), timing.event_seconds, ROUNDS)
            for name, seconds in times.items():
                us[name] += [round(1e6 * t / LAUNCHES, 2) for t in seconds]
            del runs, pair
        yield {
            "program": study.name,
            "size": size,
            "us": us,
            "ratio": round(timing.paired(us["moving"], us["frozen"]), 4),
            "difference": float((found - want).norm() / want.norm()),
        }


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else ROOT / "results"
    studies = [STUDIES[name] for name in arguments[1:] or STUDIES]
    precompile(studies)
    found, cells = environment(), list[dict[str, Any]]()
    run = " ".join(["python -m benchmarks.moving", *arguments])
    for study in studies:
        for row in rows(study):
            cells.append(row)
            us = {n: statistics.median(t) for n, t in row["us"].items()}
            print(
                f"{row['program']} {row['size']}: frozen {us['frozen']:.1f}, moving {us['moving']:.1f} us,"
                f" {row['ratio']:.3f}, difference {row['difference']:.1e}",
                flush=True,
            )
            save({**heading(run, found), "cells": cells}, folder / f"moving-{tag(found['device'])}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
