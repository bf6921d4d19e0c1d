"""Right or wrong: how far a result is from the float32 reference, over the whole tensor and at its worst
element.

    frobenius = ‖y - r‖ / ‖r‖                        wrong above WRONG
    element   = max |yᵢ - rᵢ| / (T u √R sᵢ)          wrong above 1
    sᵢ = max(|rᵢ|, rms of r's row of i, rms of r)

u: half a unit in the last place of the storage type, relative: what one rounding may cost. R: roundings one
after the other, one for each call of the program and a second for attention's probabilities. Each call's
result is rounded once, by an error of either sign that is at most u times the value; a sum carries the
roundings of its terms on as their root of squares, so that R of them in a row give an element an error whose
standard deviation is below u √R times the scale of its row. T = 8 of those: by chance one element in 10¹⁵.
docs/numerics.md tells more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilegen.frontend.program import Program
from tilegen.ops.attention import AttentionAttributes
from tilegen.runtime.data import relative_error

WRONG = 1e-2  # a larger Frobenius error is no rounding
DEVIATIONS = 8.0
# float32: sums of thousands of terms in other orders, not storage
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-21}


@dataclass(frozen=True)
class Accuracy:
    """frobenius: relative, over a tensor; element: the worst one's error over its bound. Of several results
    the worse of each."""

    frobenius: float = 0.0
    element: float = 0.0

    def and_also(self, other: Accuracy) -> Accuracy:
        return Accuracy(worst([self.frobenius, other.frobenius]), worst([self.element, other.element]))


def worst(errors: Sequence[float]) -> float:
    """The largest; NaN if any is (max would keep or drop it by its place)."""
    return math.nan if any(math.isnan(e) for e in errors) else max(errors)


def error_of(result: Any, expected: Any) -> float:
    """The largest Frobenius error over the outputs; states that the reference gives after them are left
    out."""
    return worst([relative_error(r, w) for r, w in zip(tensors(result), tensors(expected), strict=False)])


def error_kind(expected: Any) -> str:
    """How error_of measures beside this reference."""
    zero = not all(r.count_nonzero() for r in tensors(expected))
    return "relative Frobenius" + ("; absolute where the reference is all zero" if zero else "")


def accuracy(program: Program, result: Any, expected: Any) -> Accuracy:
    """Of outputs, and of states where they are given after them."""
    found, allowed = Accuracy(), tolerance(program)
    for y, r in zip(tensors(result), tensors(expected), strict=False):
        found = found.and_also(Accuracy(relative_error(y, r), worst_element(y, r, allowed)))
    return found


def tolerance(program: Program) -> float:
    """T u √R of a program."""
    u = max(ROUNDING[t.dtype] for t in program.tensors if t.dtype in ROUNDING)
    roundings = len(program.calls) + sum(isinstance(c.attributes, AttentionAttributes) for c in program.calls)
    return DEVIATIONS * u * math.sqrt(roundings)


def worst_element(y: torch.Tensor, r: torch.Tensor, allowed: float) -> float:
    """max |yᵢ - rᵢ| / (allowed · sᵢ); NaN when the result has one. Of whole numbers 0 where all are
    right, else ∞."""
    if not r.is_floating_point():
        return relative_error(y, r)
    r = r.float()
    scale = torch.maximum(r.square().mean(-1, keepdim=True), r.square().mean()).sqrt()
    error = (y.float().reshape(r.shape) - r).abs() / torch.maximum(r.abs(), scale).clamp_min(
        torch.finfo(torch.float32).tiny
    )
    return float(error.max()) / allowed


def tensors(result: Any) -> tuple[Any, ...]:
    if result is None:
        return ()
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
