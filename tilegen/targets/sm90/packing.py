"""Weights packed tile by tile, as they lie in the stages of the ring, and unpacked again.

packed[tile, step, block, row, c] = weight[rows[tile, row], first column + 64·(step·blocks + block) + c]

Of numbers that come in pairs, columns are pairs here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from tilegen.graph.graph import Graph
from tilegen.ops.gemm import k_range
from tilegen.ops.reference import elements
from tilegen.targets.sm90.product import Packing, Product


def packed_once(
    products: Mapping[str, Product], given: Mapping[str, torch.Tensor], copies: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Each weight packed, or the copy of it that is there already."""
    made = {}
    for name, op in products.items():
        key = form(op)
        if key not in copies:
            copies[key] = pack(op, given)
        made[name] = copies[key]
    return made


def form(op: Product) -> str:
    """What a packed copy depends on: tensors, columns, rows of each tile, blocks of a stage."""
    rows = _packing(op).rows
    parts = (_packing(op).tensors, _columns(op), op.tile.steps, op.tile.depth, op.stage.blocks, rows.shape)
    return f"{parts} {hashlib.sha256(rows.tobytes()).hexdigest()}"


def pack(op: Product, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The weight tile by tile: for each tile and step, the 64-column blocks as they lie in a stage, each
    contiguous.
    given: all that is packed, by name."""
    packing = _packing(op)
    weight, *factors = (elements(given[name]) for name in packing.tensors)
    lo, hi = _columns(op)
    tiles, height = packing.rows.shape
    index = torch.from_numpy(np.maximum(packing.rows, 0).reshape(-1)).to(weight.device)
    flat = weight.reshape(weight.shape[0], -1)[:, lo:hi]
    out = torch.zeros(tiles * height, op.tile.steps * op.tile.depth, dtype=weight.dtype, device=weight.device)
    out[:, : hi - lo] = flat[index] if not factors else flat[index].float() * factors[0].float()
    out[torch.from_numpy((packing.rows < 0).reshape(-1)).to(weight.device)] = 0
    laid = out.view(tiles, height, op.tile.steps, op.stage.blocks, 64).permute(0, 2, 3, 1, 4).contiguous()
    return laid.view(given[packing.tensors[0]].dtype)


def unpack(
    weight: torch.Tensor, name: str, products: Mapping[str, Product], packed: Mapping[str, torch.Tensor]
) -> None:
    """Write into a weight of this name what its packed copies hold."""
    flat = elements(weight.view(weight.shape[0], -1))
    for key, op in products.items():
        if _packing(op).tensors != (name,):
            continue
        rows = torch.from_numpy(_packing(op).rows.reshape(-1)).to(weight.device)
        lo, hi = _columns(op)
        laid = elements(packed[key]).permute(0, 3, 1, 2, 4).reshape(len(rows), -1)[:, : hi - lo]
        flat[rows[rows >= 0], lo:hi] = laid[rows >= 0]


def held_whole(graph: Graph, products: Iterable[Product]) -> dict[str, tuple[str, ...]]:
    """Weights that no op reads as they are, and of which packed copies hold every element as it is, with the
    forms of these copies."""
    of: dict[str, list[Product]] = {}
    for op in products:
        of.setdefault(_packing(op).tensors[0], []).append(op)
    return {
        name: tuple(sorted({form(op) for op in found}))
        for name, found in of.items()
        if all(len(_packing(op).tensors) == 1 for op in found)
        and _readers(graph, name) == sorted(op.bound.op.name for op in found)
        and _covered(found)
    }


def _readers(graph: Graph, name: str) -> list[str]:
    """The ops that read a tensor, once for each operand."""
    return sorted(op.name for op in graph.ops for operand in op.operands if operand.tensor == name)


def _covered(found: list[Product]) -> bool:
    """Whether every row is there, in columns that together are all."""
    height, *wide = found[0].plan.graph.tensors[_packing(found[0]).tensors[0]].plan_shape
    covered = 0
    for lo, hi in sorted({_columns(op) for op in found}):
        rows = np.concatenate([_packing(op).rows.reshape(-1) for op in found if _columns(op) == (lo, hi)])
        if lo > covered or len(np.unique(rows[rows >= 0])) != height:
            return False
        covered = max(covered, hi)
    return covered == math.prod(wide)


def _columns(op: Product) -> tuple[int, int]:
    """Of the weight, from … up to, that the op reads."""
    lo, hi = k_range(op.bound)
    operand = op.bound.op.operands[1]
    first = operand.columns[0] if operand.columns else 0
    return first + lo, first + hi


def _packing(op: Product) -> Packing:
    assert op.packing
    return op.packing
