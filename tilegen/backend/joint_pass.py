"""Regions of a joint graph as operators.

    nodes that a region may hold (words) ─ search ─▶ candidates ─ replaced ─▶ torch.ops.tilegen.region

Which nodes become regions: tilegen.backend.search. What stays is Inductor's, taken apart as it would have
been.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from tilegen import __version__, config
from tilegen.backend import hidden, masks, scalars, search, sizes, spelled, thin_masks, words
from tilegen.backend.rewrite import Candidate, decomposed, replaced, unpadded, unstrided
from tilegen.backend.search import Input

log = logging.getLogger(search.LOGGER)
Pass = Callable[[Graph], None]


class JointPass(CustomGraphPass):
    """before: a pass of the user's, which is run first. decompositions: how Inductor takes operators apart.
    inputs: of the graph that Dynamo has traced."""

    def __init__(
        self,
        before: Pass | None,
        decompositions: Mapping[Any, Callable[..., Any]],
        inputs: Sequence[Input],
    ):
        self.before, self.decompositions, self.inputs = before, decompositions, inputs

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        unstrided(graph)
        unpadded(graph)
        scalars.as_numbers(graph)
        hidden.as_sums(graph)
        spelled.as_calls(graph)
        masks.as_flags(graph)
        thinned = thin_masks.thinned(graph)
        became: dict[Node, Node] = {}
        found = search.regions(graph, self.inputs)
        _count(found)
        inside = {n for candidate in found.taken for n in candidate.nodes}
        for candidate in found.taken:
            _tell(candidate)
            became |= replaced(graph, candidate, self.decompositions, became, inside)
        stable_topological_sort(graph)
        thin_masks.restored(graph, thinned)
        decomposed(graph, self.decompositions)
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> Any:
        """What Inductor's cache knows this pass by; None, which keeps nothing, beside a pass without one."""
        own = ("tilegen", __version__, config.min_gain, config.judge)
        if self.before is None:
            return own
        theirs = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        return None if theirs is None else (*own, theirs)


# --- what is said -------------------------------------------------------------------------------------------


def _tell(candidate: Candidate) -> None:
    log.info("a region of %d ops: %s", len(candidate.program.calls), candidate.paid)


def _count(found: search.Found) -> None:
    """In torch._dynamo.utils.counters["tilegen"], and once each in the log."""
    said = counters["tilegen"]
    said["regions"] += len(found.taken)
    said["ops"] += sum(words.computes(n) for c in found.taken for n in c.nodes)
    left = {n: r for n, r in found.reasons.items() if r != search.STATIC}
    asked = [r for n, r in left.items() if r and words.computes(n) and not sizes.is_size(n)]
    for reason, times in sorted(Counter([*asked, *found.dropped]).items()):
        said[f"left: {reason}"] += times
        log.info("left to Inductor, %d times: %s", times, reason)
