"""What the formulas of products leave out, learned from measured times.

    time = formula · exp(Σ tree(seen)), a factor from LEAST to MOST

The trees are small regression trees, each grown on what the formula and the trees before it leave of
measured times (gradient boosting: Friedman, Annals of Statistics 29, 2001). `python -m benchmarks.calibrate
grow` grows them; residuals.json keeps them as data. They hold for the GPU that was measured; of others the
formulas alone are known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from tilegen.arch.machine import Machine

LEAST, MOST = 0.87, 2.0  # of the factor
DATA = "residuals.json"
# the value of a leaf; or the place of what is seen, a threshold, and the trees up to it and above it
Tree = float | Sequence[Any]


class LinearTraits(NamedTuple):
    """How a linear is cut: what one CTA computes, the CTAs of a cluster, and the whole."""

    height: int
    width: int
    numbers: int  # height x width
    m: int
    n: int
    k: int
    pingpong: bool
    deep: float  # columns of a step / 64
    tiles: float  # CTAs for each SM
    filled: float  # of all waves, the share of their CTAs that are there
    steps: float
    rows: int
    rows_there: float  # of all rows of tiles, the share that the result has
    columns_there: float
    columns: int
    swapped: bool  # weights are wgmma's left operand
    packed: bool  # weights are
    down: int  # CTAs, by their rows, and by their columns
    across: int
    stage: int  # rows of 128 bytes that a step loads
    beside: int  # numbers that the epilogue reads for each of the result
    curves: int  # calls of curved functions for each
    patches: int  # pixels of the filter whose patches are multiplied, 0 of rows
    stride: int  # of patches


class ConvTraits(NamedTuple):
    """How a convolution is cut."""

    pixels: int
    loaded: int  # rows of pixels
    width: int
    blocks: int  # products with 64 channels in a step
    slides: bool
    cluster: int
    tiles: float  # CTAs for each SM
    filled: float
    steps: float
    pixels_there: float  # of all pixels of tiles, the share that the result has
    columns_there: float
    stride: int
    channels_there: float  # of whole blocks of 64
    down: int  # boxes of pixels, and tiles of columns
    across: int
    stage: int  # rows of 128 bytes that a step loads
    rows: int  # that tensor cores read
    columns: int


Traits = LinearTraits | ConvTraits
OF_TIME = ("us", "us_of_step", "bytes_in_us")  # logarithms, by the formula


@dataclass(frozen=True)
class Residual:
    """Of a product that is cut in one way. steps: of all its waves; bytes: from and to memory. The trees are
    read when a factor is first asked for: ops that share a launch go by the formula alone."""

    machine: Machine
    traits: Traits
    steps: float
    bytes: float
    known: dict[float, float] = field(default_factory=dict, compare=False, repr=False)  # factors

    def seen(self, us: float) -> tuple[float, ...]:
        """What the trees are asked with, where the formula says us."""
        return (*self.traits, math.log(us), math.log(us / self.steps), math.log(self.bytes / us))

    def factor(self, us: float) -> float:
        """By which measured times are longer than us; 1 where no product of the GPU was measured."""
        if us not in self.known:
            trees = trees_of(self.machine, type(self.traits))
            self.known[us] = 1.0 if trees is None else factor_of(trees, self.seen(us))
        return self.known[us]


def factor_of(trees: Sequence[Tree], seen: Sequence[float]) -> float:
    total = 0.0
    for tree in trees:
        while tree.__class__ is not float:  # isinstance takes twice as long here
            place, threshold, up_to, above = tree  # type: ignore[misc]
            tree = up_to if seen[place] <= threshold else above
        total += tree
    return max(LEAST, min(MOST, math.exp(total)))


def trees_of(machine: Machine, traits: type[Traits]) -> Sequence[Tree] | None:
    """Those that were grown for a GPU; None where no product of it was measured."""
    of_gpu = _data().get(machine.name.partition(":")[0])
    if of_gpu is None:
        return None
    kept = of_gpu.get(traits.__name__, {"seen": names_of(traits), "trees": []})
    if kept["seen"] != names_of(traits):
        raise ValueError(f"{DATA} was grown on {kept['seen']}, expected {names_of(traits)}")
    return kept["trees"]


def names_of(traits: type[Traits]) -> list[str]:
    """Of what trees see, in order."""
    return [*traits._fields, *OF_TIME]


@lru_cache
def _data() -> Mapping[str, Any]:
    return dict(json.loads(resources.files("tilegen").joinpath(DATA).read_text()))
