"""Small models that nothing is tuned for under torch.compile(backend="tilegen"): are forward passes eager's?

python -m benchmarks.small deberta longformer -o FILE     on this GPU, else on the CPU target; no name: all

Models are those of benchmarks.small_zoo, in eval mode; every region that has words is taken. Arithmetic is
bfloat16 on a GPU, compared with float32; float32 on a CPU, compared with eager's. A row: regions, operators
in them, graphs, how far the worst result is off, and what most often was left. Ends with 1 where a result is
wrong. A model that the packages here do not have is a note.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks import each_model
from benchmarks.each_model import TYPES
from benchmarks.small_zoo import SMALL
from benchmarks.zoo import cast
from tilegen.backend.backend import tilegen

EXPLAINED = {"cpu": (0.0, 2e-5), "cuda": (1.25, 1e-3)}  # times eager's error, and so much besides
Tensors = Sequence[torch.Tensor]


def tensors(found: Any) -> Iterator[torch.Tensor]:
    """All results of a model, which transformers gives as fields."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (tuple, list)):
        for part in found:
            yield from tensors(part)
    elif isinstance(found, dict):
        yield from tensors(list(found.values()))


def error(found: Tensors, exact: Tensors) -> float:
    """Of the worst result, in norms; without end where numbers of results, shapes or whole numbers differ."""
    if [a.shape for a in found] != [b.shape for b in exact]:
        return float("inf")
    return max(_off(a, b) for a, b in zip(found, exact, strict=True))


def _off(a: torch.Tensor, b: torch.Tensor) -> float:
    if not b.dtype.is_floating_point:
        return 0.0 if torch.equal(a, b) else float("inf")
    whole = float(b.double().norm())
    return float((a.double() - b.double()).norm()) / whole if whole else float(a.double().norm())


def measured(name: str, device: str) -> each_model.Row:
    """A row of a model."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    model, given = SMALL[name]()
    model, given = model.eval().to(device), tuple(a.to(device) for a in given)
    with torch.no_grad():
        exact = list(tensors(model(*given)))
        model, given = model.to(TYPES[device]), cast(given, TYPES[device])
        eager = error(list(tensors(model(*given))), exact)
        begun = time.perf_counter()
        found = error(list(tensors(torch.compile(copy.copy(model), backend=tilegen)(*given))), exact)
    said, (times, besides) = counters["tilegen"], EXPLAINED[device]
    left = sorted((why for why in said if why.startswith("left: ")), key=lambda why: -said[why])
    return {
        **{"model": name, "graphs": counters["stats"]["unique_graphs"], "regions": said["regions"]},
        **{"operators": said["ops"], "error": found, "eager": eager},
        **{"right": found <= times * eager + besides, "seconds": round(time.perf_counter() - begun, 1)},
        "left": left[0].removeprefix("left: ") if left else "",
    }


if __name__ == "__main__":
    sys.exit(each_model.main("small", __doc__, measured, SMALL))
