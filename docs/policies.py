"""cuSync's policies as points of the lattice: `python -m docs.policies` prints what docs/proof.md quotes.

What cuSync's authors wrote by hand, per kernel (arXiv 2305.13450, section 4), falls out of the dependences
here. For each pair of ops: all points, which of cuSync's policies one is, and what a tile of the consumer
waits for.
"""

from __future__ import annotations

from collections.abc import Iterator

import tilegen as tg
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.options import Options
from tilegen.schedule.planner import lattices_of, tiled
from tilegen.schedule.policy import Lattice, Point
from tilegen.targets.select import place


@tg.spec
def feed_forward(M=512, H=1024, I=1024):
    h = tg.linear(tg.input("x", (M, H)), tg.weight("w1", (I, H)), name="up")
    return tg.linear(h, tg.weight("w2", (H, I)), name="down")


@tg.spec
def heads(B=1, S=512, heads=8, D=64):
    x = tg.input("x", (B, S, heads * D))
    q, k, v = tg.linear(x, tg.weight("w", (3 * heads * D, heads * D)), name="qkv").chunk(3)
    return tg.attention(q, k, v, heads=heads, name="attention")


@tg.spec
def filters(B=1, HW=28, C=64):
    x = tg.input("x", (B, HW, HW, C))
    a = tg.conv2d(x, tg.weight("w1", (C, 3, 3, C)), padding=1, name="first")
    return tg.conv2d(a, tg.weight("w2", (C, 3, 3, C)), padding=1, name="second")


PAIRS: list[tuple[str, Program, dict[str, tuple[int, ...]], dict[str, str]]] = [
    (
        "GeMM → GeMM",
        feed_forward(),
        {"up": (128, 128, 64), "down": (128, 128, 64)},
        {"row": "RowSync", "tile": "TileSync"},
    ),
    (
        "Q, K, V → attention, a head's columns",
        heads(),
        {"qkv": (512, 64, 64), "attention": (128, 64)},
        {"class": "StridedSync"},
    ),
    (
        "conv → conv, 3 x 3",
        filters(),
        {"first": (1, 4, 28, 64, 64), "second": (1, 4, 28, 64, 64)},
        {"row": "RowSync, with the halo"},
    ),
]


def lattice(program: Program, tiles: dict[str, tuple[int, ...]]) -> Lattice:
    """That of the one tensor between two ops."""
    graph = tiled(fuse(program), place("h200", "interpret"), Options.of(tiles=tiles))
    [found] = lattices_of(graph).values()
    return found


def theirs(point: Point, names: dict[str, str]) -> str:
    """What cuSync calls a point."""
    return next((name for ours, name in names.items() if ours in point.name.split("=")), "")


def lines() -> Iterator[str]:
    yield "| pair | point | semaphores | waits a tile | tiles before it starts | cuSync's |"
    yield "|---|---|---|---|---|---|"
    for title, program, tiles, names in PAIRS:
        found = lattice(program, tiles)
        coords = [
            f"block{d}" if len(found.edges[0].first) > 1 else "block"
            for d in range(len(found.edges[0].first))
        ]
        for point in found.points:
            semaphores = f"{point.semaphores}: {point.formula(coords)}"
            yield (
                f"| {title} | {point.name} | {semaphores} | {point.waits:.2f} | {point.start:.1f} |"
                f" {theirs(point, names)} |"
            )
            title = ""


if __name__ == "__main__":
    print("\n".join(lines()))
