"""Cuts of GeMMs: the Hopper kernel can run every one of them, and the model prefers what it should."""

from dataclasses import replace

import pytest

import tilegen as tg
from tests.gpu.gemms import CASES, gated, gemm, mlp
from tilegen.codegen.hopper import generate
from tilegen.codegen.hopper_op import HopperOp
from tilegen.cuts import best_cuts, cuts
from tilegen.machine import machine
from tilegen.planner import checked_parts
from tilegen.spec import Program
from tilegen.tiling import fuse

H200 = machine("h200")
PROGRAMS = [
    gemm(M=1, N=1000, K=520),
    gemm(M=4096, N=4096, K=4096),
    mlp(M=17),
    mlp(M=1000, H=2048, I=1024),
    gated(M=129),
    gated(M=64, H=8192, I=2752),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: f"{p.name} {dict(p.sizes)['M']}")
def test_every_cut_fits_the_kernel(program: Program) -> None:
    graph = fuse(program)
    for op in graph.ops:
        b = graph.bound(op)
        for parts in (1, 2):
            for cut in cuts(b, H200, parts):
                made = checked_parts(graph, replace(op, tile=cut.tile), cut.gang, H200)
                cut_graph = graph.with_op(op.name, made)
                plan = tg.plan(gemm(M=8, N=64, K=64), H200, tiles={"y": (64, 64, 64)})
                if b.kind.steps(cut_graph.bound(made)) >= parts:
                    HopperOp(replace(plan, graph=cut_graph, semaphores=()), cut_graph.bound(made))  # PlanError where it does not fit


@pytest.mark.parametrize("program", PROGRAMS + [c.program for c in CASES], ids=lambda p: f"{p.name} {dict(p.sizes)['M']}")
def test_the_planner_uses_them(program: Program) -> None:
    plan = tg.plan(program, "h200")
    assert len({op.parts for op in plan.graph.ops}) == 1 and generate(plan).text
    assert tg.verify(plan).ok


def test_the_model_knows_what_was_measured() -> None:
    large, small = fuse(gemm(M=4096, N=4096, K=4096)), fuse(gemm(M=16, N=5504, K=8192))
    (big,), (little,) = best_cuts(large, H200).values(), best_cuts(small, H200).values()
    assert big.tile[0] * big.tile[1] >= 128 * 256 and little.tile[0] == 64
    assert 150 < big.us < 220 and 18 < little.us < 28  # 178 and 23 µs were measured
    times = [min(c.us for c in cuts(fuse(gemm(M=m, N=4096, K=4096)).bound(large.ops[0]), H200, 1)) for m in (512, 4096)]
    assert times == sorted(times)
