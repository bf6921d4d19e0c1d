"""What each CTA of a tile reads and writes, worked out anew from the ops of a plan: kind, attributes,
operands, tile, cluster.

This is the proof's own reading of docs/plan-format.md. It shares nothing with the planner, so that a slip
there (a forgotten halo, a second row block) does not hide itself here. All tiles of an op are worked out at
once, one array row per CTA.
"""

from __future__ import annotations

from collections.abc import Callable

from tilegen.proof.footprint import heads, images, products, rows
from tilegen.proof.footprint.frame import Footprint, Op

KINDS: dict[str, Callable[[Op], Footprint]] = {
    "linear": products.linear,
    "matmul": products.matmul,
    "conv2d": images.conv2d,
    "grouped_conv2d": images.grouped_conv2d,
    "conv_transpose2d": images.conv_transpose2d,
    "max_pool2d": images.pool2d,
    "avg_pool2d": images.pool2d,
    "global_avg_pool": images.global_avg_pool,
    "upsample": images.upsample,
    "group_norm": images.group_norm,
    "cat": rows.cat,
    "pad": rows.pad,
    "strided_copy": rows.strided_copy,
    "embedding": rows.embedding,
    "take_along": rows.take_along,
    "softmax": rows.softmax,
    "attention": heads.attention,
    "combine": heads.combine,
    "reduce": rows.reduce,
    "topk": rows.topk,
    "rms_norm": rows.norm,
    "layer_norm": rows.norm,
    "rope": heads.rope,
    "rotary": heads.rotary,
    "append": heads.append,
    "pointwise": rows.pointwise,
}


def derive(op: Op) -> Footprint:
    """Reads and writes of every CTA of the op's listed tiles, in plan order."""
    return KINDS[op.kind](op)
