"""Convolutions of a Hopper kernel that differ in their tensors alone, as those of a residual stage do, share
their code.

Where an op has a tile or two for each SM, code is a cost of its own: what an SM runs for the first time comes
from L2 or memory, a few hundred bytes at a time, between the last tile of one op and the first of the next.
And a net of forty convolutions compiles as fast as one of ten.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilegen.codegen.cuda_op import TYPES
from tilegen.targets.sm90 import linear_loads
from tilegen.targets.sm90.attention import Attention
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.conv2d import convolution
from tilegen.targets.sm90.extras import epilogue_is_older
from tilegen.targets.sm90.linear import linear
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.stage import AnyMap
from tilegen.targets.sm90.store import PixelStore
from tilegen.targets.sm90.thread_tile import ThreadTile

Op = Product | Attention | ThreadTile


@dataclass(frozen=True)
class Body:
    """The ops that share a body; most are alone."""

    members: tuple[Op, ...]

    @cached_property
    def code(self) -> Op:
        """The op that the body is generated from."""
        first = self.members[0]
        if not self.shared:
            return first
        code = Code(first.plan, first.bound, members=tuple(op.name for op in self.members))
        return convolution(code) if convolves(first) else _numbered(first, code)

    @property
    def shared(self) -> bool:
        return len(self.members) > 1

    @property
    def maps(self) -> tuple[tuple[AnyMap, ...], ...]:
        """Each tensor map of the code, as all members have it."""
        return tuple(zip(*(op.maps for op in self.members), strict=True))

    @property
    def tensors(self) -> tuple[tuple[tuple[str, str, str], ...], ...]:
        """Of each member of a shared body: (name there, type, tensor) of its result and of what its epilogue
        reads. The rest comes through maps."""
        shared = [op for op in self.members if self.shared and isinstance(op, Product)]
        return tuple(
            (
                ("y", op.result_type, op.bound.op.result),
                *((e.name, TYPES[e.dtype], e.tensor) for e in op.extras.text.operands),
            )
            for op in shared
        )


def convolves(op: Op) -> bool:
    return isinstance(op, Product) and isinstance(op.store, PixelStore)


def bodies(ops: Sequence[Op]) -> tuple[Body, ...]:
    """The ops by the body that they share, in the order of their first. Numbers of convolutions that do rise
    in even steps, so that a tile's op says which of them it is of; linears share where there are many."""
    found: list[list[int]] = []
    last: dict[Hashable, list[int]] = {}
    many = sum(_multiplies(op) for op in ops) > linear_loads.FEW_LINEARS
    for n, op in enumerate(ops):
        likeness = likeness_of(op) if many or not _multiplies(op) else op.name
        alike = last.get(likeness, [])
        if alike and (_multiplies(op) or len(alike) == 1 or n - alike[-1] == alike[1] - alike[0]):
            alike.append(n)
            continue
        found.append([n])
        last[likeness] = found[-1]
    return tuple(Body(tuple(ops[n] for n in alike)) for alike in found)


def _multiplies(op: Op) -> bool:
    """Whether it is a linear."""
    return isinstance(op, Product) and not convolves(op)


def _numbered(op: Op, code: Code) -> Product:
    """A linear whose columns and steps are looked up."""
    assert isinstance(op, Product)
    packed = frozenset(op.packing.tensors) if op.packing else frozenset[str]()
    return linear(replace(code, numbered=True), packed)


def _linear_likeness(op: Product) -> Hashable:
    """All that the code of a linear depends on but for its tensors, columns, steps and waits."""
    own = _numbered(op, Code(op.plan, op.bound, members=(op.name,)))
    b, extras, none = op.bound, own.extras, f"_of_{op.name}"
    loads = [
        (loads.at, loads.policy, loads.together, load.bytes, load.copies)
        for loads in (own.a, own.b)
        for load in loads.each
    ]
    texts = loads, own.range, own.store.corner, own.finish, extras.operands, extras.text.expression
    types = b.result.dtype, tuple(b.tensors[o.tensor].dtype for o in b.op.operands)
    flags = extras.held, extras.holds_late, extras.warms, extras.touches, epilogue_is_older(op), own.one_turn
    store = own.store.unit, own.store.staged
    tile = replace(own.tile, steps=0), own.stage, store, bool(own.packing), own.weights_once
    told = repr(texts).replace(none, "").replace(f"maps.{op.name}_", "maps._")
    return told, types, flags, repr(tile), op.rows, b.op.cluster, b.op.cluster_split


def likeness_of(op: Op) -> Hashable:
    """All that the code of an op depends on but for its tensors and waits; of ops that share no body, the
    op."""
    if not isinstance(op, Product) or op.norm:
        return op.name
    if not convolves(op):
        return _linear_likeness(op)
    b = op.bound
    operands = tuple(replace(o, tensor="") for o in b.op.operands)
    shapes: tuple[Any, ...] = tuple(
        (t.dtype, t.plan_shape) for t in (b.result, *(b.tensors[o.tensor] for o in b.op.operands))
    )
    stays = tuple(e.stays for e in op.extras.text.operands)
    epilogue = op.extras.held, op.extras.holds_late, epilogue_is_older(op), stays
    return replace(b.op, name="", result="", operands=operands), shapes, epilogue
