"""Programs in which a size moves, random data of one size, and what a kernel is held against there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import tilegen as tg
from tilegen.frontend.dims import filled
from tilegen.frontend.loader import load_spec
from tilegen.frontend.program import Program
from tilegen.frontend.spec import Spec
from tilegen.kernels.moving import MovingKernel
from tilegen.runtime.arguments import TORCH_DTYPES

# example (and which of its cases) -> its sizes, what moves, up to where, at which sizes it is run
EXAMPLES: dict[str, tuple[dict[str, Any], str, int, tuple[int, ...]]] = {
    "gpt3_mlp": ({"H": 96, "I": 48}, "M", 300, (1, 2, 17, 128, 129, 300, 5)),
    "llama_mlp": ({"H": 96, "I": 48}, "M", 300, (300, 1, 129, 17)),
    "gpt3_attention": ({"S": 40, "H": 96, "heads": 3, "D": 32}, "B", 3, (1, 2, 3)),
    "llama_attention": ({"S": 2, "S_max": 40, "H": 96, "heads": 4, "kv_heads": 2, "D": 32}, "B", 3, (2, 3)),
    "llama_layer": (
        {"S": 2, "S_max": 40, "H": 96, "heads": 4, "kv_heads": 2, "D": 32, "I": 64},
        "B",
        5,
        (1, 2, 5),
    ),
    "gpt_layer": ({"S": 40, "H": 64, "heads": 2}, "B", 3, (3, 1)),
    "gpt_layer, tokens": ({"B": 1, "H": 64, "heads": 2}, "S", 150, (1, 5, 64, 65, 150)),
    "llama_layer, tokens": (
        {"B": 2, "S_max": 120, "H": 96, "heads": 4, "kv_heads": 2, "D": 32, "I": 64},
        "S",
        100,
        (1, 17, 33, 64, 65, 100),
    ),
    "resnet38": ({"HW": 32, "C": 8, "classes": 16}, "B", 3, (1, 3)),
    "vgg19": ({"HW": 32, "C": 8}, "B", 3, (3, 2)),
}


def spec_of(name: str) -> Spec:
    return load_spec(f"examples/{name.partition(',')[0]}.py")


def moving(name: str) -> Program:
    sizes, dim, largest, _ = EXAMPLES[name]
    spec = spec_of(name)
    return spec(**{k: v for k, v in sizes.items() if k in spec.parameters}, **{dim: tg.dim(dim, max=largest)})


def drawn(program: Program, seed: int = 0) -> list[torch.Tensor]:
    """Random data of the size of a program's results."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for t in program.arguments:
        if t.dtype == "int32":
            found.append(torch.full(t.shape, 3, dtype=torch.int32))
            continue
        by = math.prod(t.shape[1:]) ** -0.5 if t.role == "weight" and len(t.shape) > 1 else 1.0
        found.append((torch.randn(t.shape, generator=chance) * by).to(TORCH_DTYPES[t.dtype]))
    return found


def right(kernel: MovingKernel, size: int) -> torch.Tensor:
    """The kernel's first result at a size, as `same` has it."""
    program = filled(kernel.program, kernel.dim, size)
    return same(kernel, program, drawn(program, size))


def same(kernel: Callable[..., Any], program: Program, given: list[torch.Tensor]) -> torch.Tensor:
    """A kernel's first result; all of them, and the states, are held against the program in float32."""
    expected = tg.reference(program, *(a.clone() for a in given))
    found = kernel(*given)
    states = [a for t, a in zip(program.arguments, given, strict=True) if t.role == "state"]
    results = [*(found if isinstance(found, tuple) else (found,)), *states]
    for a, b in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert a.shape == b.shape
        error = float((a.float() - b.float()).norm() / b.float().norm())
        assert error <= 0.01, f"{program.name} {dict(program.sizes)}: off by {error:.3g}"
    return results[0]
