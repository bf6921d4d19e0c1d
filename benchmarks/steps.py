"""Clocks of a step of 64 columns in the main loop, by tile: one tile a CTA, K = 16384, beside cuBLAS's kernel
for the same product.

ncu --clock-control none -k 'regex:tg_kernel|nvjet' --csv --metrics
sm__cycles_elapsed.max,gpu__time_duration.sum,lts__t_bytes.sum,sm__inst_executed.sum \\
    python -m benchmarks.steps > steps.csv

clocks of a step = sm__cycles_elapsed.max / 256, some 40 of them set-up and epilogue; the tensor cores' own
are rows·columns/32 of a CTA.
"""

from __future__ import annotations

import torch

import tilegen as tg
from benchmarks.workloads import gemm
from tilegen.arch.machine import H200

STEPS = 256
ROWS = 6  # of tiles
TILES: list[tuple[tuple[int, int, int], int | str]] = [
    ((128, 256, 64), 1),
    ((256, 256, 64), "2:m"),
    ((128, 192, 64), 1),
    ((256, 192, 64), "2:m"),
    ((128, 384, 64), "2:n"),
    ((256, 192, 64), 1),
    ((256, 128, 64), 1),
]


def main() -> None:
    for tile, parts in TILES:
        clusters = H200.sms // int(str(parts)[0])
        m, n, k = ROWS * tile[0], clusters // ROWS * tile[1], 64 * STEPS
        cut = {
            "tiles": {"gemm": tile},
            "cluster": {"gemm": parts},
            "scheduling": "static",
            "order": f"op_major:{ROWS}",
        }
        kernel = tg.compile(gemm(M=m, N=n, K=k), "cuda", exclusive=True, **cut)
        x, w = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
        print("tile", "x".join(map(str, tile)), "cluster", parts, flush=True)
        for _ in range(2):
            kernel(x, w)
            x @ w.T
        kernel.check()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
