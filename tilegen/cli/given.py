"""What verbs have in common: the program, options and plan that are asked for, progress, JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def program_of(o: argparse.Namespace) -> Any:
    from tilegen.frontend.loader import load_program

    return load_program(o.spec, o.size)


def plan_of(o: argparse.Namespace, target: str = "auto") -> Any:
    """target: that a plan is asked for; by default that of the machine."""
    from tilegen import api

    progress = Progress()
    made = api.plan(program_of(o), o.machine or "cpu", options_of(o), progress, target=target)
    progress.done()
    return made


def options_of(o: argparse.Namespace) -> Any:
    from tilegen.errors import PlanError
    from tilegen.options import Options

    def pairs(flag: str, items: Sequence[str], parse: Callable[[str], Any]) -> dict[str, Any]:
        found = {}
        for item in items:
            name, equals, value = item.rpartition("=")
            try:
                if not equals or not name:
                    raise ValueError
                found[name] = parse(value)
            except ValueError:
                raise PlanError(f"{flag} {item}: expected NAME=VALUE, see --help") from None
        return found

    return Options.of(
        tiles=pairs("--tile", o.tile, lambda v: tuple(int(n) for n in v.split("x"))),
        policies=pairs("--policy", o.policy, str),
        split_k=pairs("--split-k", o.split_k, int),
        split_kv=pairs("--split-kv", o.split_kv, int),
        cluster=pairs("--cluster", o.cluster, str),
        pingpong=dict.fromkeys(o.pingpong, True),
        order=o.order,
        scheduling=o.scheduling,
        norms=o.norms,
        appends=o.appends,
    )


def print_json(data: Any) -> None:
    print(json.dumps(data, ensure_ascii=False))


class Progress:
    """One line on stderr, rewritten, for whatever takes over a second; nothing when stderr is no terminal and
    the work is short."""

    def __init__(self) -> None:
        self.start, self.shown, self.last = time.monotonic(), 0, 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self.start < 1.0 or (not sys.stderr.isatty() and now - self.last < 1.0):
            return
        self.last = now
        line = f"[{now - self.start:5.1f} s] {text}"[:118]
        print(
            f"\r{line:<{self.shown}}" if sys.stderr.isatty() else line,
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )
        self.shown = len(line)

    def done(self) -> None:
        if self.shown and sys.stderr.isatty():
            print("\r" + " " * self.shown + "\r", end="", file=sys.stderr, flush=True)
