"""Whole models whose batch moves under torch.compile(backend="tilegen"): no graph more than Inductor's own.

python -m benchmarks.batches bert resnet50 -o FILE      on this GPU, else on the CPU target

Models are those of benchmarks.zoo; the batch is marked as one that moves, and is 2, 3, 5 and 4 in turn;
every region that has words is taken. Arithmetic is bfloat16 on a GPU, float32 on a CPU. A row: how many
graphs Dynamo compiled for all batches under Inductor and under tilegen, tilegen's regions, and how far the
worst result of each is from eager's, in norms. Ends with 1 where tilegen needs a graph more, or is off by
more.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import each_model
from benchmarks.each_model import TYPES
from benchmarks.zoo import MODELS, cast, first
from tilegen.backend.backend import tilegen

BATCHES = (2, 3, 5, 4)
SAME = {"cpu": 1e-4, "cuda": 3e-2}  # of a result's norm; Inductor's own may be further off
Given = Mapping[int, tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Compiled:
    """How a model went under a backend. error: of the worst batch, beside eager."""

    graphs: int
    regions: int
    error: float


def compiled(model: torch.nn.Module, backend: Any, given: Given) -> Compiled:
    """A model compiled anew, called with each batch."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    run = torch.compile(copy.copy(model), backend=backend)
    errors = []
    with torch.no_grad():
        for arguments in given.values():
            for argument in arguments:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
            found, exact = first(run(*arguments)).float(), first(model(*arguments)).float()
            errors.append(float((found - exact).norm() / exact.norm()))
    return Compiled(counters["stats"]["unique_graphs"], counters["tilegen"]["regions"], max(errors))


def measured(name: str, device: str) -> each_model.Row:
    """A row of a model."""
    torch.manual_seed(0)
    dtype, begun = TYPES[device], time.perf_counter()
    given = {}
    for batch in BATCHES:
        with torch.device(device):
            model, arguments = MODELS[name](batch)
        given[batch] = cast(arguments, dtype)
    model = model.eval().to(dtype)
    theirs, ours = (compiled(model, backend, given) for backend in ("inductor", tilegen))
    right = ours.graphs <= theirs.graphs and ours.error <= max(SAME[device], theirs.error)
    return {
        **{"model": name, "graphs": ours.graphs, "graphs_inductor": theirs.graphs, "regions": ours.regions},
        **{"error": ours.error, "error_inductor": theirs.error, "right": right},
        "seconds": round(time.perf_counter() - begun, 1),
    }


if __name__ == "__main__":
    sys.exit(each_model.main("batches", __doc__, measured))
