"""What is asked for: the lowering settled by what was measured, plan and certificate from the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilegen.frontend.dims import dims_of, filled, limited, the_dim
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime import cache
from tilegen.runtime.settled import quiet, settled
from tilegen.runtime.tuned import digest, tuned_lowering
from tilegen.runtime.verify import verify
from tilegen.runtime.verify_launches import Proved, ProvedLaunches, prove_launches
from tilegen.schedule.launches import Launches, P, launches_of, moving_launches
from tilegen.schedule.lowering import modelled_lowering
from tilegen.schedule.moving import MovingPlan, Ranges, moving_plan, opened
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan as make_plan
from tilegen.schedule.regimes import regimes
from tilegen.schedule.sized import Lower, Regime


def settled_lowering(
    program: Program, place: Place, options: Options, lowering: str, programmatic: bool
) -> tuple[str, bool]:
    """(lowering, programmatic): where the lowering is left open, and launches may start early, as was
    measured best, or as the cost model has it; persistent where options are given."""
    if lowering != "auto" or not place.target.launches_early:
        return lowering, programmatic
    found = "persistent"
    if options == Options():
        found = tuned_lowering(program, place.label) or _modelled_lowering(program, place)
    return found, found == "multi_launch"


def _lowering_at_a_size(place: Place, lowering: str) -> Lower:
    """That of a program with its size given, as settled_lowering's."""
    if lowering != "auto" or not place.target.launches_early:
        fixed = "persistent" if lowering == "auto" else lowering
        return lambda program, made: fixed
    return lambda program, made: (
        tuned_lowering(program, place.label) or modelled_lowering(program, place, made).name
    )


def _modelled_lowering(program: Program, place: Place) -> str:
    """From the cache where it is."""

    def build(folder: Path) -> dict[str, str]:
        (folder / "lowering.txt").write_text(modelled_lowering(program, place).name)
        return {"note": f"{program.name} {dict(program.sizes)} {place.machine.name}: lowering"}

    key = cache.key_of("lowering", request_key(program, place, Options()))
    return cache.get_or_build("plans", key, build)["lowering.txt"].read_text()


def launch_options(program: Program, place: Place, options: Options) -> Options:
    """The options of launches of single ops: as given, else the tiles measured best."""
    return options if options != Options() else replace(settled(program, place, options), policies=())


def request_key(program: Program, place: Place, options: Options) -> str:
    """Names a request: the spec's content, sizes, options, place and tilegen's version."""
    parts = (json.dumps(asdict(x), sort_keys=True, default=str) for x in (program, place.machine, options))
    ranges = (f"{d.name} {d.most}" for d in sorted(dims_of(program), key=lambda d: d.name))
    return cache.key_of(*parts, place.forms.name, place.target.name, *ranges)


def chosen_regimes(
    program: Program,
    place: Place,
    options: Options,
    progress: Callable[[str], None] = quiet,
    lowering: str = "auto",
) -> list[Regime]:
    """The regimes of a program in which a size moves, from the cache where they are."""

    def build(folder: Path) -> dict[str, str]:
        lower = _lowering_at_a_size(place, lowering)
        found = regimes(program, place, options, progress, lambda p: settled(p, place, Options()), lower)
        if lowering == "multi_launch":  # of what else than few linears, each op with its own best tiles
            asked = replace(found[0], options=options, lowering=lowering)
            found = [r if r.lowering == lowering else replace(asked, ranges=r.ranges) for r in found]
        (folder / "regimes.json").write_text(json.dumps([asdict(r) for r in found]))
        return {"note": f"{program.name} {dict(program.sizes)} {place.machine.name}: regimes"}

    key = cache.key_of("regimes", lowering, digest(place.label), request_key(program, place, options))
    files = cache.get_or_build("plans", key, build)
    kept = json.loads(files["regimes.json"].read_text())
    return [Regime(_frozen(r["ranges"]), _options(r["options"]), r["lowering"]) for r in kept]


@dataclass(frozen=True)
class Part:
    """A program up to the last of the sizes of a regime, and what it is planned with; in_one: with what in
    one launch, should its launches not be built."""

    program: Program
    ranges: Ranges
    options: Options
    lowering: str
    in_one: Options = Options()


def parts(
    program: Program,
    place: Place,
    options: Options,
    progress: Callable[[str], None] = quiet,
    lowering: str = "auto",
) -> Iterator[Part]:
    """The program in each regime. Where a plan is not for a GPU there is one."""
    dim = the_dim(program)
    assert dim is not None
    whole = [Regime(((1, dim.most),), options)]
    on_gpu = place.target.on_gpu
    for found in chosen_regimes(program, place, options, progress, lowering) if on_gpu else whole:
        part = limited(program, dim, found.most)
        apart = found.lowering == "multi_launch"  # with tiles and clusters of ops alone
        in_one = settled(part, place, options if apart else found.options)
        chosen = launch_options(part, place, found.options) if apart else in_one
        yield Part(part, found.ranges, chosen, found.lowering, in_one)


def _options(kept: dict[str, Any]) -> Options:
    """Options as JSON keeps them."""
    return Options(**{name: _frozen(value) for name, value in kept.items()})


def _frozen(value: Any) -> Any:
    """Tuples that JSON has made lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def planned_moving(
    part: Part, place: Place, options: Options, progress: Callable[[str], None] = quiet
) -> tuple[MovingPlan, Certificate]:
    """Plan and certificate of a program in which a size moves. What is kept is the plan at the largest size,
    from which the formulas follow."""
    fresh: list[tuple[MovingPlan, Certificate]] = []
    program, dim = part.program, the_dim(part.program)
    assert dim is not None
    progress(f"{program.name}: {dim.name} moves from {part.ranges[0][0]} to {dim.most}")

    def build(folder: Path) -> dict[str, str]:
        made = moving_plan(program, place, options, progress, part.ranges)
        progress("proof")
        certificate = verify(made)
        (folder / "plan.json").write_text(json.dumps(made.most.to_json()))
        (folder / "certificate.json").write_text(json.dumps(certificate.to_dict()))
        fresh.append((made, certificate))
        return {"note": f"{program.name} {dict(program.sizes)} {place.machine.name}"}

    key = cache.key_of(request_key(program, place, options), str(part.ranges))
    files = cache.get_or_build("plans", key, build)
    if fresh:
        return fresh[0]
    largest = Plan.from_json(json.loads(files["plan.json"].read_text()))
    certificate = Certificate.from_dict(json.loads(files["certificate.json"].read_text()))
    return opened(program, dim, largest, place, options, part.ranges), certificate


def planned_launches(
    program: Program,
    place: Place,
    options: Options,
    programmatic: bool,
    progress: Callable[[str], None] = quiet,
) -> ProvedLaunches[Plan]:
    """A launch of each op, from the cache where they are.

    Raises:
        PlanError: an option does not fit the program, or the target has no kernel for it.
        ProofError: a check fails.
    """
    key = request_key(program, place, options)
    return _kept_launches(
        key, lambda: launches_of(program, place, options), lambda x: x, programmatic, progress
    )


def planned_moving_launches(
    part: Part, place: Place, options: Options, programmatic: bool, progress: Callable[[str], None] = quiet
) -> ProvedLaunches[MovingPlan]:
    """As planned_launches, of a program in which a size moves. What is kept are the plans at the largest
    size, from which the formulas follow."""
    program, dim = part.program, the_dim(part.program)
    assert dim is not None
    progress(f"{program.name}: {dim.name} moves from {part.ranges[0][0]} to {dim.most}")
    key = cache.key_of(request_key(program, place, options), str(part.ranges))
    return _kept_launches(
        key,
        lambda: launches_of(filled(program, dim, dim.most), place, options),
        lambda largest: moving_launches(program, place, options, part.ranges, largest),
        programmatic,
        progress,
    )


def _kept_launches(
    key: str,
    largest: Callable[[], Launches[Plan]],
    over: Callable[[Launches[Plan]], Launches[P]],
    programmatic: bool,
    progress: Callable[[str], None],
) -> ProvedLaunches[P]:
    """largest: the plans that are kept; over: those that are proved, which follow from them."""
    fresh: list[ProvedLaunches[P]] = []

    def build(folder: Path) -> dict[str, str]:
        made: Launches[Plan] = largest()
        proved: ProvedLaunches[P] = prove_launches(over(made), programmatic, progress)
        certificates = [proved.whole.certificate, *(p.certificate for p in proved.each)]
        told = {
            "plans": [p.to_json() for p in (made.whole, *made.each)],
            "certificates": [c.to_dict() for c in certificates],
        }
        (folder / "launches.json").write_text(json.dumps(told))
        fresh.append(proved)
        return {"note": f"{made.whole.program} {dict(made.whole.sizes)} {made.whole.machine.name}: launches"}

    files = cache.get_or_build("plans", cache.key_of("launches", str(programmatic), key), build)
    if fresh:
        return fresh[0]
    told = json.loads(files["launches.json"].read_text())
    whole, *each = map(Plan.from_json, told["plans"])
    plans: Launches[P] = over(Launches(whole, tuple(each)))
    of_whole, *of_each = map(Certificate.from_dict, told["certificates"])
    proved = tuple(Proved(plan, c) for plan, c in zip(plans.each, of_each, strict=True))
    return ProvedLaunches(Proved(plans.whole, of_whole), proved)


def planned(
    program: Program, place: Place, options: Options, progress: Callable[[str], None] = quiet
) -> tuple[Plan, Certificate]:
    """Plan and certificate, from the cache where they are."""
    fresh: list[tuple[Plan, Certificate]] = []

    def build(folder: Path) -> dict[str, str]:
        made = make_plan(program, place, options, progress)
        progress("proof")
        certificate = verify(made)
        (folder / "plan.json").write_text(json.dumps(made.to_json()))
        (folder / "certificate.json").write_text(json.dumps(certificate.to_dict()))
        fresh.append((made, certificate))
        return {"note": f"{program.name} {dict(program.sizes)} {place.machine.name}"}

    files = cache.get_or_build("plans", request_key(program, place, options), build)
    if fresh:
        return fresh[0]
    return Plan.from_json(json.loads(files["plan.json"].read_text())), Certificate.from_dict(
        json.loads(files["certificate.json"].read_text())
    )
