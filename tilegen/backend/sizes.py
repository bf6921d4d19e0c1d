"""A size of a model that moves: torch's symbol in a graph's tensors, a region's tg.dim.

    (s33, 16·s33 + 1, 64)   ─ text ─▶   ([1, 0], [16, 1], 64)   ─ in any process ─▶   (s0, 16·s0 + 1, 64)

A region is a kernel for all values of one size (tilegen.kernels.moving); where two of a graph's move, what
depends on the other one is left to Inductor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    statically_known_true,
)
from torch.utils import _pytree as pytree

from tilegen.frontend.dims import MOST

NAME = "M"  # of what moves, in a region
HINT = 1009  # what torch takes it for where a text is read; a choice by it is refused


@dataclass(frozen=True)
class Linear:
    """factor · size + rest, of the size that moves."""

    factor: int
    rest: int

    def at(self, size: Any) -> Any:
        return self.factor * size + self.rest


@dataclass(frozen=True)
class Moving:
    """What moves in a graph. hint: what it was while torch traced. most: the largest that it gets, as far as
    is known; a region with a larger one is compiled again."""

    symbol: sp.Symbol
    hint: int
    most: int

    def linear(self, size: Any) -> int | Linear:
        """A size in words of what moves.

        Raises:
            ValueError: it is not linear in it.
        """
        if isinstance(size, (torch.SymFloat, torch.SymBool)):
            raise ValueError(f"a number {size}")
        found = expression(size)
        if isinstance(found, int):
            return found
        factor, rest = found.coeff(self.symbol, 1), found.coeff(self.symbol, 0)
        plain = factor.is_Integer and rest.is_Integer
        if not plain or sp.expand(found - factor * self.symbol - rest) != 0:
            raise ValueError(f"a size {found}")
        return Linear(int(factor), int(rest))

    def bytes(self, value: torch.Tensor) -> int:
        """Of a tensor as torch traced it."""
        shape = [n if isinstance(n, int) else n.at(self.hint) for n in map(self.linear, value.shape)]
        return math.prod(shape) * value.element_size()


def expression(size: Any) -> Any:
    """An int, or a formula of torch's symbols."""
    if isinstance(size, int):
        return size
    found = sp.expand(size.node.expr)
    return int(found) if found.is_Integer else found


def hint(size: Any) -> int:
    """What a size was while torch traced."""
    return size if isinstance(size, int) else int(size.node.hint)


def is_size(node: Any) -> bool:
    """Whether a node of a graph is a number that moves, not a tensor."""
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.SymInt)


def alike(a: Any, b: Any) -> bool:
    """Whether sizes are the same whatever moves."""
    return len(a) == len(b) and all(statically_known_true(m == n) for m, n in zip(a, b, strict=True))


def moving(graph: Graph) -> Moving | None:
    """What moves in a graph; of several that in which most of its tensors are linear."""
    alone, known = Counter[sp.Symbol](), dict[sp.Symbol, torch.SymInt]()
    for node in graph.nodes:
        found = symbols(node)
        known |= {
            n.node.expr: n for n in _sizes(node) if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol
        }
        alone.update(found if len(found) == 1 else ())
    for symbol, _ in alone.most_common():
        if symbol in known and known[symbol].node.hint is not None:
            traced = hint(known[symbol])
            return Moving(symbol, traced, _most(known[symbol], traced))
    return None


def symbols(node: Node) -> set[sp.Symbol]:
    """What moves in a node."""
    return symbols_of(_sizes(node))


def symbols_of(sizes: Iterable[Any]) -> set[sp.Symbol]:
    """What moves in some sizes."""
    return {s for n in sizes if not isinstance(n, int) for s in n.node.expr.free_symbols}


def at(size: Any, values: Mapping[sp.Symbol, int]) -> int:
    """A size where what moves has these values."""
    return size if isinstance(size, int) else int(size.node.expr.subs(values))


def _most(size: torch.SymInt, traced: int) -> int:
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    if upper.is_Integer and upper <= MOST:
        return int(upper)
    return 1 << (2 * traced - 1).bit_length()


def reason(node: Node, found: Moving | None) -> str:
    """Why no region may hold a node, whose sizes move otherwise than a region's can; empty where it may."""
    for n in (node, *node.all_input_nodes):
        for size in _sizes(n):
            if not isinstance(size, int):
                if found is None:
                    return f"a size {size} of a tensor moves"
                try:
                    found.linear(size)
                except ValueError as error:
                    return f"{error} of a tensor moves, beside {found.symbol}"
    return ""


def _sizes(node: Node) -> Iterator[Any]:
    """Those in the tensors of a node, and numbers that it is given or gives."""
    leaves = pytree.tree_leaves((node.meta.get("val"), node.args, node.kwargs))
    for value in leaves:
        if isinstance(value, torch.Tensor):
            yield from value.shape
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield value


def read_anew(most: int) -> tuple[FakeTensorMode, torch.SymInt]:
    """Where the text of a region is read, and what moves in it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    moves: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    like = torch.empty(min(HINT, most), device="meta")
    line: Any = mode.from_tensor(like, source=ConstantSource(NAME), symbolic_context=moves)
    return mode, line.shape[0]


def asked(mode: FakeTensorMode) -> bool:
    """Whether what moves was asked for its value, and an answer was taken for all."""
    return mode.shape_env is not None and bool(mode.shape_env.guards)
