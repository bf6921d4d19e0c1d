"""Random cuts of random linears on the emulator of sm_90a: any tile and cluster that the kernel can run,
whether the planner would take it or not, of one size and of sizes that move, against the program in float32.

    python -m tests.random_cuts --first 0 --count 200 --jobs 2
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import tilegen as tg
from tests.gpu.gemms import added, biased, gate, gemm, viewed
from tests.moving import drawn, right, same
from tests.seeds import told_of_each
from tilegen.arch.machine import H200
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.linear_time import columns_of_step
from tilegen.kernels.moving import MovingKernel
from tilegen.ops.cluster import ClusterShape
from tilegen.targets.sm90.linear_cuts import LONG_SUM, Cut, cuts_alone

SPECS = {"gemm": gemm, "biased": biased, "added": added, "viewed": viewed, "gate": gate}
ROWS = (1, 17, 64, 65, 100, 128, 130, 200, 257, 300, 385, 500)  # the first of them of long sums


@dataclass(frozen=True)
class Product:
    """A linear, and the most rows that it has."""

    spec: str
    rows: int
    columns: int
    k: int
    dtype: str

    def of(self, rows: Any) -> Program:
        sizes = {"I": self.columns, "H": self.k} if self.spec == "gate" else {"N": self.columns, "K": self.k}
        return SPECS[self.spec](M=rows, dtype=self.dtype, **sizes)


@dataclass(frozen=True)
class Draw:
    """What is cut, how, and at which sizes it is run. moves: all of them by one kernel."""

    product: Product
    cut: Cut
    depth: int
    rows: tuple[int, ...]
    moves: bool

    @property
    def options(self) -> dict[str, Any]:
        (op,) = fuse(self.product.of(self.product.rows)).ops
        shape = self.cut.cluster
        tile = self.cut.height * shape.m, self.cut.width * shape.n, self.depth
        return {
            "tiles": {op.name: tile},
            "cluster": {op.name: shape.option},
            "pingpong": {op.name: self.cut.pingpong},
        }


def draw(seed: int) -> Draw | None:
    """None where clusters of the size that was drawn cannot compute it."""
    chance = random.Random(seed)
    long = chance.random() < 0.2  # a sum that more than two CTAs split
    product = Product(
        chance.choice(list(SPECS)),
        chance.choice(ROWS[:8] if long else ROWS),
        8 * chance.randint(1, 16 if long else 64) + chance.choice((0, 0, 0, 3)),
        8 * (chance.randint(8 * LONG_SUM, 9 * LONG_SUM) if long else chance.randint(1, 40)),
        chance.choice(("bfloat16", "float16")),
    )
    graph = fuse(product.of(product.rows))
    bound = graph.bound(graph.ops[0])
    size = chance.choice((3, 4, 5, 6, 7, 8) if long else (1, 1, 2, 2, 2, 4, 4, 8))
    # clusters first, then heights: of most heights there are few cuts
    cuts: dict[ClusterShape, dict[int, list[Cut]]] = {}
    for cut in sorted(cuts_alone(bound, H200, size), key=repr):
        cuts.setdefault(cut.cluster, {}).setdefault(cut.height, []).append(cut)
    if not cuts:
        return None
    by_height = chance.choice(list(cuts.values()))
    cut = chance.choice(chance.choice(list(by_height.values())))
    edges = (cut.height * n + d for n in (1, 2, 3) for d in (-9, -1, 0, 1))
    inside = sorted({n for n in (1, *edges) if 1 <= n < product.rows})
    some = chance.sample(inside, min(3, len(inside)))
    depth = columns_of_step(bound, cut.deep)
    return Draw(product, cut, depth, (product.rows, *some), chance.random() < 0.6 and product.rows > 1)


def problem(seed: int) -> str:
    """What is wrong with a draw's results, "none" where there is none to try, or an empty string."""
    found = draw(seed)
    if found is None:
        return "none"
    on = {"on": 3 * found.cut.cluster.size, "target": "cuda-emulated", **found.options}
    try:
        if found.moves:
            moving = tg.compile(found.product.of(tg.dim("M", max=found.product.rows)), **on)
            assert isinstance(moving, MovingKernel)
            for rows in found.rows:
                right(moving, rows)
        else:
            program = found.product.of(found.product.rows)
            same(tg.compile(program, **on), program, drawn(program, seed))
    except Exception as error:  # of any kind: it is what is looked for
        return f"{seed}: {found}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def main() -> int:
    seen = Counter[str]()
    for told in told_of_each(__doc__, problem):
        seen["not to be cut so" if told == "none" else "wrong" if told else "right"] += 1
        if told not in ("", "none"):
            print(told, flush=True)
    print(", ".join(f"{n} {what}" for what, n in seen.items()))
    return int(seen["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
