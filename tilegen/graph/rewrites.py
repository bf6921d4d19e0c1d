"""Rewrites of a graph, one a file of this folder: its docstring says before → after, when, and why that is
legal.

A file whose REWRITE is a Rewrite takes part: nothing else names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tilegen import graph as folder
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.options import Options


@dataclass(frozen=True)
class Rewrite:
    """apply: the graph, rewritten wherever that is legal on a place, pays, and the options do not speak
    against it.
    lines: for `explain`, what it did to a graph, and why not more. order: of several, the lower ones come
    first."""

    order: int
    apply: Callable[[Graph, Place, Options], Graph]
    lines: Callable[[Graph, Place], list[str]]


@lru_cache(maxsize=1)
def rewrites() -> tuple[Rewrite, ...]:
    modules = (
        importlib.import_module(f"{folder.__name__}.{m.name}") for m in pkgutil.iter_modules(folder.__path__)
    )
    found = (getattr(module, "REWRITE", None) for module in modules)
    return tuple(sorted((r for r in found if isinstance(r, Rewrite)), key=lambda r: r.order))


def rewritten(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph after all rewrites."""
    for rewrite in rewrites():
        graph = rewrite.apply(graph, place, options)
    return graph
