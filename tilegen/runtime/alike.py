"""Launches that are alike: the same plan but for its names, as a net has them layer after layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan

NAMED = ("program", "formulas", "tensors", "ops", "arguments", "outputs", "order")  # what has names in it


def nameless(plan: Plan | MovingPlan) -> str:
    """The plan of a launch of one op as a text whose tensors are numbers. Of two launches with one text each
    is right where the other is: the checker asks no name of a launch of one op.

    Where a size moves, the formulas of shapes and attributes belong to it, and the sizes that it is for.
    """
    at, moves = (plan.most, _moving(plan)) if isinstance(plan, MovingPlan) else (plan, [])
    told = at.to_json()
    number = {name: n for n, name in enumerate(told["tensors"])}
    (op,) = told["ops"].values()
    order = told["order"]
    return json.dumps(
        [
            {key: value for key, value in told.items() if key not in NAMED},
            list(told["tensors"].values()),
            {
                **op,
                "operands": [_numbered(o, number) for o in op["operands"]],
                "result": number[op["result"]],
            },
            [number[name] for name in (*told["arguments"], *told["outputs"])],
            {**order, "segments": [{**segment, "op": 0} for segment in order["segments"]]},
            moves,
        ]
    )


def _numbered(operand: str | dict[str, Any], number: Mapping[str, int]) -> Any:
    """A tensor, or some of its columns."""
    return number[operand] if isinstance(operand, str) else {**operand, "tensor": number[operand["tensor"]]}


def _moving(plan: MovingPlan) -> list[str]:
    (op,) = plan.open.graph.ops
    shapes = [str((t.shape, t.plan_shape)) for t in plan.open.graph.tensors.values()]
    return [*shapes, str(asdict(op.attributes)), str(plan.ranges), plan.dim.name]
