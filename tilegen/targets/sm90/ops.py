"""What of a plan sm_90a's kernel has a form for: its ops, their shared memory, and its parameters. All that
planning asks of the kernel: its text (emit.py) is not loaded for that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilegen.codegen.environment import refuse_missing_macro
from tilegen.errors import LaunchLimitError, PlanError
from tilegen.graph.gathered import by_threads
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes
from tilegen.runtime.launch import MAP_BYTES
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.attention import Attention
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.conv2d import convolution
from tilegen.targets.sm90.layout import Layout
from tilegen.targets.sm90.linear import linear
from tilegen.targets.sm90.shared_bodies import Body, Op
from tilegen.targets.sm90.thread_tile import ThreadTile

MOST_PARAMETERS, MOST_WORDS = 32764, 8  # bytes of all (CUDA C++ Programming Guide, 12.1); words of the last


def hopper_op(plan: Plan, b: OpInstance, packed: frozenset[str] = frozenset()) -> Op:
    """An op as the kernel computes it: products on the tensor cores, everything else by threads."""
    if isinstance(b.attributes, LinearAttributes):
        return linear(Code(plan, b), packed)
    if isinstance(b.attributes, AttentionAttributes):
        return Attention(plan, b)
    if isinstance(b.attributes, ConvAttributes) and not by_threads(b):
        return convolution(Code(plan, b))
    refuse_missing_macro("cuda/threads", "cu", b)
    return ThreadTile(plan, b)


def layout_of(plan: Plan, ops: Sequence[Op]) -> Layout:
    """Shared memory of a kernel for all these ops. PlanError where there is no room for two stages, or where
    pairs of CTAs that load together would come out of step."""
    layout = Layout(tuple(ops), plan.scheduling == "dynamic")
    together = next((op for op in ops if op.a.together or op.b.together), None)
    uneven = next((op for op in layout.products if op.tile.steps % op.tile.cluster.k), None)
    single = next((op for op in ops if op.cluster < layout.cluster), None)
    smaller = next((op for op in ops if 1 < op.cluster < layout.cluster), None)
    other = next((op for op in layout.products if op.tile.cluster != layout.shape), None)
    # one CTA would be a stage ahead of the other, and their loads would land in different ones
    if together and uneven:
        raise PlanError(
            f"on sm_90a CTAs that load together (for {together.name!r}) must take equal parts of K:"
            f" {uneven.name!r} has {uneven.tile.steps} steps, which {uneven.tile.cluster.k} do not share"
            " evenly; split its rows or columns (m, n), or choose steps of another width",
            uneven.bound.op.where,
        )
    if smaller:
        raise PlanError(
            "on sm_90a a launch has clusters of one size and single CTAs:"
            f" {smaller.name!r} is run by clusters of {smaller.cluster}, others by clusters of"
            f" {layout.cluster}",
            smaller.bound.op.where,
        )
    sends = {op.tile.sends: op for op in layout.products if op.tile.exchanges}
    if layout.cluster > 2 and len(sends) > 1:
        high, low = sends[max(sends)], sends[min(sends)]
        raise PlanError(
            f"on sm_90a, in a launch of clusters of {layout.cluster} that split sums, of all tiles both math"
            " warpgroups finish a part (of more than 64 rows, or of 128 columns or more where they are other"
            f" eights), or of all only one: {low.name!r} has {low.tile.cta_rows} x {low.tile.columns},"
            f" {high.name!r} {high.tile.cta_rows} x {high.tile.columns}",
            low.bound.op.where,
        )
    if together and other and layout.cluster > 2:
        raise PlanError(
            f"on sm_90a clusters that load together (for {together.name!r}) split all tiles of a launch"
            f" in the same way: {layout.products[0].name!r} is cut by"
            f" {layout.products[0].bound.op.cluster_option}, {other.name!r} by"
            f" {other.bound.op.cluster_option}",
            other.bound.op.where,
        )
    if together and single:
        raise PlanError(
            f"on sm_90a a pair that loads together (for {together.name!r}) must run every op, "
            f"{single.name!r} is run by one CTA",
            single.bound.op.where,
        )
    layout.refuse()
    return layout


def refuse_parameters(plan: Plan, found: Sequence[Body]) -> None:
    """LaunchLimitError where a launch of all ops takes more tensor maps and addresses than a kernel may."""
    maps = sum(len(same) for body in found for same in body.maps)
    tensors = len(plan.graph.tensors) + sum(len(member) for body in found for member in body.tensors)
    bytes = MAP_BYTES * maps + 8 * tensors + 8 * MOST_WORDS
    if bytes > MOST_PARAMETERS:
        raise LaunchLimitError(
            f"{plan.program}: one launch of {len(plan.graph.ops)} ops takes {maps} tensor maps and the"
            f" addresses of {tensors} tensors, {bytes:,} bytes of parameters; a kernel on sm_90a takes"
            f" {MOST_PARAMETERS:,}: compile parts of the program by themselves",
            math.ceil(bytes / MOST_PARAMETERS),
        )
