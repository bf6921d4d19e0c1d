"""What torch.compile(backend="tilegen") makes of a model: its regions, what is left to Inductor, and why.

tilegen explain model.py --machine h200        def model(): return Net().eval(), (torch.randn(1, 64),)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.utils import counters

from tilegen import config
from tilegen.arch.machine import machine
from tilegen.backend.backend import tilegen
from tilegen.backend.search import LOGGER
from tilegen.errors import SpecError


def explain_model(make: Callable[[], Any], on: str = "") -> str:
    """A line a region, then a line a reason. make: gives the model and the arguments of a call, which is made
    once, without gradients. on: the GPU by whose cost model regions are judged, such as h200; by default
    that of the GPU where the model is. On a CPU without one every region is taken.

    Raises:
        SpecError: make gives something else.
        PlanError: there is no such machine.
    """
    if on:
        machine(on)
    model, arguments = _made(make)
    torch._dynamo.reset()
    counters.clear()
    with _told() as lines, _judged_by(on), torch.no_grad():
        torch.compile(model, backend=tilegen)(*arguments)
    said = counters["tilegen"]
    graphs, regions = counters["stats"]["unique_graphs"], said["regions"]
    head = f"{_many(graphs, 'graph')}, {_many(regions, 'region')} of {_many(said['ops'], 'operator')}"
    return "\n".join([head, *lines])


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _made(make: Callable[[], Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    made = make()
    match made:
        case (model, (*arguments,)) if callable(model):
            return model, tuple(arguments)
    name = getattr(make, "__name__", "model")
    raise SpecError(f"{name}() gives a model and a tuple of a call's arguments, given {type(made).__name__}")


@contextmanager
def _told() -> Iterator[list[str]]:
    """What the backend says meanwhile."""
    lines: list[str] = []
    log, kept = logging.getLogger(LOGGER), logging.Handler()
    kept.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.removeHandler(kept)
        log.setLevel(level)


@contextmanager
def _judged_by(on: str) -> Iterator[None]:
    before, config.judge = config.judge, on
    try:
        yield
    finally:
        config.judge = before
