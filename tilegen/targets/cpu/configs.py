"""Tiles worth trying on a CPU: rows that a core's L2 holds, sums over long steps, all channels at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilegen.frontend.spec import Size
from tilegen.ops.base import Bound
from tilegen.ops.gemm import of_groups
from tilegen.ops.spatial import spatial_tiles

Tiles = Sequence[tuple[int, ...]]


def _product(rows: Size) -> list[tuple[int, int, int]]:
    tm = 64 if isinstance(rows, int) and rows <= 64 else 128
    return [(tm, tn, 1024) for tn in (256, 512, 128, 64)]


def _linear(b: Bound) -> Tiles:
    return of_groups(_product(b.out[0]), b.groups)


def _matmul(b: Bound) -> Tiles:
    return _product(b.m)


def _conv2d(b: Bound) -> Tiles:
    filters, channels = (
        n if isinstance(n, int) else usual for n, usual in ((b.out[3], 256), (b.shape(1)[3], 64))
    )
    return [
        (*t, min(filters, tn), channels) for t in spatial_tiles(b.out, (128, 64)) for tn in (256, 128, 64)
    ]


def _attention(b: Bound) -> Tiles:
    tq = min(64, b.q_len if isinstance(b.q_len, int) else 4096)
    return [(tq, 256, 1), (tq, 128, 1)]


TILES: Mapping[str, Callable[[Bound], Tiles]] = {
    "linear": _linear,
    "matmul": _matmul,
    "conv2d": _conv2d,
    "attention": _attention,
}
