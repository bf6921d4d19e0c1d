"""Random programs and random plans of them: every lattice point, clusters, split sums, orders, static
lists."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import numpy as np
from cases import Case

import tilegen as tg
from tilegen.ops.cluster import CLUSTER_SPLITS
from tilegen.schedule.plan import Plan
from tilegen.schedule.policy import grouping
from tilegen.schedule.waits import SemaphoreMap


def chain(pick: random.Random) -> tg.Program:
    """Linears one after the other, a gated pair or not, residuals, the hidden tensor kept or not."""
    m, h, i = (pick.choice((1, 3, 17, 40, 65)) for _ in range(3))
    gated, kept, residual = (pick.random() < 0.5 for _ in range(3))

    @tg.spec
    def chain(M: int = m, H: int = 2 * h, I: int = 2 * i) -> Any:
        x = tg.input("x", (M, H), "float32")
        u = tg.linear(x, tg.weight("w1", (2 * I if gated else I, H), "float32"), name="u")
        h = u
        if gated:
            left, right = u.chunk(2)
            # with u kept, columns j and j + I: classes modulo the half
            h = tg.mul(tg.silu(left), right, name="h")
        y = tg.linear(h, tg.weight("w2", (H, I), "float32"), name="d")
        y = tg.add(y, x, name="y") if residual else y
        return (y, u) if kept else y

    return chain()


def convolutions(pick: random.Random) -> tg.Program:
    """Two convolutions, the second with any stride, dilation and padding, also such that whole windows lie in
    the padding; a pool."""
    b, size, c = pick.choice((1, 2)), (pick.randint(3, 11), pick.randint(3, 11)), pick.choice((1, 4, 6))
    filters = [(pick.randint(1, 3), pick.randint(1, 3)) for _ in range(2)]
    stride, padding, dilation = ((pick.randint(1, 3), pick.randint(1, 3)) for _ in range(3))
    padding = tuple(p * pick.choice((0, 1, 2)) for p in padding)

    @tg.spec
    def convolutions() -> Any:
        x = tg.input("x", (b, *size, c), "float32")
        x = tg.conv2d(x, tg.weight("w1", (5, *filters[0], c), "float32"), padding=1, name="a")
        y = tg.conv2d(
            x,
            tg.weight("w2", (7, *filters[1], 5), "float32"),
            stride=stride,
            padding=padding,
            dilation=dilation,
            name="c",
        )
        z = tg.max_pool2d(tg.relu(y, name="r"), 2, stride=1, padding=1, name="pool")
        return tg.linear(
            tg.flatten(z), tg.weight("w3", (9, z.shape[1] * z.shape[2] * 7), "float32"), name="fc"
        )

    return convolutions()


def attention(pick: random.Random) -> tg.Program:
    """QKV, rotary or not, causal or not, grouped heads, or three separate products with a softmax between."""
    b, s, heads, group, d = (
        pick.choice((1, 2)),
        pick.choice((1, 9, 30, 33)),
        pick.choice((2, 4)),
        pick.choice((1, 2)),
        8,
    )
    rotary, causal, apart = (pick.random() < 0.5 for _ in range(3))

    @tg.spec
    def attention(S: int = s) -> Any:
        kv = heads // group
        x = tg.input("x", (b, S, 24), "float32")
        qkv = tg.linear(x, tg.weight("w", ((heads + 2 * kv) * d, 24), "float32"), name="qkv")
        q, k, v = qkv.split([heads * d, kv * d, kv * d])
        if apart and group == 1:
            p = tg.softmax(tg.matmul(q, k, transpose_b=True, name="s"), scale=0.3, causal=causal, name="p")
            return tg.matmul(p, v, name="o")
        if rotary:
            q, k = tg.rope(q, heads=heads, name="qr"), tg.rope(k, heads=kv, name="kr")
        a = tg.attention(q, k, v, heads=heads, kv_heads=kv, causal=causal, name="a")
        return tg.linear(a, tg.weight("wo", (20, heads * d), "float32"), name="o")

    return attention()


def decode(pick: random.Random) -> tg.Program:
    sizes = {"B": pick.choice((1, 3)), "S": pick.choice((1, 7)), "S_max": pick.choice((16, 21))}
    return Case("llama_layer", {"H": 32, "heads": 4, "kv_heads": 2, "D": 8, "I": 24, **sizes}).program


FAMILIES = (chain, convolutions, attention, decode)
POLICIES = ("kernel", "row", "column", "class", "step", "tile", "chunk:1", "chunk:2", "chunk:3")
ORDERS = ("auto", "op_major", "op_major:2", "op_major:4", "banded:2", "banded:3", "banded:2:2", "banded:4:3")


def _draw(program: tg.Program, pick: random.Random) -> Plan:
    usual = tg.plan(program, "cpu:2", order="op_major")
    linears = [op.name for op in usual.graph.ops if op.kind == "linear"]
    ganged = [op.name for op in usual.graph.ops if op.kind in ("linear", "matmul", "conv2d")]
    # now and then tiles that meet exactly
    widths = (1, 2, 3, 4, 6, 8, 16, 24) if pick.random() < 0.7 else (2,)
    return tg.plan(
        program,
        pick.choice(("cpu:3", "h200", "7")),
        target="cpu",
        tiles={
            op.name: tuple(pick.choice(widths) for _ in op.tile)
            for op in usual.graph.ops
            if pick.random() < 0.8
        },
        policies={t: pick.choice(POLICIES) for t, _ in usual.policies if pick.random() < 0.7},
        cluster={
            name: f"{pick.choice((2, 3))}:{pick.choice(CLUSTER_SPLITS)}"
            for name in ganged
            if pick.random() < 0.3
        },
        split_k={name: pick.choice((2, 3)) for name in linears if pick.random() < 0.2},
        order=pick.choice(ORDERS),
        scheduling=pick.choice(("dynamic", "lists", "static")),
    )


@functools.cache
def random_plan(family: Any, seed: int) -> tuple[tg.Program, Plan]:
    """A random program with random tiles, policies, clusters, splits, order and scheduling; choices that do
    not fit are drawn again."""
    pick = random.Random(f"{family.__name__} {seed}")
    for _ in range(200):
        try:
            program = family(pick)
            plan = _draw(program, pick)
        except (tg.SpecError, tg.PlanError):
            continue
        if plan.order.count <= 2000:
            return program, plan
    raise AssertionError("no plan in 200 draws")


def scrambled(plan: Plan, seed: int) -> Plan:
    """The plan with semaphores shared in any way at all: its text must still say what it says. It need not
    make progress."""
    pick, first, maps = random.Random(seed), 0, []
    for m in plan.semaphores:
        partition = []
        for g in m.partition:
            block, size = np.arange(g.blocks), pick.randint(1, g.blocks)
            labels = pick.choice(
                (
                    block * 0,
                    block,
                    block // size,
                    block % size,
                    np.array(pick.choices(range(size), k=g.blocks)),
                )
            )
            partition.append(grouping(labels, g.blocks))
        maps.append(SemaphoreMap(m.producer, m.tensor, tuple(partition), first, m.posts))
        first += maps[-1].count
    return replace(plan, semaphores=tuple(maps))
