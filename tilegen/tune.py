"""Measured choices: `tilegen tune` times the model's best few plans on the GPU and remembers the fastest; `tilegen.compile` then uses it.

Remembered in the cache folder (tuned.json), per machine and program; those that ship with tilegen stand in tilegen/tuned.json.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from tilegen.config import cache_dir, write_whole
from tilegen.cuts import Cut, cuts
from tilegen.errors import CacheError, PlanError, TilegenError
from tilegen.machine import Machine, machine
from tilegen.planner import Options
from tilegen.spec import Program
from tilegen.targets.cache import locked
from tilegen.tiling import Graph, fuse

GAIN = 0.01  # several launches must be faster than one by this share
KEPT = 2  # cuts of each op that are tried with each gang size


@dataclass(frozen=True)
class Tuned:
    """The fastest of `tried` plans of a program: its options, its µs when measured, and the lowering: streams where one launch of all ops is slower."""

    program: str
    sizes: Mapping[str, Any]
    options: Options
    us: float
    tried: int
    lowering: str = "persistent"

    def to_json(self) -> dict[str, Any]:
        options = {k: dict(v) if isinstance(v, tuple) else v for k, v in asdict(self.options).items() if v not in ((), "auto")}
        found = {"program": self.program, "sizes": dict(self.sizes), "options": options, "us": self.us, "tried": self.tried}
        return found if self.lowering == "persistent" else {**found, "lowering": self.lowering}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tuned:
        return Tuned(data["program"], data["sizes"], Options.from_json(data["options"]), data["us"], data["tried"], data.get("lowering", "persistent"))


def key_of(program: Program) -> str:
    """Names a program by what it computes, wherever it was written: ops, tensors, sizes."""
    return _hash(_content(program))


def _content(program: Program) -> str:
    tensors = [asdict(replace(t, where="")) for t in program.tensors]
    calls = [asdict(replace(c, where="")) for c in program.calls]
    return json.dumps([tensors, calls, program.outputs], sort_keys=True, default=str)


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def lookup(program: Program, on: Machine) -> Tuned | None:
    """The remembered choice, the user's own first, then that of the same program with the other 16-bit type; None where there is none."""
    files = [entries.get(on.name, {}) for entries in (_read(cache_dir() / "tuned.json"), _shipped())]
    content = _content(program)
    other = re.sub('"(b?)float16"', lambda m: '"float16"' if m[1] else '"bfloat16"', content)  # a plan takes as long on either type
    found = next((f[key] for key in map(_hash, (content, other)) for f in files if key in f), None)
    return None if found is None else Tuned.from_json(found)


def remember(program: Program, on: Machine, tuned: Tuned, path: Path | None = None) -> Path:
    """Write the choice into a file of choices (default: the cache folder's), whole or not at all."""
    path = path or cache_dir() / "tuned.json"
    cache_dir().mkdir(parents=True, exist_ok=True)
    with locked(cache_dir(), "tuned.json"):  # one writer at a time: each adds to what is there
        entries = _read(path)
        entries.setdefault(on.name, {})[key_of(program)] = tuned.to_json()
        write_whole(path, json.dumps(entries, indent=1) + "\n")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise CacheError(f"{path} is not a file of tuned choices: {error}; remove it") from None


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    return dict(json.loads(resources.files("tilegen").joinpath("tuned.json").read_text()))


def candidates(program: Program, on: Machine) -> dict[str, Options]:
    """Plans worth timing, by name: for each gang size the best cuts of every op together, by lists and by tickets, with steps once or twice as deep."""
    graph = fuse(program)
    if any(op.kind != "linear" for op in graph.ops):
        raise PlanError(f"{program.name}: only chains of linears are tuned, {next(op.kind for op in graph.ops if op.kind != 'linear')} is not")
    found: dict[str, Options] = {}
    for gang in (1, 2):
        for chosen in itertools.product(*(_best(graph, op.name, on, gang) for op in graph.ops)):
            for placement, depth in itertools.product(("strided", "ticket"), (64, 128)):
                tiles = {op.name: (*cut.tile[:2], depth) for op, cut in zip(graph.ops, chosen, strict=True)}
                gangs = {op.name: cut.gang for op, cut in zip(graph.ops, chosen, strict=True)}
                name = " | ".join(f"{'x'.join(map(str, tiles[n]))}{' ' + gangs[n] if gang > 1 else ''}" for n in tiles)
                found[f"{name}, {placement}"] = Options.of(tiles=tiles, parts=gangs, placement=placement)
    return found


def _best(graph: Graph, op: str, on: Machine, gang: int) -> Sequence[Cut]:
    """The op's best cuts by the model, no two alike but for a little width."""
    kept: list[Cut] = []
    for cut in sorted(cuts(graph.bound(graph.op(op)), on, gang), key=lambda c: c.us):
        if all((cut.share, cut.tile[0]) != (k.share, k.tile[0]) for k in kept):
            kept.append(cut)
    return kept[:KEPT]


def tune(
    program: Program,
    rounds: int = 5,
    more: Mapping[str, Options] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    target: str = "cuda",
) -> tuple[Tuned, dict[str, float]]:
    """Time the candidates (and `more`) on this GPU, interleaved, weights from memory: (the fastest, µs of each).

    Those that cannot be built are left out; PlanError where none can. Then the fastest in one launch beside the same tiles in programmatic launches
    of single ops, which are kept where they are 1 % faster (GAIN).
    """
    from tilegen.bench import timing
    from tilegen.bench.contenders import Way, own
    from tilegen.bench.ladder import argument_bytes
    from tilegen.data import random_arguments
    from tilegen.targets.select import gpu_machine

    on = gpu_machine(target)
    options = {**candidates(program, on), **(more or {})}
    sets = [random_arguments(program, seed, "cuda") for seed in range(timing.set_count(argument_bytes(program)))]

    def timed(builds: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        runners = {}
        for name, build in builds.items():
            progress(f"{program.name} {name}")
            try:
                runners[name] = timing.ready(build())
            except TilegenError:
                continue
        runs = {name: r.run for name, r in runners.items()}
        times = timing.interleave(runs, timing.counted(runs, timing.event_seconds), timing.event_seconds, rounds)
        return {name: 1e6 * statistics.median(t) / len(sets) for name, t in times.items()}

    one, launched = Way(target, "persistent"), Way(target, "streams", programmatic=True)
    us = timed({name: partial(own, program, o, sets, one) for name, o in options.items()})
    if not us:
        raise PlanError(f"{program.name}: none of {len(options)} candidates can be built")
    best = min(us, key=lambda name: us[name])
    sizes = {k: v for k, v in program.sizes if isinstance(v, int)}
    tuned, launches = Tuned(program.name, sizes, options[best], us[best], len(us)), f"{best}, launches of single ops"
    if len(options[best].tiles) > 1:
        alone = replace(options[best], policies=())
        early = partial(own, program, alone, sets, launched)
        both = timed({best: partial(own, program, options[best], sets, one), launches: early})
        if len(both) == 2:  # its time in the first run's terms
            us[launches] = both[launches] * us[best] / both[best]
            if us[launches] < (1 - GAIN) * us[best]:
                tuned = replace(tuned, us=us[launches], lowering="streams")
    return replace(tuned, us=round(tuned.us, 2), tried=len(us)), dict(sorted(us.items(), key=lambda item: item[1]))


def tuned_options(program: Program, on: Machine | str) -> Options:
    """The remembered options of a program, else the planner's own choice."""
    found = lookup(program, machine(on))
    return found.options if found else Options()


def tuned_lowering(program: Program, on: Machine, options: Options) -> str:
    """The remembered lowering, where nothing else is asked for; else persistent."""
    found = lookup(program, on) if options == Options() else None
    return found.lowering if found else "persistent"
