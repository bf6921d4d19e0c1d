"""A linear of rows that no bulk copy brings, as one of padded copies of them.

    linear(x, w) -> linear(pad(x), pad(w))        Σ_k x[m, k] w[n, k], and zeros times zeros

A bulk copy brings rows of whole 16-byte units that begin with one. Where x or w has others (1,023 columns, a
view from column 3 on), threads can copy it into rows of whole units first, zeros behind, tile by tile beside
the products that wait for them; or they can bring the rows of the product themselves (by_threads.py). What
takes less time by the model is done: a copy costs bytes, threads' products time on the tensor cores. Linears
that the options speak of stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilegen.arch.machine import Machine
from tilegen.frontend.dims import most
from tilegen.frontend.program import DTYPES, UNIT, Operand, Tensor
from tilegen.graph.by_threads import as_matmul, why
from tilegen.graph.cost_model import tile_us
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import Epilogue, OpInstance, TileOp, ceil_div
from tilegen.ops.gemm import LinearAttributes
from tilegen.ops.pad import PadAttributes
from tilegen.options import Options

FACTORS = (0, 1)  # operands of a linear: x and w
NAMED = "_padded"  # what a copy's name ends with
GAIN = 0.9  # of the time of a matmul by threads that they take at most
ROWS_OF_TILE = (64, 32, 16, 8, 4, 1)  # of copies


def padded(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph with such linears of padded copies."""
    if place.target.any_linear:
        return graph
    for b in graph.ops_of(LinearAttributes):
        if not options.named & {b.op.name, b.op.result} and why(b, place) and _may_copy(graph, b):
            made = _of_copies(graph, b, place.machine)
            if not why(made.bound(made.op(b.op.name)), place) and _faster(graph, made, b, place):
                graph = made
    return graph


def _may_copy(graph: Graph, b: OpInstance) -> bool:
    """Whether its factors have rows of a known size and keep what they are, and names of copies are free, but
    for those of copies that a linear before it reads."""
    kept = all(graph.tensors[b.op.operands[n].tensor].role != "state" for n in FACTORS)
    if not kept or not isinstance(b.shape(0)[1], int):
        return False
    names = {copy.name for copy in _new(graph, b)}
    return not names & {*graph.tensors, *(op.name for op in graph.ops)}


def _copies(b: OpInstance) -> dict[int, TileOp]:
    """Of the operands whose rows are no whole units, by their numbers, uncut."""
    unit = UNIT // DTYPES[b.dtype(0)]
    behind = -int(b.shape(0)[1]) % unit
    loose = (n for n in FACTORS if behind or int(b.pitch(n)) % unit or int(b.first(n)) % unit)
    return {n: _copy(b, n, behind) for n in loose}


def _copy(b: OpInstance, n: int, behind: int) -> TileOp:
    o = b.op.operands[n]
    name = "_".join(map(str, (o.tensor, *(o.columns or ()), *(["flat"] if o.flatten else [])))) + NAMED
    return TileOp(name, "pad", (o,), name, PadAttributes(behind), Epilogue(), where=b.op.where)


def _new(graph: Graph, b: OpInstance) -> list[TileOp]:
    """Its copies that this rewrite has not made for a linear before it: those have tiles already."""
    before = graph.ops[: graph.ops.index(b.op)]
    made = [replace(op, tile=()) for op in before if op.tile]
    return [copy for copy in dict.fromkeys(_copies(b).values()) if copy not in made]


def _of_copies(graph: Graph, b: OpInstance, machine: Machine) -> Graph:
    """The graph with that linear of copies, of which each is made once for all that read it."""
    copies = _copies(b)
    operands = tuple(Operand(copies[n].result) if n in copies else o for n, o in enumerate(b.op.operands))
    new = _new(graph, b)
    tensors = {copy.result: _result(b, n, copy) for n, copy in copies.items() if copy in new}
    made = graph.with_op(b.op.name, *new, replace(b.op, operands=operands), tensors=tensors)
    for copy in _in_tiles([made.bound(copy) for copy in new], machine):
        made = made.with_op(copy.name, copy)
    return made


def _result(b: OpInstance, n: int, copy: TileOp) -> Tensor:
    rows, columns = b.shape(n)
    shape = (rows, columns + PadAttributes.of(copy).behind)
    return Tensor(copy.result, shape, b.dtype(n), "intermediate", copy.where, "rows")


def _in_tiles(copies: Sequence[OpInstance], machine: Machine) -> list[TileOp]:
    """In tiles of as many rows as take least time where all copies run side by side."""
    cut = [[replace(c, op=replace(c.op, tile=(rows,))) for rows in ROWS_OF_TILE] for c in copies]
    return [c.op for c in min(itertools.product(*cut), key=lambda each: _side_by_side_us(each, machine))]


def _side_by_side_us(ops: Sequence[OpInstance], machine: Machine) -> float:
    """Of ops whose tiles SMs take in turn."""
    counts = [math.prod(ceil_div(most(n), t) for n, t in zip(b.out, b.tile, strict=False)) for b in ops]
    us = np.repeat([tile_us(b, machine) for b in ops], counts)
    waves = np.pad(us, (0, -len(us) % machine.sms)).reshape(-1, machine.sms)
    return float(waves.sum(axis=0).max())


def _faster(graph: Graph, made: Graph, b: OpInstance, place: Place) -> bool:
    """Whether copies and a linear that waits for them take less time than a matmul by threads."""
    chosen = place.forms.choose(made.alone(made.op(b.op.name)), place.machine).get(b.op.name)
    if chosen is None:
        return False
    known = {op.name for op in graph.ops}
    copied = _side_by_side_us([made.bound(op) for op in made.ops if op.name not in known], place.machine)
    matmul = as_matmul(graph, b)
    product = matmul.bound(matmul.op(b.op.name))
    cut = replace(product, op=replace(product.op, tile=place.forms.configs(product, place.machine)[0]))
    by_threads = _side_by_side_us([cut], place.machine)
    return copied + place.machine.handoff_us + chosen.us < GAIN * by_threads


def lines(graph: Graph, place: Place) -> list[str]:
    """For `explain`: each copy that a linear reads."""
    read = {o.tensor for b in graph.ops_of(LinearAttributes) for o in b.op.operands}
    return [
        f"{b.op.name} is a copy of {b.op.operands[0].tensor!r}, {b.out[1]} columns for {b.shape(0)[1]}:"
        f" linears take rows of whole {UNIT}-byte units"
        for b in graph.ops_of(PadAttributes)
        if b.op.result in read and b.op.name.endswith(NAMED)
    ]


REWRITE = Rewrite(3, padded, lines)
