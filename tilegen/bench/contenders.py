"""Who is measured: each contender made ready to be called on every argument set, torch's and tilegen's."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilegen import api
from tilegen.bench import attentions
from tilegen.bench.attentions import BACKENDS, OnBackend
from tilegen.bench.baselines import conv_chains, eager, gelu_pairs, inductor, linear_chains
from tilegen.bench.rows import EXCLUSIVE, MOVING, PERSISTENT, UNPREPARED
from tilegen.frontend.program import Program
from tilegen.ops.attention import AttentionAttributes
from tilegen.options import Options
from tilegen.runtime.data import spoiled
from tilegen.runtime.timing import Contender, of_kernel

DEVICE = "cuda"
PATIENCE_MS = "1000"  # a launch takes a few ms: one that hangs should cost no more of a lent machine's time
Sets = Sequence[Sequence[torch.Tensor]]
Build = Callable[[], Contender]


@dataclass(frozen=True)
class Way:
    """How a variant of tilegen is compiled and called. prepared: weights are bound once and packed."""

    target: str = "cuda"
    lowering: str = "auto"
    programmatic: bool = False
    exclusive: bool = False
    prepared: bool = True


WAYS = {
    "tilegen-kernel": Way(lowering="multi_launch"),
    "tilegen-pdl": Way(lowering="multi_launch", programmatic=True),
    "tilegen-barrier": Way(lowering="persistent"),
    PERSISTENT: Way(lowering="persistent"),
    EXCLUSIVE: Way(lowering="persistent", exclusive=True),
    UNPREPARED: Way(prepared=False),
    "tilegen-portable": Way(target="sm_80", prepared=False),
}


def builders(
    program: Program,
    variants: Mapping[str, Options],
    sets: Sets,
    target: str = "cuda",
    moving: Program | None = None,
) -> dict[str, Build]:
    """What makes each contender; moving: the program of the one whose size moves.

    Those that have no part in a program are not offered: fused GeMMs without a linear, attention without one.
    """
    ways = {name: way_of(name, target) for name in variants}
    return {
        **_torch(program, sets),
        **{
            name: functools.partial(own, program, o, sets, ways[name], moving if name == MOVING else None)
            for name, o in variants.items()
        },
    }


def way_of(name: str, target: str) -> Way:
    """Of a variant where tilegen's contenders are compiled for a target, unless its name says which."""
    way = WAYS.get(name, Way())
    return replace(way, target=target) if way.target == "cuda" else way


def _torch(program: Program, sets: Sets) -> dict[str, Build]:
    plain = functools.partial(eager, program, sets[0])
    attends = any(isinstance(c.attributes, AttentionAttributes) for c in program.calls)
    found: dict[str, Build] = {
        "eager": lambda: over_sets(plain(), sets, captured=False),
        "graph": lambda: over_sets(plain(), sets),
    }
    if pairs := gelu_pairs(program):
        found["addmm-gelu"] = lambda: over_sets(plain(pairs), sets)
    convolutions, linears = conv_chains(program), linear_chains(program)
    if convolutions:
        found["cudnn"] = lambda: over_sets(plain(convolutions), sets)
    if linears:
        found["cublaslt"] = lambda: over_sets(plain({**convolutions, **linears}), sets)
    if attends:
        found |= _attention(program, sets, linears)
    found["inductor"] = lambda: over_sets(inductor(plain()), sets)
    if attends:
        found["inductor-flash"] = lambda: over_sets(inductor(plain(attention=attentions.flash)), sets)
    return found


def _attention(program: Program, sets: Sets, linears: Any) -> dict[str, Build]:
    """Attention by each of torch's kernels, and by those of packages that are installed, in a graph; the best
    two with cublasLt's linears too."""
    plain = functools.partial(eager, program, sets[0])

    def on_backend(name: str, fused: Any = None) -> Build:
        return lambda: over_sets(OnBackend(plain(fused), name), sets)

    def with_kernel(kernel: attentions.Attention, fused: Any = None) -> Build:
        return lambda: over_sets(plain(fused, kernel), sets)

    found = {name: on_backend(name) for name in BACKENDS}
    found["graph-flash"] = with_kernel(attentions.flash)
    if linears:
        found["cublaslt-flash"] = with_kernel(attentions.flash, linears)
        found["cublaslt-cudnn"] = on_backend("sdpa-cudnn", linears)
    decodes = all(
        c.attributes.q_len == 1 for c in program.calls if isinstance(c.attributes, AttentionAttributes)
    )
    return found | {
        name: with_kernel(f) for name, f in attentions.installed().items() if name != "flashinfer" or decodes
    }


def over_sets(f: Callable[..., Any], sets: Sets, captured: bool = True) -> Contender:
    return Contender(tuple(functools.partial(f, *arguments) for arguments in sets), captured)


def own(
    program: Program,
    options: Options,
    sets: Sets,
    way: Way | None = None,
    moving: Program | None = None,
) -> Contender:
    """tilegen's kernel on each set, into outputs of its own; moving: the program to compile, whose size
    moves."""
    way = way or Way()
    with knobs(TILEGEN_TIMEOUT_MS=os.environ.get("TILEGEN_TIMEOUT_MS", PATIENCE_MS)):
        kernel: Any = api.compile(
            moving or program,
            target=way.target,
            options=options,
            exclusive=way.exclusive,
            lowering=way.lowering,
            programmatic=way.programmatic,
        )
        out = functools.partial(poisoned_outputs, program)
        return of_kernel(kernel, program, sets, way.prepared, out)


def poisoned_outputs(program: Program) -> Any:
    """What out= takes: NaN everywhere, or what is no column."""
    made = [program.tensor(name) for name in program.outputs]
    outputs = [spoiled(torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=DEVICE)) for t in made]
    return outputs[0] if len(outputs) == 1 else outputs or None


@contextmanager
def knobs(**values: str) -> Iterator[None]:
    """These environment variables inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
