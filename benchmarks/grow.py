"""The trees of tilegen.graph.residual, grown on the pairs of sweeps that are not held out.

Pairs near their program's best weigh most, for these are what is chosen from. What all pairs of a program
leave alike matters less (ALIKE): the power limit and the GPU of that day are in it, and no choice depends
on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from benchmarks.fit import RESULTS, SWEEPS, Pair, conv_pairs, nearest, pairs
from tilegen.arch.machine import H200
from tilegen.graph.cost_model import product_time
from tilegen.graph.residual import DATA, ConvTraits, LinearTraits, Residual, Traits, Tree, names_of

ROOT = Path(__file__).resolve().parent.parent
TREES, RATE, LEAST_PAIRS, SEEN, TRAITS = 200, 0.12, 8, 0.8, 0.5  # shares of pairs and traits of a tree
LEAVES: dict[type[Traits], int] = {LinearTraits: 200, ConvTraits: 96}  # of 38,000 pairs, and of 9,000
ALIKE = 0.9  # of what the pairs of a program leave on average, the share that no tree is grown on
DIGITS, OF_THRESHOLDS = 3, 5  # of leaves, and of thresholds, that are kept


def grown(some: Sequence[Pair[Any]], leaves: int) -> list[Tree]:
    """On pairs of one kind of product: each tree on what those before it leave."""
    pairs = nearest(some)
    seen, left, weights = (np.array(column) for column in zip(*map(_left, pairs), strict=True))
    _, program = np.unique([p.program for p in pairs], return_inverse=True)
    of_program = np.bincount(program, weights)
    r, trees = np.random.RandomState(0), list[Tree]()
    for _ in range(TREES):
        alike = np.bincount(program, weights * left) / of_program
        tree = DecisionTreeRegressor(
            max_leaf_nodes=leaves,
            min_samples_leaf=LEAST_PAIRS,
            max_features=TRAITS,
            random_state=r.randint(1 << 30),
        )
        some_of = r.rand(len(left)) < SEEN
        tree.fit(seen[some_of], (left - ALIKE * alike[program])[some_of], sample_weight=weights[some_of])
        left = left - RATE * tree.predict(seen)
        trees.append(_kept(tree.tree_, 0))
    return trees


def _left(p: Pair[Any]) -> tuple[tuple[float, ...], float, float]:
    """What trees see of a pair, the logarithm of what its formula leaves out, and its weight."""
    time = product_time(p.bound, H200)
    us, residual = time.formula(time.stages), time.residual
    assert isinstance(residual, Residual)
    return residual.seen(us), math.log(p.us / us), p.weight


def _kept(tree: Any, node: int) -> Tree:
    """A tree from one of its nodes on."""
    up_to, above = tree.children_left[node], tree.children_right[node]
    if up_to == above:
        return float(f"{RATE * tree.value[node][0][0]:.{DIGITS}g}")
    threshold = float(f"{tree.threshold[node]:.{OF_THRESHOLDS}g}")
    return [int(tree.feature[node]), threshold, _kept(tree, up_to), _kept(tree, above)]


def grow() -> None:
    """Into tilegen/residuals.json. Where traits change, {"h200": {}} stands there first: other trees than
    products tell of are refused."""
    linears = [*pairs(RESULTS), *(p for s in SWEEPS if s.gpu == "h200" and s.seen for p in s.pairs())]
    of: dict[type[Traits], Sequence[Pair[Any]]] = {LinearTraits: linears, ConvTraits: conv_pairs()}
    kept = {
        traits.__name__: {
            "seen": names_of(traits),
            "trees": grown([p for p in some if not p.held_out], LEAVES[traits]),
        }
        for traits, some in of.items()
    }
    (ROOT / "tilegen" / DATA).write_text("\n".join(_lines(kept)) + "\n")


def _lines(kept: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line for each tree."""
    yield '{"h200": {'
    for n, (name, of) in enumerate(kept.items()):
        yield f'"{name}": {{"seen": {json.dumps(of["seen"])}, "trees": ['
        yield ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in of["trees"])
        yield "]}" + ("," if n < len(kept) - 1 else "")
    yield "}}"
