"""Plan: the only contract between analysis and code generation. Frozen, serialisable, versioned.

What is stored is small (ops, tiles, semaphore maps, order, scheduling); everything else follows from the ops'
access maps and is derived here: edges, waits, and, on demand, the expanded list of tiles of
docs/plan-format.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tilegen.analysis.dependence import Edge, relation
from tilegen.analysis.regions import Array, Blocking, Tiles, full, pretty, tiles_of
from tilegen.arch.machine import Machine, machine_from_json
from tilegen.errors import AnalysisError, PlanError, SpecError
from tilegen.frontend.dims import Dim
from tilegen.frontend.names import check_name
from tilegen.frontend.program import DTYPES, Call, Size, Tensor, listed
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.base import OpInstance, TileOp
from tilegen.ops.gemm import cluster_problem
from tilegen.schedule.order import Order, Segment
from tilegen.schedule.plan_json import (
    call_from_json,
    call_to_json,
    formulas,
    frozen,
    grouping_from_json,
    map_to_json,
    op_from_json,
    op_to_json,
    proxies_from_json,
    segment_to_json,
    tensor_to_json,
    wait_words,
)
from tilegen.schedule.waits import SemaphoreMap, Wait, wait

VERSION = 3

Scheduling = str | tuple[tuple[int, ...], ...]  # "dynamic", or a list of ranks per SM


@dataclass(frozen=True)
class WaitTable:
    """All waits of a plan, sorted by (rank, CTA rank, step, operand): parallel arrays."""

    rank: Array
    cta_rank: Array
    step: Array
    operand: Array
    semaphore: Array
    target: Array


# what reading a plan that somebody has changed by hand may raise
MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, AnalysisError)


@dataclass(frozen=True)
class Plan:
    """How a program is run on a machine: the ops with their tiles, an order of all tiles, the semaphores with
    their policies, and who runs which rank. All waits and posts follow from these."""

    program: str
    sizes: tuple[tuple[str, Any], ...]
    machine: Machine
    graph: Graph
    arguments: tuple[str, ...]  # tensors a kernel is called with, in declaration order
    semaphores: tuple[SemaphoreMap, ...]
    policies: tuple[tuple[str, str], ...]  # tensor -> the lattice point its semaphore map came from
    order: Order
    scheduling: Scheduling = "dynamic"
    lowering: str = "persistent"
    target: str = ""  # the name of the target that emits its kernel
    proxies: tuple[tuple[str, Proxies], ...] = ()  # op -> how that kernel's tiles of it read and write
    calls: tuple[Call, ...] = ()  # what the user wrote, which the proof holds the ops against
    returns: tuple[str, ...] = ()  # what the user's program gives, as outputs by the calls' names
    dim: Dim | None = None  # what moves: sizes of tensors, orders and semaphores are then formulas of it
    _repr_html_: ClassVar[Callable[[Plan], str] | None] = None  # its picture in a notebook: tilegen.api's

    # --- derived --------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.graph.outputs

    @property
    def bounds(self) -> tuple[OpInstance, ...]:
        return tuple(self.graph.bound(op) for op in self.graph.ops)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.graph.edges

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        if self.lowering == "multi_launch":  # kernel boundaries stand in their place
            return ()
        maps = {(m.producer, m.tensor): m for m in self.semaphores}
        for e in self.edges:
            # an edge that meets no element (a window that sees nothing but padding) needs none
            if (e.producer.op.name, e.tensor) not in maps and not self.dim and len(relation(e).tile):
                raise PlanError(f"the plan has no semaphores for {e.name} through {e.tensor!r}")
        found: list[Wait] = []
        for w in (
            wait(e, maps[e.producer.op.name, e.tensor])
            for e in self.edges
            if (e.producer.op.name, e.tensor) in maps
        ):
            if not any(w.repeats(other) for other in found):
                found.append(w)
        return tuple(found)

    @cached_property
    def targets(self) -> tuple[int, ...]:
        return tuple(int(n) for m in self.semaphores for n in m.targets())

    @cached_property
    def ranks(self) -> dict[str, Array]:
        return self.order.ranks(self.graph)

    @property
    def semaphore_count(self) -> Size:
        """How many semaphores there are."""
        return sum(m.count for m in self.semaphores)

    @property
    def cluster(self) -> int:
        """SMs that work together: the largest cluster of any op."""
        return max(op.cluster for op in self.graph.ops)

    def refuse_other(self, target: str) -> None:
        """Keep a plan from a target that it was not proved for.

        Raises:
            PlanError: the plan was made for another target.
        """
        if self.target != target:
            raise PlanError(
                f"{self.program}: the plan is one for target {self.target or 'unknown'}, not {target}: its"
                f" proof says nothing of other kernels; plan it with target={target!r}"
            )

    def proxies_of(self, op: str) -> Proxies:
        """How tiles of an op read and write; through the generic proxy where nothing is said."""
        return dict(self.proxies).get(op, Proxies())

    def sms_of(self, op: TileOp, place: int) -> range:
        """Of its cluster, the SMs that a tile at this place of a static list takes: all, or where it has one
        CTA each in turn."""
        first = place % self.cluster
        return range(self.cluster) if op.cluster > 1 else range(first, first + 1)

    def waits_of(self, op: str) -> tuple[Wait, ...]:
        return tuple(w for w in self.waits if w.edge.consumer.op.name == op)

    def posts_of(self, op: str) -> tuple[SemaphoreMap, ...]:
        return tuple(m for m in self.semaphores if m.producer == op)

    def blocking(self, m: SemaphoreMap) -> tuple[Blocking, ...]:
        """How the producer cuts the tensor that a semaphore map is for."""
        return next(
            e.blocking for e in self.edges if e.producer.op.name == m.producer and e.tensor == m.tensor
        )

    def posted(self, m: SemaphoreMap) -> Array:
        """The semaphore that each tile of the producer posts to, in row-major order of its grid."""
        # asked for twice of every plan that is tried: whether it progresses, and to simulate it
        kept: dict[tuple[str, str], Array] = self.__dict__.setdefault("_posted", {})
        if (m.producer, m.tensor) not in kept:
            tiles = tiles_of(self.graph.bound(self.graph.op(m.producer)))
            cuts = zip(m.partition, self.blocking(m), strict=True)
            numbers = m.number([g.of(tiles.value(c.index)) for g, c in cuts])
            kept[m.producer, m.tensor] = full(numbers, tiles.count)
        return kept[m.producer, m.tensor]

    @cached_property
    def wait_table(self) -> WaitTable:
        columns: list[tuple[Array, ...]] = []
        for w in self.waits:
            tiles, ranks = tiles_of(w.edge.consumer), self.ranks[w.edge.consumer.op.name]
            for cta_rank in range(w.edge.consumer.op.cluster):
                tile, step, first = cta_steps(tiles, w, cta_rank)
                entry, semaphore, target = w.entries(tile, step, first)
                operand = np.full(len(entry), w.edge.access.operand)
                columns.append(
                    (
                        ranks[tile[entry]],
                        np.full(len(entry), cta_rank),
                        step[entry],
                        operand,
                        semaphore,
                        target,
                    )
                )
        table = (
            [np.concatenate(c).astype(np.int64) for c in zip(*columns, strict=True)]
            if columns
            else [np.zeros(0, np.int64)] * 6
        )
        order = np.lexsort(tuple(reversed(table[:5])))
        return WaitTable(*(c[order] for c in table))

    @cached_property
    def digest(self) -> str:
        """Names the binary: a hash of everything that code generation reads."""
        moves = {"moves": {self.dim.name: self.dim.most}} if self.dim else {}
        text = json.dumps({**self._stored(), **moves}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        tiles = listed([f"{op.name} {'x'.join(map(str, op.tile))}" for op in self.graph.ops])
        where = f"{self.program}({listed([f'{k}={v}' for k, v in self.sizes])}) on {self.machine.name}"
        return (
            f"<Plan {where}: {pretty(self.order.count)} tiles ({tiles}), {pretty(self.semaphore_count)}"
            f" semaphores, order {self.order.name}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self.dim:  # JSON has no formulas
            return Plan, tuple(getattr(self, f.name) for f in fields(self))
        return Plan.from_json, (self._stored(),)

    def __deepcopy__(self, memo: Any) -> Plan:
        return self  # frozen

    # --- JSON -----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The compact plan. `formulas` is for people: reading a plan back derives them anew."""
        return {
            **self._stored(),
            "formulas": {
                "ops": {b.op.name: formulas(b) for b in self.bounds},
                "waits": [wait_words(w) for w in self.waits],
            },
        }

    def _stored(self) -> dict[str, Any]:
        """What a plan consists of."""
        scheduling = (
            self.scheduling
            if isinstance(self.scheduling, str)
            else [list(ranks) for ranks in self.scheduling]
        )
        return {
            "version": VERSION,
            "program": self.program,
            "sizes": dict(self.sizes),
            "machine": self.machine.to_json(),
            "target": self.target,
            "lowering": self.lowering,
            "scheduling": scheduling,
            "tensors": {n: tensor_to_json(t) for n, t in self.graph.tensors.items()},
            "ops": {b.op.name: op_to_json(b, self.proxies_of(b.op.name)) for b in self.bounds},
            **(
                {"calls": [call_to_json(c) for c in self.calls], "returns": list(self.returns)}
                if self.calls
                else {}
            ),
            "arguments": list(self.arguments),
            "outputs": list(self.outputs),
            "policies": dict(self.policies),
            "semaphores": [] if self.dim else list(self.targets),
            "maps": [map_to_json(m) for m in self.semaphores],
            "order": {
                "name": self.order.name,
                "segments": [segment_to_json(s) for s in self.order.segments],
            },
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Read a compact plan.

        Raises:
            PlanError: something is missing or wrong; it names what.
        """
        if not isinstance(data, Mapping):
            raise PlanError(f"a plan is a JSON object, given a {type(data).__name__}")
        if data.get("version") != VERSION:
            raise PlanError(f"plan version {data.get('version')!r}, expected {VERSION}")
        try:
            plan = _plan_from_json(data)
            same = list(plan.targets) == list(data["semaphores"])
        except MALFORMED as error:
            raise PlanError(f"the plan is not readable: {type(error).__name__} {error}") from None
        if not same:
            raise PlanError(
                "the plan's semaphore targets do not follow from its maps: the file was changed by hand"
            )
        return plan


def static_persistent(tiles: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """The static lists that need no table: worker w runs ranks w, w + workers, w + 2·workers, …"""
    return tuple(tuple(range(worker, tiles, workers)) for worker in range(workers))


def step_range(tiles: Tiles, cta_rank: int) -> tuple[Array, Array]:
    """The steps [start, end) that a CTA of each tile runs: its part of them, or all where the cluster splits
    rows or columns."""
    op = tiles.bound.op
    if op.cluster_shape.k == 1:
        return np.zeros_like(tiles.steps), tiles.steps
    return tiles.steps * cta_rank // op.cluster, tiles.steps * (cta_rank + 1) // op.cluster


def cta_steps(tiles: Tiles, w: Wait, cta_rank: int) -> tuple[Array, Array, Array]:
    """(tile, step, whether it is the CTA's first) at which a wait of this CTA may stand."""
    tile = np.arange(tiles.count)
    start, end = step_range(tiles, cta_rank)
    always = np.ones(tiles.count, dtype=bool)
    match w.edge.access.when:
        case "first":
            return tile, np.full(tiles.count, -1), always
        case "epilogue":
            return tile, tiles.steps, always
    if not w.stepped:
        some = end > start
        return tile[some], start[some], always[some]
    count = end - start
    tile = np.repeat(tile, count)
    step = np.arange(len(tile)) - (np.cumsum(count) - count)[tile] + start[tile]
    return tile, step, step == start[tile]


def _plan_from_json(data: Mapping[str, Any]) -> Plan:
    tensors = {
        n: Tensor(n, tuple(t["declared"]), t["dtype"], t["role"], "", t["form"])
        for n, t in data["tensors"].items()
    }
    for name in (data["program"], *data["tensors"], *data["ops"]):
        try:
            check_name(name, "the plan")  # names are written into the generated source
        except SpecError as error:
            raise PlanError(str(error)) from None
    ops = tuple(op_from_json(name, op) for name, op in data["ops"].items())
    for t in tensors.values():
        if t.dtype not in DTYPES:
            raise PlanError(
                f"tensor {t.name!r} of the plan has dtype {t.dtype!r}, expected one of {', '.join(DTYPES)}"
            )
    used = [
        *data["arguments"],
        *data["outputs"],
        *(op.result for op in ops),
        *(o.tensor for op in ops for o in op.operands),
    ]
    unknown = [n for n in used if n not in tensors]
    if unknown:
        raise PlanError(f"the plan has no tensor {unknown[0]!r}")
    maps = []
    for m in data["maps"]:
        partition = tuple(grouping_from_json(m["producer"], g) for g in m["groups"])
        maps.append(SemaphoreMap(m["producer"], m["tensor"], partition, m["base"], m["posts"]))
    segments = tuple(
        Segment(s["op"], tuple(s["lo"]), tuple(s["hi"]), s["group"], s["last_first"])
        for s in data["order"]["segments"]
    )
    scheduling = (
        data["scheduling"]
        if isinstance(data["scheduling"], str)
        else tuple(tuple(ranks) for ranks in data["scheduling"])
    )
    graph = Graph(data["program"], tensors, ops, tuple(data["outputs"]))
    for op in ops:
        problem = cluster_problem(graph.bound(op))
        if problem:
            raise PlanError(f"op {op.name!r} of the plan: {problem}")
    return Plan(
        data["program"],
        tuple((k, frozen(v)) for k, v in data["sizes"].items()),
        machine_from_json(data["machine"]),
        graph,
        tuple(data["arguments"]),
        tuple(maps),
        tuple(data["policies"].items()),
        Order(data["order"]["name"], segments),
        scheduling,
        data["lowering"],
        data["target"],
        tuple((name, proxies_from_json(name, op)) for name, op in data["ops"].items() if "async" in op),
        tuple(map(call_from_json, data.get("calls", ()))),
        tuple(data.get("returns", ())),
    )
