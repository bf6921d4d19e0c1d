"""The parts of a plan as JSON: tensors, ops, calls, semaphore maps, segments; its formulas for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilegen.analysis.regions import pretty, pretty_box
from tilegen.errors import PlanError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import Call, Operand, Tensor
from tilegen.graph.forms import Proxies
from tilegen.ops.base import Epilogue, OpInstance, TileOp, kind
from tilegen.ops.cluster import CLUSTER_SHAPES, CLUSTER_SPLITS
from tilegen.ops.pointwise import check_expression
from tilegen.schedule.order import Segment
from tilegen.schedule.policy import Grouping
from tilegen.schedule.waits import SemaphoreMap, Wait


def tensor_to_json(t: Tensor) -> dict[str, Any]:
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
    given = {key: frozen(v) for key, v in items.items()}
    return kind(kind_name).attributes.from_items(given, f"{what} of the plan ({kind_name})")


def call_to_json(call: Call) -> dict[str, Any]:
    return {
        "name": call.name,
        "kind": call.kind,
        "attributes": _attributes_to_json(call),
        "operands": [o.to_json() for o in call.operands],
        "result": call.result,
    }


def call_from_json(data: Mapping[str, Any]) -> Call:
    attributes = _attributes_from_json(data["kind"], data["attributes"], f"call {data['name']!r}")
    operands = tuple(Operand.from_json(o) for o in data["operands"])
    return Call(data["kind"], data["name"], operands, data["result"], attributes)


def op_to_json(b: OpInstance, proxies: Proxies) -> dict[str, Any]:
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


def formulas(b: OpInstance) -> dict[str, Any]:
    """An op's access maps as a person writes them."""
    return {
        "reads": {f"{a.operand}:{a.when}": pretty_box(a.box) for a in b.reads},
        "writes": pretty_box(b.write),
        "steps": pretty(b.steps),
        "grid": [pretty(n) for n in b.grid],
    }


def wait_words(w: Wait) -> dict[str, Any]:
    groups = [[pretty(r.lo), pretty(r.hi)] for r in w.ranges]
    return {
        "edge": w.edge.name,
        "tensor": w.edge.tensor,
        "operand": w.edge.access.operand,
        "when": w.edge.access.when,
        "groups": groups,
    }


def map_to_json(m: SemaphoreMap) -> dict[str, Any]:
    groups = [{"how": g.how, "blocks": g.blocks, "size": g.size, "table": list(g.table)} for g in m.partition]
    return {"producer": m.producer, "tensor": m.tensor, "base": m.base, "posts": m.posts, "groups": groups}


def segment_to_json(s: Segment) -> dict[str, Any]:
    return {"op": s.op, "lo": list(s.lo), "hi": list(s.hi), "group": s.group, "last_first": s.last_first}


def frozen(value: Any) -> Any:
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


def op_from_json(name: str, data: Mapping[str, Any]) -> TileOp:
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


def proxies_from_json(name: str, op: Mapping[str, Any]) -> Proxies:
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


def grouping_from_json(producer: str, g: Mapping[str, Any]) -> Grouping:
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
