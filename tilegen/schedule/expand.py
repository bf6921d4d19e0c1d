"""A plan tile by tile: the JSON of docs/plan-format.md, for the checker, the interpreter and anyone else's
program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilegen.analysis.regions import Array, Tiles, depends_on_step, evaluate, tiles_of
from tilegen.ops.base import Access, Box, OpInstance
from tilegen.ops.gemm import split_box
from tilegen.schedule.plan import Plan, step_range

_Read = tuple[int, int, str, list[list[int]], dict[str, str]]  # step, operand, tensor, box, {"proxy": …}


def expanded(plan: Plan) -> dict[str, Any]:
    """The compact plan plus `tiles`, in rank order."""
    tiles: list[dict[str, Any] | None] = [None] * plan.order.count
    waits = _waits_by_read(plan)
    for b in plan.bounds:
        ranks, grid = plan.ranks[b.op.name], tiles_of(b)
        coords = np.stack(list(grid.coords.values()), axis=1).tolist() if grid.coords else [[]]
        ctas = [list(_cta(plan, b, grid, cta_rank, waits)) for cta_rank in range(b.op.cluster)]
        for tile, rank in enumerate(ranks.tolist()):
            tiles[rank] = {
                "rank": rank,
                "op": b.op.name,
                "coord": coords[tile],
                "ctas": [c[tile] for c in ctas],
            }
    return {**plan.to_json(), "tiles": tiles}


def _waits_by_read(plan: Plan) -> dict[tuple[int, int, int, int], list[list[int]]]:
    """(rank, CTA rank, operand, step) -> [[semaphore, target], …]"""
    table = plan.wait_table
    out: dict[tuple[int, int, int, int], list[list[int]]] = {}
    columns = (table.rank, table.cta_rank, table.operand, table.step, table.semaphore, table.target)
    for rank, cta_rank, operand, step, semaphore, target in zip(*(c.tolist() for c in columns), strict=True):
        out.setdefault((rank, cta_rank, operand, step), []).append([semaphore, target])
    return out


def _cta(
    plan: Plan,
    b: OpInstance,
    tiles: Tiles,
    cta_rank: int,
    waits: dict[tuple[int, int, int, int], list[list[int]]],
) -> Iterator[dict[str, Any]]:
    ranks = plan.ranks[b.op.name].tolist()
    reads = _reads(plan, b, tiles, cta_rank)
    writes = _boxes(b, tiles, split_box(b, b.write, cta_rank), tiles.coords, np.arange(tiles.count))
    numbers = [plan.posted(m).tolist() for m in plan.posts_of(b.op.name)]
    proxy = "async" if plan.proxies_of(b.op.name).writes else "generic"
    for tile in range(tiles.count):
        entries = []
        for step, operand, tensor, box, how in reads[tile]:
            entries.append(
                {
                    "tensor": tensor,
                    "box": box,
                    "waits": waits.get((ranks[tile], cta_rank, operand, step), []),
                    **how,
                }
            )
        write = writes[tile]
        yield {
            "reads": entries,
            "writes": [{"tensor": b.op.result, "box": write, "proxy": proxy}] if write is not None else [],
            "posts": [[n[tile], 1] for n in numbers],
        }


def _reads(plan: Plan, b: OpInstance, tiles: Tiles, cta_rank: int) -> list[list[_Read]]:
    """For each tile its reads in step order; a new one starts where a new wait stands."""
    out: list[list[_Read]] = [[] for _ in range(tiles.count)]
    through_tma = plan.proxies_of(b.op.name).reads
    start, end = step_range(tiles, cta_rank)
    cuts = _wait_steps(plan, b, cta_rank)
    for access in b.reads:
        shared = (
            Access(access.operand, split_box(b, access.box, cta_rank), access.when, access.exact)
            if access.when == "epilogue"
            else access
        )
        tensor, box, _ = b.tensor_box(shared)
        how = {"proxy": "async"} if access.operand in through_tma else {}
        everything = np.arange(tiles.count)
        if access.when != "step":
            step = np.full(tiles.count, -1) if access.when == "first" else tiles.steps
            tile, lo, hi = everything, step, step
        else:
            tile, lo, hi = _pieces(
                everything, start, end, cuts.get(access.operand, {}) if depends_on_step(box) else {}
            )
        lows = _boxes(b, tiles, box, {n: a[tile] for n, a in tiles.coords.items()}, tile, lo, hi)
        for t, step, bounds in zip(tile.tolist(), lo.tolist(), lows, strict=True):
            if bounds is not None:
                out[t].append((step, access.operand, tensor, bounds, how))
    for entries in out:
        entries.sort(key=lambda e: e[:2])
    return out


def _wait_steps(plan: Plan, b: OpInstance, cta_rank: int) -> dict[int, dict[int, list[int]]]:
    """operand -> tile -> the steps with a wait, ascending."""
    table, ranks = plan.wait_table, plan.ranks[b.op.name]
    tile_of = np.full(plan.order.count, -1, dtype=np.int64)
    tile_of[ranks] = np.arange(len(ranks))
    mine = (tile_of[table.rank] >= 0) & (table.cta_rank == cta_rank)
    out: dict[int, dict[int, list[int]]] = {}
    rows = np.unique(
        np.stack((table.operand[mine], tile_of[table.rank[mine]], table.step[mine]), axis=1), axis=0
    )
    for operand, tile, step in rows.tolist():
        out.setdefault(operand, {}).setdefault(tile, []).append(step)
    return out


def _pieces(
    everything: Array, start: Array, end: Array, cuts: dict[int, list[int]]
) -> tuple[Array, Array, Array]:
    """(tile, first step, last step) of the reads: the tile's steps, cut where a wait stands."""
    tiles, lows, highs = [], [], []
    for tile, a, z in zip(everything.tolist(), start.tolist(), end.tolist(), strict=True):
        if a == z:
            continue
        inner = [k for k in cuts.get(tile, ()) if a < k < z]
        edges = [a, *inner, z]
        for lo, hi in zip(edges[:-1], edges[1:], strict=True):
            tiles.append(tile)
            lows.append(lo)
            highs.append(hi - 1)
    return np.array(tiles, dtype=np.int64), np.array(lows, dtype=np.int64), np.array(highs, dtype=np.int64)


def _boxes(
    b: OpInstance,
    tiles: Tiles,
    box: Box,
    coords: dict[str, Array],
    tile: Array,
    first: Array | None = None,
    last: Array | None = None,
) -> list[Any]:
    """The box at each entry as nested lists, the union over steps first … last; None where it is empty."""
    n = len(tile)
    k0 = np.zeros(n, dtype=np.int64) if first is None else first
    k1 = k0 if last is None else last
    columns = []
    for interval in box:
        lo = _full(evaluate(interval.lo, {**coords, "k": k0}), n)
        hi = _full(evaluate(interval.hi, {**coords, "k": k1}), n)
        columns.append((lo.tolist(), hi.tolist(), interval.stride))
    out: list[Any] = []
    for e in range(n):
        bounds = [[lo[e], hi[e]] if stride == 1 else [lo[e], hi[e], stride] for lo, hi, stride in columns]
        out.append(bounds if all(x[0] < x[1] for x in bounds) else None)
    return out


def _full(value: Any, n: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (n,))
