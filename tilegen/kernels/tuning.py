"""The model's best few plans of a program, measured on this GPU for as long as the user gives.

    as planned, in one launch and in launches of single ops
    → few linears: the best configs of each together, by clusters of one size
    → other orders, scheduling, norms, appends
    → op after op, those that take longest by the model first: its next best configs, the others as they are

Plans of a batch are timed in turns, beside the fastest so far. What is found is kept for all programs of the
same structure (tilegen.runtime.tuned); `tg.compile` takes it.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilegen.errors import PlanError, TilegenError
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Program
from tilegen.graph.cost_model import tile_us
from tilegen.graph.forms import SUPER_TILE, Config, Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.kernels.compiled import on_a_gpu
from tilegen.ops.attention import splits
from tilegen.ops.base import OpInstance, ceil_div
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import APPENDS, NORMS, Options
from tilegen.runtime import timing
from tilegen.runtime.data import argument_bytes, random_arguments
from tilegen.runtime.settled import settled
from tilegen.runtime.tuned import Tuned, lookup, remember
from tilegen.schedule.launches import whole_plan
from tilegen.schedule.order import candidates as orders
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.schedule.simulate import simulate
from tilegen.schedule.sized import copies_of
from tilegen.targets.base import Target
from tilegen.targets.sm90.heuristics import CONFIGS, best_of_kinds

GAIN = 0.01  # several launches must be faster than one by this share
FEW = 4  # linears whose configs are tried together
KEPT = 2  # configs of each op that are tried with each cluster size
BATCH = 4  # plans that are timed in turns
ROUNDS = 5
DEVICE = "cuda"
logger = logging.getLogger("tilegen")


@dataclass(frozen=True)
class Variant:
    """A way to plan a program. Launches of single ops are programmatic."""

    options: Options = Options()
    lowering: str = "persistent"


Batch = Mapping[str, Variant]
Timer = Callable[[Batch], Mapping[str, float]]  # name -> µs of those that can be built


# --- what is tried ------------------------------------------------------------------------------------------


def batches(program: Program, place: Place) -> Iterator[Batch]:
    """Plans of the whole, the likeliest first."""
    several = len(fuse(program).ops) > 1 and place.target.launches_early
    known = settled(program, place, Options())
    apart = {"launches of single ops": Variant(replace(known, policies=()), "multi_launch")}
    yield {"as planned": Variant(known), **(apart if several else {})}
    lowerings = ("persistent", "multi_launch") if several else ("persistent",)
    together = list(_together(program, place).items())
    for chosen in _in(together, BATCH // len(lowerings)):
        yield {
            f"{name}{', launches' if lowering == 'multi_launch' else ''}": Variant(options, lowering)
            for name, options in chosen
            for lowering in lowerings
        }
    for chosen in _in(list(_settings(program, place)), BATCH):
        yield {f"{what} {value}": Variant(Options.of(**{what: value})) for what, value in chosen}


def _in(items: Sequence[Any], count: int) -> Iterator[Sequence[Any]]:
    return (items[n : n + count] for n in range(0, len(items), count))


def _together(program: Program, place: Place) -> dict[str, Options]:
    """Of few linears: for each cluster size the best configs of every op together, the fastest by the
    simulated run first; the slower half is left out."""
    graph = fuse(program)
    if not graph.consists_of(LinearAttributes) or len(graph.ops) > FEW or not place.target.launches_early:
        return {}
    found: list[tuple[float, str, Options]] = []
    for cluster in (1, 2):
        best = [_best(graph.bound(op), place, cluster)[:KEPT] for op in graph.ops]
        for chosen in itertools.product(*best):
            cut = {op.name: config for op, config in zip(graph.ops, chosen, strict=True)}
            options = Options.of(
                tiles={name: c.tile for name, c in cut.items()},
                cluster={name: c.option for name, c in cut.items()},
                pingpong={name: True for name, c in cut.items() if c.pingpong},
            )
            told = " | ".join(map(_told, cut.values()))
            try:
                found.append((simulate(plan(program, place, options)).makespan, told, options))
            except PlanError:  # the configs fit alone, and not together
                continue
    found.sort(key=lambda item: item[0])
    return {told: options for _, told, options in found[: ceil_div(len(found), 2)]}


def _told(c: Config) -> str:
    return f"{'x'.join(map(str, c.tile))} {c.option}{' pingpong' if c.pingpong else ''}"


def _best(b: OpInstance, place: Place, cluster: int) -> list[Config]:
    return best_of_kinds(CONFIGS[type(b.attributes)](b, place.machine, cluster))


def _settings(program: Program, place: Place) -> Iterator[tuple[str, str]]:
    """Options of the whole, each alone."""
    yield from (("scheduling", value) for value in ("static", "dynamic"))
    made = plan(program, place)
    names = [order.name for order in orders(made.graph, place.machine.sms)]
    yield from (("order", name) for name in dict.fromkeys((*names, "op_major:4", f"op_major:{SUPER_TILE}")))
    kinds = {op.kind for op in fuse(program).ops}
    if place.target.fuses_norms and kinds & {"rms_norm", "layer_norm"}:
        yield from (("norms", value) for value in NORMS[1:])
    if place.target.forwards_kv and "append" in kinds:
        yield from (("appends", value) for value in APPENDS[1:])


def plan_of(program: Program, place: Place, variant: Variant) -> Plan:
    """The plan of one launch, or of all launches."""
    of = whole_plan if variant.lowering == "multi_launch" else plan
    return of(program, place, variant.options)


def by_time(program: Program, place: Place, variant: Variant) -> list[str]:
    """The products of a plan that have several configs, those that take longest by the model first; none of
    padded copies: a linear that options name has none."""
    if not place.target.launches_early:
        return []
    made, own = plan_of(program, place, variant), {op.name for op in fuse(program).ops}
    copies = copies_of(made, own)
    products = [b for b in made.bounds if type(b.attributes) in CONFIGS]
    bounds = [b for b in products if not copies & {o.tensor for o in b.op.operands}]
    tiles = {b.op.name: math.prod(int(n) for n in b.grid) for b in bounds}
    waves = {name: ceil_div(n, place.machine.sms) for name, n in tiles.items()}
    us = {b.op.name: waves[b.op.name] * tile_us(b, place.machine) for b in bounds if b.op.name in own}
    return sorted(us, key=lambda name: -us[name])


def of_an_op(program: Program, place: Place, like: Variant, name: str) -> Batch:
    """Variants of one in which an op has its next best configs, and all others those that they have."""
    made = plan_of(program, place, like)
    fixed = explicit(made, program, like.options)
    if _cut(plan_of(program, place, replace(like, options=fixed))) != _cut(made):
        return {}  # it does not follow from tiles, clusters and splits
    b = fuse(program).bound(fuse(program).op(name))
    found: dict[str, Variant] = {}
    for config in (c for size in (1, 2) for c in _best(b, place, size)[:KEPT]):
        tiles, cluster, turns = dict(fixed.tiles), dict(fixed.cluster), dict(fixed.pingpong)
        known = tiles.get(name), str(cluster.get(name, 1)), turns.get(name, False)
        if known == (config.tile, config.option, config.pingpong):
            continue
        tiles[name], cluster[name], turns[name] = config.tile, config.option, config.pingpong
        told = f"{name} {_told(config)}"
        options = replace(
            fixed,
            tiles=tuple(tiles.items()),
            cluster=tuple(cluster.items()),
            pingpong=tuple((op, True) for op, of in turns.items() if of),
        )
        if _fits(program, place, tried := replace(like, options=options)):
            found[told] = tried
    return found


def _fits(program: Program, place: Place, variant: Variant) -> bool:
    """Whether the configs of its ops go together: pairs that load together must run every op of a launch."""
    try:
        plan_of(program, place, variant)
    except PlanError:
        return False
    return True


def explicit(made: Plan, program: Program, options: Options) -> Options:
    """The options with the tiles, clusters and splits of keys that a plan has of a program's own ops, but for
    convolutions that are linears there: in one launch they are none."""
    ops = {op.name: op for op in made.graph.ops}
    tiles, cluster, split_kv = dict[str, tuple[int, ...]](), dict[str, int | str](), dict[str, int]()
    turns: list[tuple[str, bool]] = []
    for op in fuse(program).ops:
        split = ops.get(f"{op.name}_split_kv")
        cut = split or ops.get(op.name)
        if cut is None or cut.pixels:  # a norm that is fused, an append that is forwarded
            continue
        tiles[op.name] = cut.tile
        if cut.cluster > 1:
            cluster[op.name] = cut.cluster_option
        if cut.pingpong:
            turns.append((op.name, True))
        if split is not None:
            split_kv[op.name] = splits(made.graph.bound(split))
    return replace(
        options,
        tiles=tuple(tiles.items()),
        cluster=tuple(cluster.items()),
        pingpong=tuple(turns),
        split_kv=tuple(split_kv.items()),
    )


def _cut(made: Plan) -> list[tuple[str, tuple[int, ...], int, bool]]:
    return [(op.name, op.tile, op.cluster, op.pingpong) for op in made.graph.ops]


# --- the search ---------------------------------------------------------------------------------------------


@dataclass
class _Race:
    """The fastest of the plans that were timed. us: of all, in terms of the first run of the fastest."""

    timed: Timer
    us: dict[str, float]
    name: str = ""
    best: Variant = Variant()

    def run(self, batch: Batch) -> None:
        """Time these beside the fastest so far; launches of single ops must gain GAIN."""
        fresh = {name: v for name, v in batch.items() if name not in self.us}
        if not fresh:
            return
        found = dict(self.timed({**({self.name: self.best} if self.name else {}), **fresh}))
        scale = self.us[self.name] / found[self.name] if found.get(self.name) else 1.0
        self.us |= {name: us * scale for name, us in found.items() if name in fresh}
        entered = [(self.name, self.best)] if self.name else []
        entered += [(name, v) for name, v in fresh.items() if name in found]
        if entered:
            self.name, self.best = min(entered, key=lambda e: self._handicapped(*e))

    def _handicapped(self, name: str, variant: Variant) -> float:
        return self.us[name] * (1 + GAIN * (variant.lowering == "multi_launch"))


def search(
    program: Program,
    place: Place,
    seconds: float,
    timed: Timer,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Tuned, dict[str, float]]:
    """(the fastest plan found, µs of each that was timed), when the time is over or nothing is left to try.
    The first batch is timed in any case.

    Raises:
        PlanError: none of the plans can be built.
    """
    end, race = clock() + seconds, _Race(timed, {})
    for batch in batches(program, place):
        if race.us and clock() >= end:
            break
        race.run(batch)
    if not race.us:
        raise PlanError(f"{program.name}: none of its plans can be built")
    for name in by_time(program, place, race.best):
        if clock() >= end:
            break
        race.run(of_an_op(program, place, race.best, name))
    sizes = {k: v for k, v in program.sizes if isinstance(v, int)}
    us = dict(sorted(race.us.items(), key=lambda item: item[1]))
    best = race.best
    return Tuned(program.name, sizes, best.options, round(us[race.name], 2), len(us), best.lowering), us


# --- on a GPU -----------------------------------------------------------------------------------------------


def on_this_gpu(
    program: Program, place: Place, target: Target, progress: Callable[[str], None] = lambda _: None
) -> Timer:
    """Times kernels with prepared weights in CUDA graphs, over sets of arguments that do not fit into L2."""
    count = timing.set_count(argument_bytes(program))
    sets = [random_arguments(program, seed, DEVICE) for seed in range(count)]

    def built(variant: Variant) -> Any:
        try:
            early = variant.lowering == "multi_launch"
            of = program, place, target, variant.options, variant.lowering, early, False, lambda _: None
            return on_a_gpu(*of)
        except TilegenError as error:
            logger.info("%s: not tried: %s", program.name, str(error).splitlines()[0])
            return None

    def timed(batch: Batch) -> Mapping[str, float]:
        runners = {}
        for name, variant in batch.items():
            progress(f"{program.name} {name}")
            if (kernel := built(variant)) is not None:
                runners[name] = timing.ready(timing.of_kernel(kernel, program, sets))
        runs = {name: r.run for name, r in runners.items()}
        counts = timing.counted(runs, timing.event_seconds)
        times = timing.interleave(runs, counts, timing.event_seconds, ROUNDS)
        for runner in runners.values():
            runner.check()
        return {name: 1e6 * statistics.median(t) / len(sets) for name, t in times.items()}

    return timed


def tune(
    program: Program,
    place: Place,
    target: Target,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Tuned, dict[str, float]]:
    """`search` on this GPU.

    Raises:
        PlanError: a size moves or is left open, or none of the plans can be built.
    """
    if dims_of(program) or program.symbolic:
        raise PlanError(f"{program.name}: a size moves or is left open; tune measures one size at a time")
    return search(program, place, seconds, on_this_gpu(program, place, target, progress))


def ensure_tuned(
    program: Program, place: Place, target: Target, seconds: float, progress: Callable[[str], None]
) -> None:
    """Measure, unless that was done here before, and keep what is found in the cache folder."""
    if lookup(program, place.label) is None:
        remember(program, place.label, tune(program, place, target, seconds, progress)[0])
