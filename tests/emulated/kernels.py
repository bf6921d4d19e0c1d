"""A case on the emulator: its kernel's text as it is, or with something changed in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

import tilegen as tg
from tests.gpu.gemms import Case
from tilegen.bench.accuracy import error_of
from tilegen.errors import HangError, RaceError
from tilegen.runtime.data import random_arguments, spoiled
from tilegen.schedule.plan import Plan
from tilegen.targets.emulated.library import Adversary, EmulatedLibrary
from tilegen.targets.select import named

MOST = 5e-3  # relative Frobenius error


def text_of(case: Case) -> str:
    plan = case.plan(case.sms)
    return named(plan.target).emit(plan).text


def library_of(
    plan: Plan,
    change: Callable[[str], str] = lambda text: text,
    launches: int = 1,
    programmatic: bool = False,
) -> EmulatedLibrary:
    emitted = named(plan.target).emit(plan)
    assert emitted.launch is not None
    launch = replace(emitted.launch, programmatic=programmatic)
    return EmulatedLibrary(plan, replace(emitted, text=change(emitted.text), launch=launch), launches)


def replaced(old: str, new: str, count: int = 0) -> Callable[[str], str]:
    """The text with `old` replaced, which must be there. count: how often; 0: wherever it stands."""

    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, count or -1)

    return change


class Runs:
    """A case's library, its arguments and what is expected of it."""

    def __init__(self, case: Case, plan: Plan, library: EmulatedLibrary):
        self.case, self.plan, self.library = case, plan, library
        self.given = random_arguments(case.program)
        arguments = [a.clone() for a in self.given]
        want = tg.reference(case.program, *arguments)
        self.want = list(want if isinstance(want, tuple) else (want,))

    def held(self) -> dict[str, torch.Tensor]:
        """All tensors of the plan: spoiled where nothing is given."""
        held = {name: a.clone() for name, a in zip(self.plan.arguments, self.given, strict=True)}
        for t in self.plan.graph.tensors.values():
            if t.name not in held:
                held[t.name] = spoiled(torch.empty(t.plan_shape, dtype=getattr(torch, t.dtype)))
        return held

    def results(self, adversary: Adversary) -> list[torch.Tensor]:
        """Outputs and states after one run. RaceError, HangError: as the library."""
        held = self.held()
        self.library.adversary = adversary
        self.library.run(0, held, 1)
        states = [t.name for t in self.case.program.tensors if t.role == "state"]
        return [
            held[name].reshape(w.shape)
            for name, w in zip((*self.plan.outputs, *states), self.want, strict=True)
        ]

    def wrong(self, adversary: Adversary) -> str:
        """What went wrong in one run, or an empty string."""
        try:
            error = error_of(tuple(self.results(adversary)), tuple(self.want))
        except (RaceError, HangError) as what:
            return f"{adversary}: {what}"
        return "" if error < MOST else f"{adversary}: error {error}"


def emulated(
    case: Case,
    seeds: Iterable[int] = range(3),
    change: Callable[[str], str] = lambda text: text,
    target: str = "auto",
    sms: int | str = 0,
    **how: Any,
) -> str:
    """Run a case, once for each seed: the first thing that goes wrong, or an empty string. sms: 0 for as many
    as the case wants."""
    plan = case.plan(sms or case.sms, target)
    runs = Runs(case, plan, library_of(plan, change, **how))
    for seed in seeds:
        wrong = runs.wrong(Adversary.drawn(seed, runs.library.launch.grid))
        if wrong:
            return f"seed {seed}, {wrong}"
    return ""
