"""Tiles worth trying on a CPU: rows that a core's L2 holds, sums over long steps, all channels at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import Size
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes, groups, of_groups
from tilegen.ops.spatial import spatial_tiles

Tiles = Sequence[tuple[int, ...]]


def _product(rows: Size) -> list[tuple[int, int, int]]:
    tm = 64 if isinstance(rows, int) and rows <= 64 else 128
    return [(tm, tn, 1024) for tn in (256, 512, 128, 64)]


def _linear(b: OpInstance) -> Tiles:
    return of_groups(_product(b.out[0]), groups(b))


def _matmul(b: OpInstance) -> Tiles:
    return _product(MatmulAttributes.of(b).m)


def _conv2d(b: OpInstance) -> Tiles:
    filters, channels = (
        n if isinstance(n, int) else usual for n, usual in ((b.out[3], 256), (b.shape(1)[3], 64))
    )
    return [
        (*t, min(filters, tn), channels) for t in spatial_tiles(b.out, (128, 64)) for tn in (256, 128, 64)
    ]


def _attention(b: OpInstance) -> Tiles:
    q_len = AttentionAttributes.of(b).q_len
    tq = min(64, q_len if isinstance(q_len, int) else 4096)
    return [(tq, 256, 1), (tq, 128, 1)]


TILES: Mapping[type[Attributes], Callable[[OpInstance], Tiles]] = {
    LinearAttributes: _linear,
    MatmulAttributes: _matmul,
    ConvAttributes: _conv2d,
    AttentionAttributes: _attention,
}
