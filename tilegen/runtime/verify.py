"""A plan, its JSON or a file of it, checked by code that shares nothing with the planner (tilegen.proof).

Where a size moves, its values fall into runs: within one every grid, hence every tile, rank, semaphore and
wait is the same, and only the last rows of what moves are fewer. Bounds of boxes are minima of the size times
a constant and constants, so they rise with the size inside a run. The plan is proved at both ends of every
run; where that is too much, at both ends of as many as the budget allows, the first and the last always, and
the certificate says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilegen.errors import PlanError, ProofError
from tilegen.frontend.dims import most
from tilegen.frontend.program import Program
from tilegen.frontend.spec import Spec
from tilegen.proof.checker import Certificate, check, prove
from tilegen.schedule.expand import expanded
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import MALFORMED, Plan


def verify(what: Plan | MovingPlan | Mapping[str, Any] | str | Path) -> Certificate:
    """Check a plan, its JSON, or a file of it, by code that shares nothing with the planner. Where a size
    moves, the certificate says at which of its values.

    Raises:
        ProofError: a check fails; it names the tile, the elements and the missing edge, and the size.
        PlanError: what is given is no plan, or its file cannot be read.
    """
    if not isinstance(what, MovingPlan):
        return prove(as_expanded(what))
    certificate = certify_range(what)
    if not certificate.ok:
        raise ProofError(certificate.text())
    return certificate


def certify(what: Plan | MovingPlan | Mapping[str, Any] | str | Path) -> Certificate:
    """As verify, but gives the certificate of a wrong plan too, with its violations."""
    return certify_range(what) if isinstance(what, MovingPlan) else check(as_expanded(what))


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


# --- a size that moves ------------------------------------------------------------------------------------

MOST_TILES = 100_000  # that are proved, of all runs together


def certify_range(plan: MovingPlan, at: Callable[[int], Certificate] | None = None) -> Certificate:
    """The certificate of all sizes that are checked; of the first that fails, where one does. at: that of one
    size, by default of the plan there."""
    at = at or (lambda size: certify(plan.at(size)))
    found = plan.runs
    chosen = _within(found, most(plan.open.order.count))
    sizes = sorted({size for run in chosen for size in run})
    made = [(size, at(size)) for size in sizes]
    failed = next(((size, c) for size, c in made if not c.ok), None)
    of_range = {plan.dim.name: plan.sizes}
    if failed:
        size, certificate = failed
        return replace(certificate, proved_at=f"{plan.dim.name} = {size}")
    certificate = made[-1][1]
    named = tuple((name, of_range.get(name, n)) for name, n in certificate.sizes)
    return replace(certificate, sizes=named, proved_at=_words(plan, found, chosen, sizes))


def _within(found: Sequence[tuple[int, int]], tiles: int) -> list[tuple[int, int]]:
    """All runs, or as many as the budget allows, evenly."""
    allowed = max(4, MOST_TILES // tiles)
    if len(found) <= allowed:
        return list(found)
    at: Any = np.unique(np.linspace(0, len(found) - 1, allowed).round().astype(int))
    return [found[n] for n in at.tolist()]


def _words(plan: MovingPlan, found: Sequence[Any], chosen: Sequence[Any], sizes: Sequence[int]) -> str:
    name = plan.dim.name
    if len(sizes) == sum(last - first + 1 for first, last in plan.ranges):
        return f"every {name} of {plan.sizes}"
    of = "every run" if len(chosen) == len(found) else f"{len(chosen)} of the {len(found)} runs"
    listed = ", ".join(map(str, sizes[:6])) + (f", … {sizes[-1]}" if len(sizes) > 6 else "")
    return f"both ends of {of} of {name} with the same tiles ({listed})"
