"""A plan, its JSON or a file of it, checked by code that shares nothing with the planner (tilegen.proof)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegen.errors import PlanError
from tilegen.frontend.program import Program
from tilegen.frontend.spec import Spec
from tilegen.proof.checker import Certificate, check, prove
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import MALFORMED, Plan


def verify(what: Plan | Mapping[str, Any] | str | Path) -> Certificate:
    """Check a plan, its JSON, or a file of it, by code that shares nothing with the planner.

    Raises:
        ProofError: a check fails; it names the tile, the elements and the missing edge.
        PlanError: what is given is no plan, or its file cannot be read.
    """
    return prove(as_expanded(what))


def certify(what: Plan | Mapping[str, Any] | str | Path) -> Certificate:
    """As verify, but gives the certificate of a wrong plan too, with its violations."""
    return check(as_expanded(what))


def as_expanded(what: Plan | Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(what, Plan):
        return expanded(what)
    if not isinstance(what, (Mapping, str, Path)):
        way = {Program: "tg.verify(tg.plan(program, on=…))", Spec: "tg.verify(tg.plan(spec(…), on=…))"}.get(
            type(what), ""
        )
        raise PlanError(
            f"expected a Plan, its JSON or a file of it, given a {type(what).__name__}{way and f': {way}'}"
        )
    data = what if isinstance(what, Mapping) else load_json(what)
    if "tiles" in data:
        return dict(data)
    made = Plan.from_json(data)
    try:
        return expanded(made)
    except MALFORMED as error:
        ops = ", ".join(op.name for op in made.graph.ops)
        raise PlanError(f"the plan of {ops} was changed by hand: {type(error).__name__} {error}") from None


def load_json(path: str | Path) -> dict[str, Any]:
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise PlanError(f"cannot read the plan file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise PlanError(f"{path}: a plan is a JSON object, this is a {type(data).__name__}")
    return data
