"""What benchmarks.gradients, batches and small share: a row of each model that is named."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.models import command
from benchmarks.zoo import MODELS, named
from tilegen import config
from tilegen.bench.environment import environment
from tilegen.bench.results import cpu_environment, heading, save

TYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
Row = dict[str, Any]


def main(
    tool: str, text: str | None, measured: Callable[[str, str], Row], models: Mapping[str, Any] = MODELS
) -> int:
    """The command line of a tool that measures a model (its name, the device); 1 where a row is not `right`.
    Every region that has words is taken. A model that its package does not have is a note."""
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(tool, description=text, formatter_class=raw)
    known = functools.partial(named, models=models)
    p.add_argument("models", nargs="*", type=known, metavar="MODEL", help=", ".join(models))
    p.add_argument("-o", "--out", type=Path)
    p.add_argument("--sequence", type=int, default=zoo.SEQUENCE, help="tokens of those that read any")
    asked = p.parse_args()
    zoo.SEQUENCE, config.min_gain = asked.sequence, 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = environment() if device == "cuda" else cpu_environment()
    begun = heading(command(f"python -m benchmarks.{tool}", asked.out), place)
    rows, notes = list[Row](), list[str]()
    for name in asked.models or models:
        try:
            rows.append(row := measured(name, device))
        except ImportError as error:
            notes.append(f"{name}: {error}")
            print(notes[-1])
            continue
        print(", ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
        sys.stdout.flush()
        if asked.out:
            save({**begun, "notes": notes, "rows": rows}, asked.out)
    return int(not all(row["right"] for row in rows))
