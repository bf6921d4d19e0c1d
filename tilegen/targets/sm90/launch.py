"""A launch of the kernel for sm_90a: CTAs, tensor maps, how its packed weights are made."""

from __future__ import annotations

from functools import partial

from tilegen.frontend.dims import dims_of, filled, most
from tilegen.frontend.program import PAIRED, numbers_of
from tilegen.ops.gemm import k_range
from tilegen.ops.patches import BLOCK
from tilegen.runtime.launch import (
    Buffer,
    Launch,
    MapFormula,
    Packed,
    TensorMap,
    cooperative,
    packed_name,
    static,
)
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.emit import HopperSource
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.stage import AnyMap, PatchMap


def hopper_launch(
    plan: Plan, source: HopperSource, exclusive: bool = False, programmatic: bool | None = None
) -> Launch:
    """programmatic: start on SMs that the launch before leaves; None: where lists are static or no tile waits
    for another. Where tiles wait and ranks are drawn that was measured to cost 3 to 13 %.

    Never when the launch is cooperative: nothing says that all CTAs or none are placed then too.
    """
    whole = cooperative(plan, exclusive)
    pays = static(plan) or not plan.semaphores
    early = (pays if programmatic is None else programmatic) and not whole
    return Launch(
        hopper_ctas(plan, source),
        source.threads,
        source.cluster,
        source.shared_bytes,
        whole,
        early,
        most(plan.semaphore_count),
        source.tensors,
        maps_at(plan, source, plan.dim.most if plan.dim else 0),
        tuple(partial(_packed, name, op) for name, op in source.packed),
        source.positions,
        partial(maps_at, plan, source) if plan.dim else None,
        tuple(_formula(m) for m in source.maps if dims_of(m.geometry)),
        source.lists,
    )


def _formula(m: AnyMap) -> MapFormula:
    return MapFormula(m.name, *(tuple(map(str, sizes)) for sizes in (m.geometry.shape, m.geometry.box)))


def maps_at(plan: Plan, source: HopperSource, size: int) -> tuple[TensorMap, ...]:
    """The tensor maps where what moves, if anything does, has this size."""
    return tuple(tensor_map(plan, filled(m, plan.dim, size) if plan.dim else m) for m in source.maps)


def hopper_ctas(plan: Plan, source: HopperSource) -> int:
    """Those of all workers that may have a tile: all where any of them may have any list."""
    if source.lists:
        return source.lists
    cluster = source.cluster
    if isinstance(plan.scheduling, str):
        return cluster * min(plan.machine.clusters(cluster), most(plan.order.count))
    return cluster * (1 + max((worker for worker, ranks in enumerate(plan.scheduling) if ranks), default=0))


def tensor_map(plan: Plan, m: AnyMap) -> TensorMap:
    """A map of the generated text over two-byte elements."""
    g, dtype = m.geometry, plan.graph.tensors[m.tensor].dtype
    kind = f"CU_TENSOR_MAP_DATA_TYPE_{'UINT16' if dtype in PAIRED else dtype.upper()}"
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{f'{m.span}B' if m.swizzle else 'NONE'}"
    shape, pitches, box, strides = (
        tuple(int(n) for n in sizes) for sizes in (g.shape, g.pitches, g.box, g.traversal)
    )
    return TensorMap(
        m.name,
        m.tensor,
        m.packed,
        2 * int(m.offset),
        kind,
        shape,
        tuple(2 * n for n in pitches),
        box,
        strides,
        swizzle,
        im2col=m.im2col if isinstance(m, PatchMap) else None,
    )


def _packed(name: str, op: Product) -> Packed:
    assert op.packing
    weight, rows = op.packing.tensors[0], op.packing.rows
    lo, hi = k_range(op.bound)
    viewed = op.bound.op.operands[1].columns
    dtype = op.plan.graph.tensors[weight].dtype
    each = numbers_of(dtype)
    shape = (len(rows), op.tile.steps, op.stage.blocks, int(rows.shape[1]), BLOCK * each)
    return Packed(
        Buffer(packed_name(name), "packed", dtype, shape),
        op.packing.tensors,
        each * (int(viewed[0] if viewed else 0) + int(lo)),
        each * int(hi - lo),
        tuple(tuple(int(n) for n in r) for r in rows),
    )
