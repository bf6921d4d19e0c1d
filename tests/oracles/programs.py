"""What every plan of a program must pass: the proof, the element-wise oracle, its JSON, and the numbers of a
run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.oracles.elements import examine
from tests.random_programs import Case
from tilegen.errors import PlanError
from tilegen.kernels.kernel import Kernel
from tilegen.ops.reference import run
from tilegen.proof.checker import check
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.schedule.expand import expanded
from tilegen.schedule.order import op_major
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import lattices_of, plan
from tilegen.schedule.policy import Partition
from tilegen.schedule.waits import SemaphoreMap
from tilegen.targets.interpret.interpreter import Interpreter
from tilegen.targets.select import place

TOLERANCE = 1e-5


def planned(case: Case) -> tuple[Plan, bool]:
    """The plan, and whether it has the order that was asked for: an order may be refused, then the phase
    order is taken."""
    try:
        return plan(case.program, place(case.machine, "interpret"), case.options), True
    except PlanError as error:
        if "would wait for a tile of higher rank" not in str(error):
            raise
        return plan(
            case.program, place(case.machine, "interpret"), replace(case.options, order="op_major")
        ), False


def as_json(p: Plan) -> dict[str, Any]:
    """The expanded plan as someone else's program reads it."""
    return json.loads(json.dumps(expanded(p)))  # type: ignore[no-any-return]


def wrong_in(p: Plan) -> str:
    """What proof and oracle have against a plan: nothing."""
    data = as_json(p)
    certificate, report = check(data), examine(data)
    if not certificate.ok:
        return f"{'both' if not report.ok else 'only the proof'} against it: {certificate.text()}"
    return "" if report.ok else f"only the oracle is against it: {report}"


def wrong_in_json(p: Plan) -> str:
    """Whether the plan comes back from its JSON as it was."""
    back = Plan.from_json(json.loads(json.dumps(p.to_json())))
    if back.digest != p.digest:
        return "the digest changes on the way through JSON"
    return "" if as_json(back) == as_json(p) else "the expanded plan changes on the way through JSON"


def wrong_in_numbers(case: Case, p: Plan, strategy: str, seed: int) -> str:
    """Whether a run of the plan gives what the reference gives, states included."""
    arguments = random_arguments(case.program, seed)
    expected = run(case.program, arguments)
    kernel = Kernel(p, None, Interpreter(p, strategy, seed), None)
    given = kernel(*arguments)
    outputs = list(given) if isinstance(given, tuple) else [] if given is None else [given]
    outputs += [a for t, a in zip(case.program.arguments, arguments, strict=True) if t.role == "state"]
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    assert len(outputs) == len(expected)
    for number, (y, right) in enumerate(zip(outputs, expected, strict=True)):
        size, error = float(right.double().norm()), relative_error(y, right)
        if not (error <= TOLERANCE or (size == 0 and float(y.double().norm()) == 0)):
            return f"result {number} is off by {error:.2e} ({strategy})"
    return ""


def with_partition(p: Plan, tensor: str, partition: Partition) -> Plan:
    """The plan in phase order with another partition for one tensor."""
    maps, first = [], 0
    for m in p.semaphores:
        chosen = partition if m.tensor == tensor else m.partition
        maps.append(SemaphoreMap(m.producer, m.tensor, chosen, first, m.posts))
        first += maps[-1].count
    return replace(p, semaphores=tuple(maps), order=op_major(p.graph), scheduling="dynamic")


def wrong_in_lattice(p: Plan) -> tuple[str, int]:
    """What is wrong with the first bad point of any tensor's lattice, and how many points were looked at."""
    looked = 0
    for tensor, lattice in lattices_of(p.graph).items():
        for point in lattice.points:
            if not point.unawaited:
                looked += 1
                if wrong := wrong_in(with_partition(p, tensor, point.partition)):
                    return f"{tensor} by {point.name}: {wrong}", looked
    return "", looked
