"""Trees that are grown on measured times."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from benchmarks.fit import Pair, pairs
from benchmarks.grow import LEAVES, grown
from tilegen.arch.machine import H200
from tilegen.graph.linear_time import linear_time
from tilegen.graph.product_time import RATES, Rates
from tilegen.graph.residual import LinearTraits, factor_of

HIGH = 1.15  # by which tiles of 128 rows and more take longer here


def planted(p: Pair[Rates]) -> Pair[Rates]:
    return replace(p, us=p.modelled(RATES) * (HIGH if p.bound.tile[0] >= 128 else 1.0))


def test_what_all_pairs_of_a_kind_take_longer_is_found() -> None:
    some = [planted(p) for p in itertools.islice(pairs(), 600)]
    trees, off = grown(some[:400], LEAVES[LinearTraits]), []
    for p in some[400:]:
        time = linear_time(p.bound, H200)
        us = time.formula(time.stages)
        assert time.residual is not None
        off.append(abs(math.log(factor_of(trees, time.residual.seen(us)) / (p.us / us))))
    assert sum(off) / len(off) < math.log(HIGH) / 5


def test_trees_are_grown_alike_each_time() -> None:
    some = list(itertools.islice(pairs(), 100))
    assert grown(some, 24) == grown(some, 24)
