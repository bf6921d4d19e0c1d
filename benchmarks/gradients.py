"""Gradients of whole models under torch.compile(backend="tilegen"), beside eager's.

python -m benchmarks.gradients bert resnet50 -o FILE      on this GPU, else on the CPU target

Models are those of benchmarks.zoo, in eval mode; the loss is the first result times random normal
numbers; every region that has words is taken. Eager's arithmetic and tilegen's is bfloat16 on a GPU, float32
on a CPU; both are compared with float32, float64. A row: regions, and how far all gradients together are off,
and those of the worst parameter, in norms. Ends with 1 where tilegen is further off than eager, by a quarter.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks import each_model
from benchmarks.each_model import TYPES
from benchmarks.zoo import MODELS, cast, first
from tilegen.backend.backend import tilegen

Gradients = Mapping[str, torch.Tensor]
SMALL = 1e-3  # of all gradients' norm: a parameter whose own is smaller is compared with so much
EXACT = {"cpu": torch.float64, "cuda": torch.float32}
EXPLAINED = 1.25  # of eager's error


def gradients(
    run: Callable[..., Any], model: torch.nn.Module, given: tuple[torch.Tensor, ...]
) -> dict[str, torch.Tensor]:
    """Of each parameter; zeros where the loss does not see it, as torch.compile may give them, too."""
    model.zero_grad(set_to_none=True)
    result = first(run(*given)).float()
    drawn = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    (result * drawn.to(result.device)).mean().backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    return {n: g.detach().float().cpu() for n, g in grads.items()}


def norm(of: Gradients) -> float:
    return float(torch.stack([g.double().norm() for g in of.values()]).norm())


def errors(found: Gradients, exact: Gradients) -> tuple[float, float]:
    """Of all together, and of the worst parameter."""
    off = {n: found[n] - exact[n] for n in exact}
    whole = norm(exact)
    worst = max(float(off[n].norm()) / max(float(exact[n].norm()), SMALL * whole) for n in exact)
    return norm(off) / whole, worst


def _in(
    dtype: torch.dtype, model: torch.nn.Module, given: tuple[torch.Tensor, ...]
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A copy of a model and its arguments in another arithmetic."""
    return copy.deepcopy(model).to(dtype), cast(given, dtype)


def measured(name: str, device: str) -> each_model.Row:
    """A row of a model."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    with torch.device(device):
        model, given = MODELS[name](1)
    exact, eager = (_in(dtype[device], model.eval(), given) for dtype in (EXACT, TYPES))
    true = gradients(exact[0], *exact)
    model, given = eager
    torchs = errors(gradients(model, model, given), true)
    counters.clear()
    begun = time.perf_counter()
    found = errors(gradients(torch.compile(copy.copy(model), backend=tilegen), model, given), true)
    return {
        **{"model": name, "regions": counters["tilegen"]["regions"], "parameters": len(true)},
        **{"error": found[0], "of_worst": found[1], "eager": torchs[0], "eager_of_worst": torchs[1]},
        **{"right": found[0] <= EXPLAINED * torchs[0], "seconds": round(time.perf_counter() - begun, 1)},
    }


if __name__ == "__main__":
    sys.exit(each_model.main("gradients", __doc__, measured))
