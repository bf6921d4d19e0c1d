"""Tiles worth trying of each op on sm_80 and later."""

from __future__ import annotations

from collections.abc import Sequence

from tilegen.arch.machine import Machine
from tilegen.codegen.thread_attention import attention_tiles
from tilegen.codegen.thread_product import conv_tiles, product_tiles
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes, of_groups, patches
from tilegen.targets.sm80.pixels import pixel_tiles
from tilegen.targets.sm80.product import multiplies_pixels

TILES = [(128, tn, 64) for tn in (256, 192, 128, 64)]  # a CTA's registers hold no more sums than 128 x 256
FEW = 64
# of few rows, whose time is that of their weights: those that all SMs have a part of
NARROW = [(FEW, tn, 64) for tn in range(256, 15, -16)]


def tiles_worth_trying(b: OpInstance, machine: Machine) -> Sequence[tuple[int, ...]]:
    if isinstance(b.attributes, MatmulAttributes):
        return product_tiles(b)
    if isinstance(b.attributes, ConvAttributes):
        return pixel_tiles(b, machine) if multiplies_pixels(b) else conv_tiles(b)
    if isinstance(b.attributes, AttentionAttributes):
        return attention_tiles(b, machine.sms)
    if not isinstance(b.attributes, LinearAttributes):
        return b.kind.tiles(b, machine)
    if patches(b):
        return pixel_tiles(b, machine)
    few = isinstance(b.out[0], int) and b.out[0] <= FEW
    return of_groups(NARROW if few else TILES, b.attributes.groups)
