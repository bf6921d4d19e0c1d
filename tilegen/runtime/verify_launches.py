"""The multi_launch lowering, cuSync's way: every op is a launch of its own, and kernel boundaries order them.

    y = launch_n(… launch_1(launch_0(x)))

Why a launch reads what all launches before it wrote, the last one and earlier ones (fan-outs, fan-ins),
programmatic or not:

- On one stream an ordinary launch starts when the one before has completed, its writes visible; so, by
  induction, all before.
- A programmatic launch starts earlier, when every CTA of the one before has started. `griddepcontrol.wait`
  then returns when that grid has completed and its writes are visible (PTX ISA). It speaks of that one grid;
  but in every CTA of every launch the activations' loader executes it before it loads anything, and no CTA
  ends before its loader does. So launch n completes only after its waits have returned, hence after launch
  n - 1 has completed, and by induction after all before. And causality order is transitive: what launch n - 1
  saw when its waits returned is seen by whoever sees launch n - 1 completed.
- Nor does a launch write over what earlier ones still use (intermediates of the call before, counters): tiles
  are stored after they were loaded, ranks drawn and counters zeroed after the wait. Only packed weights are
  loaded before it, which nothing writes.
- No launch keeps another from running: the next one starts when all CTAs of this one are resident, so none of
  them is left to place.

Where a size moves, each launch is proved for all its values as any plan is, and what passes between launches
and the sums that they share at both ends of every run of sizes with the same tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from tilegen.errors import ProofError
from tilegen.graph.graph import Graph
from tilegen.proof.checker import Certificate, CheckResult, check_sums, check_values
from tilegen.runtime.verify import certify_range, verify
from tilegen.schedule.alike import nameless
from tilegen.schedule.launches import Launches, P
from tilegen.schedule.moving import MovingPlan
from tilegen.schedule.plan import Plan


@dataclass(frozen=True)
class Proved(Generic[P]):
    """A plan and what proves it."""

    plan: P
    certificate: Certificate


@dataclass(frozen=True)
class ProvedLaunches(Generic[P]):
    """All ops, whose certificate says why launches follow each other rightly, and each launch alone."""

    whole: Proved[P]
    each: tuple[Proved[P], ...]


def prove_launches(
    launches: Launches[P], programmatic: bool, progress: Callable[[str], None] = lambda _: None
) -> ProvedLaunches[P]:
    """Each launch proved alone, and what passes between them.

    Raises:
        ProofError: a check fails.
    """
    whole, known, each = launches.whole, dict[str, Certificate](), []
    for made in launches.each:
        if (like := nameless(made)) not in known:
            progress(f"{made.program}: proof")
            known[like] = verify(made)
        each.append(Proved(made, replace(known[like], program=_at_once(made).program)))
    proofs, plans = [proved.certificate for proved in each], list(map(_at_once, launches.each))
    if isinstance(whole, Plan):
        certificate = certify_launches(whole, proofs, plans, programmatic)
    else:
        certificate = certify_range(
            whole, lambda n: certify_launches(whole.at(n), proofs, plans, programmatic)
        )
    return ProvedLaunches(Proved(whole, certificate), tuple(each))


def _at_once(plan: Plan | MovingPlan) -> Plan:
    """The plan, or one of its sizes: which ops it has is the same at all."""
    return plan if isinstance(plan, Plan) else plan.most


def certify_launches(
    whole: Plan, proofs: Sequence[Certificate], plans: Sequence[Plan], programmatic: bool
) -> Certificate:
    """The checker proves each launch alone; kernel boundaries order them. ProofError where a launch reads
    what a later one writes, or where sums over K that launches share are not whole."""
    passed = tuple(
        CheckResult(c.program, f"alone, passes {', '.join(x.name for x in c.checks)}", c.ok) for c in proofs
    )
    sizes = tuple((name, int(n)) for name, n in whole.sizes)
    boundaries = _boundaries(whole.graph, plans, programmatic)
    told = whole.to_json()
    sums, values = check_sums(told), check_values(told)
    for result in (sums, values):
        if not result.ok:
            raise ProofError(f"{whole.program}: {result.statement}")
    return Certificate(whole.program, sizes, whole.machine.name, (*passed, sums, values, boundaries), ())


def _boundaries(graph: Graph, plans: Sequence[Plan], programmatic: bool) -> CheckResult:
    made = {op.result: n for n, p in enumerate(plans) for op in p.graph.ops}
    at = {op.name: made[op.result] for op in graph.ops}
    reads = [(op, o.tensor) for op in graph.ops for o in op.operands]
    edges = [
        (writer.name, op.name, tensor)
        for op, tensor in reads
        for writer in graph.writers(tensor)
        if writer is not op
    ]
    for writer, reader, tensor in edges:
        if at[writer] > at[reader]:
            raise ProofError(
                f"{graph.name}: launch {at[reader]} ({reader}) reads {tensor!r}, which launch {at[writer]}"
                f" ({writer}) writes"
            )
    ordinary, early = (
        "each starts when the one before has completed",
        "each loads when the one before has completed (griddepcontrol.wait)",
    )
    crossing = [edge for edge in edges if at[edge[0]] != at[edge[1]]]
    passed = dict.fromkeys(f"{tensor}: {writer} -> {reader}" for writer, reader, tensor in crossing)
    statement = f"{len(plans)} launches on one stream, {early if programmatic else ordinary}"
    return CheckResult("kernel boundaries", "; ".join([statement, *passed]), True)
