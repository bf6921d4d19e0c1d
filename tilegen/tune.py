"""Measured choices: `tilegen tune` times the model's best few plans on the GPU and remembers the fastest; `tilegen.compile` then uses it.

Remembered in the cache folder (tuned.json), per machine and program; those that ship with tilegen stand in tilegen/tuned.json.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
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

KEPT = 2  # cuts of each op that are tried with each gang size


@dataclass(frozen=True)
class Tuned:
    """The fastest of `tried` plans of a program: its options and µs, when they were measured."""

    program: str
    sizes: Mapping[str, Any]
    options: Options
    us: float
    tried: int

    def to_json(self) -> dict[str, Any]:
        options = {k: dict(v) if isinstance(v, tuple) else v for k, v in asdict(self.options).items() if v not in ((), "auto")}
        return {"program": self.program, "sizes": dict(self.sizes), "options": options, "us": self.us, "tried": self.tried}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tuned:
        return Tuned(data["program"], data["sizes"], Options.from_json(data["options"]), data["us"], data["tried"])


def key_of(program: Program) -> str:
    """Names a program by what it computes, wherever it was written: ops, tensors, sizes."""
    tensors = [asdict(replace(t, where="")) for t in program.tensors]
    calls = [asdict(replace(c, where="")) for c in program.calls]
    content = json.dumps([tensors, calls, program.outputs], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def lookup(program: Program, on: Machine) -> Tuned | None:
    """The remembered choice, the user's own first; None where there is none."""
    key = key_of(program)
    for entries in (_read(cache_dir() / "tuned.json"), _shipped()):
        if key in entries.get(on.name, {}):
            return Tuned.from_json(entries[on.name][key])
    return None


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
    program: Program, rounds: int = 5, more: Mapping[str, Options] | None = None, progress: Callable[[str], None] = lambda _: None
) -> tuple[Tuned, dict[str, float]]:
    """Time the candidates (and `more`) on this GPU, interleaved, weights from memory: (the fastest, µs of each).

    Those that cannot be built are left out; PlanError where none can.
    """
    from tilegen import api
    from tilegen.bench import timing
    from tilegen.bench.ladder import own, weight_bytes
    from tilegen.data import random_arguments

    on = api.gpu_machine()
    options = {**candidates(program, on), **(more or {})}
    sets = [random_arguments(program, seed, "cuda") for seed in range(timing.set_count(weight_bytes(program)))]
    runners = {}
    for name, o in options.items():
        progress(f"{program.name} {name}")
        try:
            runners[name] = timing.ready(own(program, o, sets))
        except TilegenError:
            continue
    if not runners:
        raise PlanError(f"{program.name}: none of {len(options)} candidates can be built")
    runs = {name: r.run for name, r in runners.items()}
    times = timing.interleave(runs, timing.counted(runs, timing.event_seconds), timing.event_seconds, rounds)
    us = {name: 1e6 * statistics.median(t) / len(sets) for name, t in times.items()}
    best = min(us, key=lambda name: us[name])
    sizes = {k: v for k, v in program.sizes if isinstance(v, int)}
    return Tuned(program.name, sizes, options[best], round(us[best], 2), len(us)), dict(sorted(us.items(), key=lambda item: item[1]))


def tuned_options(program: Program, on: Machine | str) -> Options:
    """The remembered options of a program, else the planner's own choice."""
    found = lookup(program, machine(on))
    return found.options if found else Options()
