"""Gradients of whole models under torch.compile(backend="tilegen"), beside eager's.

python -m benchmarks.gradients bert resnet50 -o FILE      on this GPU, else on the CPU target

Models are those of benchmarks.models, in eval mode; the loss is the first result times random normal
numbers; every region that has words is taken. Eager's arithmetic and tilegen's is bfloat16 on a GPU, float32
on a CPU; both are compared with float32, float64. A row: regions, and how far all gradients together are off,
and those of the worst parameter, in norms. Ends with 1 where tilegen is further off than eager, by a quarter.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import models
from benchmarks.models import MODELS, command, first
from tilegen import config
from tilegen.backend.backend import tilegen
from tilegen.bench.compare import cpu_environment, heading, save
from tilegen.bench.environment import environment

Gradients = Mapping[str, torch.Tensor]
SMALL = 1e-3  # of all gradients' norm: a parameter whose own is smaller is compared with so much
EXACT = {"cpu": torch.float64, "cuda": torch.float32}
TYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
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
    return copy.deepcopy(model).to(dtype), tuple(a.to(dtype) if a.is_floating_point() else a for a in given)


def measured(name: str, device: str) -> dict[str, Any]:
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


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser("gradients", description=__doc__, formatter_class=raw)
    p.add_argument("models", nargs="+", metavar="MODEL", help=", ".join(MODELS))
    p.add_argument("-o", "--out", type=Path)
    p.add_argument("--sequence", type=int, default=models.SEQUENCE, help="tokens of those that read any")
    asked = p.parse_args()
    if unknown := set(asked.models) - MODELS.keys():
        p.error(f"no model {', '.join(sorted(unknown))}; they are {', '.join(MODELS)}")
    models.SEQUENCE, config.min_gain = asked.sequence, 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = environment() if device == "cuda" else cpu_environment()
    begun = heading(command("python -m benchmarks.gradients", asked.out), place)
    rows: list[dict[str, Any]] = []
    for name in asked.models:
        rows.append(row := measured(name, device))
        print(", ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
        sys.stdout.flush()
        if asked.out:
            save({**begun, "rows": rows}, asked.out)
    return int(not all(row["right"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
