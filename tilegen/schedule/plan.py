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
from tilegen.analysis.regions import Array, Blocking, Tiles, full, pretty, pretty_box, tiles_of
from tilegen.arch.machine import Machine, machine_from_json
from tilegen.errors import AnalysisError, PlanError, SpecError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.dims import Dim
from tilegen.frontend.names import check_name
from tilegen.frontend.program import DTYPES, Call, Operand, Size, Tensor, listed
from tilegen.graph.forms import Proxies
from tilegen.graph.graph import Graph
from tilegen.ops.base import CLUSTER_SHAPES, CLUSTER_SPLITS, Epilogue, OpInstance, TileOp, kind
from tilegen.ops.gemm import cluster_problem
from tilegen.ops.pointwise import check_expression
from tilegen.schedule.order import Order, Segment
from tilegen.schedule.policy import Grouping
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
                "ops": {b.op.name: _formulas(b) for b in self.bounds},
                "waits": [_wait_words(w) for w in self.waits],
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
            "tensors": {n: _tensor_to_json(t) for n, t in self.graph.tensors.items()},
            "ops": {b.op.name: _op_to_json(b, self.proxies_of(b.op.name)) for b in self.bounds},
            **(
                {"calls": [_call_to_json(c) for c in self.calls], "returns": list(self.returns)}
                if self.calls
                else {}
            ),
            "arguments": list(self.arguments),
            "outputs": list(self.outputs),
            "policies": dict(self.policies),
            "semaphores": [] if self.dim else list(self.targets),
            "maps": [_map_to_json(m) for m in self.semaphores],
            "order": {
                "name": self.order.name,
                "segments": [_segment_to_json(s) for s in self.order.segments],
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


def _tensor_to_json(t: Tensor) -> dict[str, Any]:
    return {
        "shape": list(t.plan_shape),
        "dtype": t.dtype,
        "role": t.role,
        "declared": list(t.shape),
        "form": t.form,
    }


def _attributes_to_json(op: Call | TileOp) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in op.attributes.items()}


def _attributes_from_json(kind_name: str, items: Mapping[str, Any], what: str) -> Attributes:
    given = {key: _frozen(v) for key, v in items.items()}
    return kind(kind_name).attributes.from_items(given, f"{what} of the plan ({kind_name})")


def _call_to_json(call: Call) -> dict[str, Any]:
    return {
        "name": call.name,
        "kind": call.kind,
        "attributes": _attributes_to_json(call),
        "operands": [o.to_json() for o in call.operands],
        "result": call.result,
    }


def _call_from_json(data: Mapping[str, Any]) -> Call:
    attributes = _attributes_from_json(data["kind"], data["attributes"], f"call {data['name']!r}")
    operands = tuple(Operand.from_json(o) for o in data["operands"])
    return Call(data["kind"], data["name"], operands, data["result"], attributes)


def _op_to_json(b: OpInstance, proxies: Proxies) -> dict[str, Any]:
    op = b.op
    attributes = _attributes_to_json(op)
    if op.epilogue is not None:
        attributes["epilogue"] = op.epilogue.to_json()
    return {
        "kind": op.kind,
        "attributes": attributes,
        "operands": [o.to_json() for o in op.operands],
        "result": op.result,
        "tile": list(op.tile),
        "cluster": op.cluster,
        **({"cluster_split": op.cluster_split} if op.cluster > 1 else {}),
        **({"pingpong": True} if op.pingpong else {}),
        **({"pixels": True} if op.pixels else {}),
        **({} if b.kind.built_in else {"footprint": "declared"}),
        **(
            {}
            if proxies == Proxies()
            else {"async": {"reads": list(proxies.reads), "writes": proxies.writes}}
        ),
    }


def _formulas(b: OpInstance) -> dict[str, Any]:
    """An op's access maps as a person writes them."""
    return {
        "reads": {f"{a.operand}:{a.when}": pretty_box(a.box) for a in b.reads},
        "writes": pretty_box(b.write),
        "steps": pretty(b.steps),
        "grid": [pretty(n) for n in b.grid],
    }


def _wait_words(w: Wait) -> dict[str, Any]:
    groups = [[pretty(r.lo), pretty(r.hi)] for r in w.ranges]
    return {
        "edge": w.edge.name,
        "tensor": w.edge.tensor,
        "operand": w.edge.access.operand,
        "when": w.edge.access.when,
        "groups": groups,
    }


def _map_to_json(m: SemaphoreMap) -> dict[str, Any]:
    groups = [{"how": g.how, "blocks": g.blocks, "size": g.size, "table": list(g.table)} for g in m.partition]
    return {"producer": m.producer, "tensor": m.tensor, "base": m.base, "posts": m.posts, "groups": groups}


def _segment_to_json(s: Segment) -> dict[str, Any]:
    return {"op": s.op, "lo": list(s.lo), "hi": list(s.hi), "group": s.group, "last_first": s.last_first}


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def _op_from_json(name: str, data: Mapping[str, Any]) -> TileOp:
    items = dict(data["attributes"])
    epilogue = Epilogue.from_json(items.pop("epilogue")) if "epilogue" in items else None
    definition = kind(data["kind"])
    attributes = _attributes_from_json(data["kind"], items, f"op {name!r}")
    if epilogue is not None:
        names = {f"e{n}" for n in range(len(epilogue.operands))} | {*definition.accumulators(attributes)}
        check_expression(epilogue.expression, names, f"op {name!r} of the plan")
    operands = tuple(Operand.from_json(o) for o in data["operands"])
    for what, numbers in (("tile", data["tile"]), ("cluster", [data["cluster"]])):
        if (
            not isinstance(numbers, list)
            or not numbers
            or not all(type(n) is int and 1 <= n < 2**31 for n in numbers)
        ):
            raise PlanError(f"op {name!r} of the plan: {what} is {data[what]!r}, expected positive ints")
    cluster_split = data.get("cluster_split", "k")
    if cluster_split not in (*CLUSTER_SPLITS, *CLUSTER_SHAPES):
        raise PlanError(
            f"op {name!r} of the plan: cluster_split is {cluster_split!r}, expected one of"
            f" {', '.join((*CLUSTER_SPLITS, *CLUSTER_SHAPES))}"
        )
    flags = {what: data.get(what, False) for what in ("pingpong", "pixels")}
    for what, flag in flags.items():
        if type(flag) is not bool:
            raise PlanError(f"op {name!r} of the plan: {what} is {flag!r}, expected true or false")
    return TileOp(
        name,
        data["kind"],
        operands,
        data["result"],
        attributes,
        epilogue,
        tuple(data["tile"]),
        data["cluster"],
        cluster_split if data["cluster"] > 1 else "k",
        **flags,
    )


def _proxies_from_json(name: str, op: Mapping[str, Any]) -> Proxies:
    reads, writes = op["async"]["reads"], op["async"]["writes"]
    known = range(len(op["operands"]))
    if (
        not isinstance(reads, list)
        or any(type(n) is not int or n not in known for n in reads)
        or type(writes) is not bool
    ):
        raise PlanError(
            f"op {name!r} of the plan: async is {op['async']!r}, expected reads, a list of numbers of its "
            f"{len(known)} operands, and writes, true or false"
        )
    return Proxies(tuple(reads), writes)


def _grouping_from_json(producer: str, g: Mapping[str, Any]) -> Grouping:
    if g["how"] not in ("all", "each", "every", "modulo", "table"):
        raise PlanError(
            f"the semaphores of {producer!r} are grouped {g['how']!r}, "
            "expected all, each, every, modulo or table"
        )
    for what in ("blocks", "size"):
        if type(g[what]) is not int or not 1 <= g[what] < 2**31:
            raise PlanError(
                f"the semaphores of {producer!r}: {what} of a group is {g[what]!r}, expected a positive int"
            )
    table = tuple(g["table"])
    if g["how"] == "table" and (
        len(table) != g["blocks"] or any(type(n) is not int or not 0 <= n < g["blocks"] for n in table)
    ):
        raise PlanError(
            f"the semaphores of {producer!r}: the table of a group is {g['table']!r}, "
            f"expected the group of each of {g['blocks']} blocks"
        )
    return Grouping(g["how"], g["blocks"], g["size"], table)


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
    ops = tuple(_op_from_json(name, op) for name, op in data["ops"].items())
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
        partition = tuple(_grouping_from_json(m["producer"], g) for g in m["groups"])
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
        tuple((k, _frozen(v)) for k, v in data["sizes"].items()),
        machine_from_json(data["machine"]),
        graph,
        tuple(data["arguments"]),
        tuple(maps),
        tuple(data["policies"].items()),
        Order(data["order"]["name"], segments),
        scheduling,
        data["lowering"],
        data["target"],
        tuple((name, _proxies_from_json(name, op)) for name, op in data["ops"].items() if "async" in op),
        tuple(map(_call_from_json, data.get("calls", ()))),
        tuple(data.get("returns", ())),
    )
