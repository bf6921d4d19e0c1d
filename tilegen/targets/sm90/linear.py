"""A linear on sm_90a: rows of activations and of weights, 64 columns at a time, by TMA; weights as they are
or packed."""

from __future__ import annotations

import math

from tilegen.codegen.cuda_op import TYPES, refuse
from tilegen.frontend.dims import most
from tilegen.graph.linear_time import PACKED
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import LinearAttributes, groups, k_range, normed, patches
from tilegen.ops.patches import BLOCK
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.extras import Extras
from tilegen.targets.sm90.linear_loads import LinearLoads
from tilegen.targets.sm90.product import Norm, Packing, Product, types_problem
from tilegen.targets.sm90.store import RowStore, unit_of
from tilegen.targets.sm90.tile import TWO_BYTES, Stage, Tile

NORMED_STEP = 256
FEW_VECTORS = 128  # of columns in a step, in all rows: two warps add up their squares while the products run


def linear(code: Code, may_pack: frozenset[str] = frozenset()) -> Product:
    """A linear of a plan. may_pack: tensors that may come packed tile by tile. PlanError where its tile does
    not fit the machine's instructions."""
    b = code.bound
    tile = _tile(b)
    store = RowStore(code, tile)
    extras = Extras(code, tile, store.staged, _weights_once(code))
    refuse(b, "sm_90a", _operands_problem(b) or tile.problem or _sum_problem(code, tile))
    stage = _stage(b, tile)
    packs = tuple(b.operand(name).tensor for name in ("w", "norm_weight") if b.has(name))
    packed = extras.weights_once and may_pack.issuperset(packs) and tile.depth % BLOCK == 0
    load = LinearLoads(code, tile, stage, packed, extras.weights_once)
    refuse(b, "sm_90a", load.problem)
    return Product(
        code.plan,
        b,
        members=code.members,
        numbered=code.numbered,
        tile=tile,
        stage=stage,
        a=load.a,
        b=load.b,
        maps=(*load.maps, *store.maps, *(store.residual_maps(extras.residual) if extras.residual else ())),
        store=store,
        extras=extras,
        weights_once=extras.weights_once,
        norm=_norm(b, tile, packed) if normed(b) else None,
        packing=Packing(packs, load.packed_rows) if packed else None,
    )


def _tile(b: OpInstance) -> Tile:
    tm, tn, tk = b.tile
    seen = patches(b)
    step = seen.step if seen else BLOCK
    return Tile(tm, tn, tk, int(b.steps), groups(b), b.op.cluster_shape, b.op.pingpong, step)


def _stage(b: OpInstance, tile: Tile) -> Stage:
    blocks, a_rows = ceil_div(tile.depth, BLOCK), min(tile.cta_rows, math.ceil(most(b.out[0]) / 8) * 8)
    a_bytes = a_rows * ROW_BYTES * blocks
    return Stage(blocks, a_rows, a_rows * ROW_BYTES, a_bytes, a_bytes, tile.groups * tile.cta_columns)


def _weights_once(code: Code) -> bool:
    b = code.bound
    stored = code.plan.graph.tensors[b.operand("w").tensor].role in ("weight", "input")
    return stored and math.ceil(most(b.out[0]) / b.tile[0]) <= PACKED


def _operands_problem(b: OpInstance) -> str:
    """Why TMA and wgmma do not take its operands and result, or an empty string."""
    problem = types_problem(b)
    if problem:
        return problem
    for n in (0, 1):
        for what, size in (
            ("columns", int(b.shape(n)[1])),
            ("first column", (b.op.operands[n].columns or (0, 0))[0]),
        ):
            if size % 8:
                padded = math.ceil(size / 8) * 8
                return (
                    f"{b.op.operands[n].tensor!r} has {what} {size}: rows must be whole 16-byte units; pad it"
                    f" to {padded}"
                )
    seen = patches(b)
    return seen.problem if seen else ""


def _sum_problem(code: Code, tile: Tile) -> str:
    """Why its rows cannot be normed, or its share of a sum not be taken, or an empty string."""
    b, (lo, hi) = code.bound, k_range(code.bound)
    if normed(b):
        written = code.plan.graph.writers(b.operand("norm_weight").tensor)
        if most(b.out[0]) > 64 or tile.cta_rows != 64 or tile.cluster.size > 1 or written:
            return "a norm is fused into products of up to 64 rows, a CTA a tile, whose weights no op writes"
        if tile.depth > NORMED_STEP:
            return (
                f"steps are {tile.depth} wide, expected at most {NORMED_STEP} where a norm is fused in:"
                " threads hold their share of a step"
            )
    if tile.pingpong and len(code.plan.graph.ops) > 1:
        return "math warpgroups take turns in a launch of one op; leave pingpong out, or ask for launches"
    if tile.pingpong and b.result.dtype not in TWO_BYTES:
        return f"math warpgroups take turns over results of two bytes a number, not {b.result.dtype}"
    columns = int(b.out[1])
    if tile.uneven and (b.result.dtype not in TWO_BYTES or unit_of(columns) < 8):
        return (
            f"a tile of {tile.cta_rows} rows is stored by TMA, in two bytes a number and whole 16-byte units;"
            f" the result is {b.result.dtype}, {columns} columns"
        )
    if hi < b.shape(1)[1] and (hi - lo) % tile.depth:
        return (
            f"its share of the sum ends at column {hi}, inside a step of {tile.depth}, which would bring the"
            " next share's columns too"
        )
    return ""


def _norm(b: OpInstance, tile: Tile, packed: bool) -> Norm:
    rows, blocks = most(b.out[0]), tile.depth // BLOCK
    norm_eps = LinearAttributes.of(b).norm_eps
    assert norm_eps is not None  # it is normed
    lookers = 64 if packed and 8 * rows * blocks <= FEW_VECTORS else 256
    of_row = lookers >> (rows - 1).bit_length()
    weight = b.operand("norm_weight").tensor
    return Norm(
        weight,
        TYPES[b.dtype(b.index("norm_weight"))],
        int(b.shape(0)[1]),
        norm_eps,
        lookers,
        of_row,
        math.ceil(8 * blocks / of_row),
    )
