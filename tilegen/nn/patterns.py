"""Ops that models spell out, found in a traced graph: before → after, each one call of a function below.

    w · (x · rsqrt(mean(x², -1) + eps))                          → rms_norm(x, w, eps)
    w · (x - m) · rsqrt(mean((x - m)², -1) + eps), m = mean(x)   → layer_norm(x, w, eps)
    x · cos + cat(-x[…, D/2:], x[…, :D/2]) · sin                 → rotary(x, cos, sin)
    x · cos + flatten(stack(-x[…, 1::2], x[…, ::2])) · sin       → rotary(x, cos, sin, interleaved)
    cat(either of them of x[…, :R], x[…, R:])                    → the same, of cos and sin of R columns
    cat(x[:n], either of them of x[n:]) of rows                  → the same, of all rows but the first n
    ½x · (1 + tanh(√(2/π)(x + 0.044715 x³)))                     → gelu(x, approximate="tanh")
    ½x · (1 + erf(x / √2)), ½x · (1 + erf(x · √½))               → gelu(x)

Casts and copies in between are looked through: what a spec computes between two tensors it does in float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
COPIES = (
    aten.to.dtype,
    aten._to_copy.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.detach.default,
    torch.ops.prims.convert_element_type.default,
)
ALIKE: dict[Any, Any] = {  # to a pattern
    aten.add.Scalar: aten.add.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.reshape.default: aten.view.default,
    aten._unsafe_view.default: aten.view.default,
}
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)
CHECKS = ("_assert", "sym_constrain")  # in the names of calls that compute nothing


def rms_norm(x: Any, w: Any, eps: float) -> Any:
    """Stands in a graph for what it names; so do the others."""
    raise NotImplementedError


def layer_norm(x: Any, w: Any, eps: float) -> Any:
    raise NotImplementedError


def rotary(x: Any, cos: Any, sin: Any, interleaved: bool = False, first: int = 0) -> Any:
    raise NotImplementedError


def gelu_tanh(x: Any) -> Any:
    raise NotImplementedError


@dataclass(frozen=True)
class Hole:
    """Whatever stands at all places of this name."""

    name: str


@dataclass(frozen=True)
class Pattern:
    """A call with these arguments; the two of a sum or a product in either order."""

    target: Any
    arguments: tuple[Any, ...]

    @property
    def args(self) -> tuple[Any, ...]:
        """As a node has them."""
        return self.arguments


def _mul(a: Any, b: Any) -> Pattern:
    return Pattern(aten.mul.Tensor, (a, b))


def _add(a: Any, b: Any) -> Pattern:
    return Pattern(aten.add.Tensor, (a, b))


_X, _W, _EPS, _HALF = Hole("x"), Hole("w"), Hole("eps"), Hole("half")
_SQUARES = Pattern(aten.mean.dim, (Pattern(aten.pow.Tensor_Scalar, (_X, 2)), Hole("over"), True))
_APART = Pattern(aten.sub.Tensor, (_X, Pattern(aten.mean.dim, (_X, Hole("over"), True))))
_VARIANCE = Pattern(aten.mean.dim, (Pattern(aten.pow.Tensor_Scalar, (_APART, 2)), Hole("over"), True))
_CUBE = Pattern(aten.pow.Tensor_Scalar, (_X, 3.0))
_TANH = Pattern(aten.tanh.default, (_mul(_add(_X, _mul(_CUBE, Hole("cubic"))), Hole("root")),))
_BY = Hole("by")


def _erf(x: Pattern) -> Pattern:
    return _mul(_mul(_X, 0.5), _add(Pattern(aten.erf.default, (x,)), 1.0))


def _slice(x: Any, *how: Any) -> Pattern:
    """Of the last dimension."""
    return Pattern(aten.slice.Tensor, (x, Hole("last"), *how))


def _cat(*parts: Pattern) -> Pattern:
    return Pattern(aten.cat.default, ([*parts], Hole("along")))


def _halves(x: Any) -> Pattern:
    """Those of heads, turned a quarter."""
    return _cat(Pattern(aten.neg.default, (_slice(x, _HALF, Hole("end")),)), _slice(x, 0, _HALF))


def _pairs(x: Any) -> tuple[Any, Any]:
    odd, even = _slice(x, 1, Hole("end of odd"), 2), _slice(x, 0, Hole("end of even"), 2)
    return Pattern(aten.neg.default, (odd,)), even


def _stacked(x: Any) -> Pattern:
    """Pairs of columns, turned a quarter, as torch.export has them."""
    return Pattern(aten.view.default, (Pattern(aten.stack.default, ([*_pairs(x)], -1)), Hole("shape")))


def _side_by_side(x: Any) -> Pattern:
    """The same in a joint graph."""
    parts = (Pattern(aten.unsqueeze.default, (p, Hole("rank"))) for p in _pairs(x))
    return Pattern(aten.view.default, (Pattern(aten.cat.default, ([*parts], -1)), Hole("shape")))


def _rotary(x: Any, turned: Callable[[Any], Pattern]) -> Pattern:
    return _add(_mul(x, Hole("cos")), _mul(turned(x), Hole("sin")))


_PART = _slice(_X, 0, Hole("columns"))
_REST = _slice(_X, Hole("columns"), Hole("end of rest"))
_BEFORE = Pattern(aten.slice.Tensor, (_X, Hole("rows"), 0, Hole("first")))
_BEHIND = Pattern(aten.slice.Tensor, (_X, Hole("rows"), Hole("first"), Hole("end of rows")))
PATTERNS: tuple[tuple[Pattern, Callable[[dict[str, Any]], tuple[Any, tuple[Any, ...]] | None]], ...] = (
    (
        _mul(_W, _mul(_X, Pattern(aten.rsqrt.default, (_add(_SQUARES, _EPS),)))),
        lambda m: (rms_norm, (m["x"], m["w"], m["eps"])) if _is_norm(m) else None,
    ),
    (
        _mul(_W, _mul(_APART, Pattern(aten.rsqrt.default, (_add(_VARIANCE, _EPS),)))),
        lambda m: (layer_norm, (m["x"], m["w"], m["eps"])) if _is_norm(m) else None,
    ),
    *(
        (pattern, lambda m: (rotary, _turning(m)) if _turns(m) else None)
        for turned in (_halves, _side_by_side, _stacked)
        for pattern in (
            _rotary(_X, turned),
            _cat(_rotary(_PART, turned), _REST),
            Pattern(aten.cat.default, ([_BEFORE, _rotary(_BEHIND, turned)], Hole("rows too"))),
        )
    ),
    (
        _mul(_mul(_X, 0.5), _add(_TANH, 1.0)),
        lambda m: (gelu_tanh, (m["x"],)) if _is_gelu(m) else None,
    ),
    (
        _erf(Pattern(aten.div.Tensor, (_X, _BY))),
        lambda m: (aten.gelu.default, (m["x"],)) if _close(m["by"], math.sqrt(2)) else None,
    ),
    (
        _erf(_mul(_X, _BY)),
        lambda m: (aten.gelu.default, (m["x"],)) if _close(m["by"], math.sqrt(0.5)) else None,
    ),
)


def _is_norm(m: dict[str, Any]) -> bool:
    last = len(m["x"].meta["val"].shape) - 1
    return isinstance(m["eps"], float) and list(m["over"]) in ([-1], [last])


def _turning(m: dict[str, Any]) -> tuple[Any, ...]:
    """What rotary takes."""
    return m["x"], m["cos"], m["sin"], "half" not in m, m.get("first", 0)


def _turns(m: dict[str, Any]) -> bool:
    """Whether the first columns of each head turn, or all of them."""
    shape = m["x"].meta["val"].shape
    if not isinstance(shape[-1], int):
        return False
    size = m.get("columns", shape[-1])
    along = {m[n] for n in ("last", "along") if n in m} <= {-1, len(shape) - 1}
    ends = all(m.get(n, size) >= size for n in ("end", "end of odd", "end of even"))
    whole = size == shape[-1] or m["end of rest"] >= shape[-1]
    pairs = m["half"] * 2 == size if "half" in m else size % 2 == 0
    apart = "shape" not in m or (m.get("rank", -1) in (-1, len(shape)) and m["shape"][-1] == size)
    return along and ends and whole and pairs and apart and ("rows" not in m or _behind_first_rows(m, shape))


def _behind_first_rows(m: dict[str, Any], shape: Any) -> bool:
    """Whether all rows of (…, S, D) but the first ones turn."""
    at = {m[n] % len(shape) for n in ("rows", "rows too")}
    return at == {len(shape) - 2} and m["end of rows"] >= shape[-2]


def _is_gelu(m: dict[str, Any]) -> bool:
    return _close(m["cubic"], 0.044715) and _close(m["root"], math.sqrt(2 / math.pi))


def _close(given: Any, known: float) -> bool:
    """Whether it is a constant, as models round it."""
    return isinstance(given, float) and math.isclose(given, known, rel_tol=1e-4)


def composed(graph: Graph) -> None:
    """Put the ops' names where models spell them out, and leave out calls that only check."""
    for node in reversed(list(graph.nodes)):
        if any(word in str(node.target) for word in CHECKS):
            graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if (found := _spelled(node)) is None:
            continue
        (function, arguments), _ = found
        with graph.inserting_before(node):
            call = graph.call_function(function, arguments)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
    graph.eliminate_dead_code()


def within(node: Node) -> set[Node]:
    """The nodes that a pattern's last one stands for, where nothing else reads those before it; else none."""
    if (found := _spelled(node)) is None:
        return set()
    (_, given), holes = found
    ends, inside, left = {n for n in (*given, *holes) if isinstance(n, Node)}, {node}, [node]
    while left:
        for n in left.pop().all_input_nodes:
            if n not in ends and n not in inside and n.op == "call_function":
                inside.add(n)
                left.append(n)
    return inside if all(inside.issuperset(n.users) for n in inside - {node}) else set()


def _spelled(node: Node) -> tuple[tuple[Any, tuple[Any, ...]], list[Any]] | None:
    """What a node spells out: the function that names it and its arguments; and what stands in all holes."""
    for pattern, made in PATTERNS:
        found: dict[str, Any] = {}
        if _matches(pattern, node, found) and (new := made(found)) is not None:
            return new, list(found.values())
    return None


def through(node: Any) -> Any:
    """What a cast or a copy is made of."""
    while isinstance(node, Node) and is_copy(node):
        node = node.args[0]
    return node


def is_copy(node: Node) -> bool:
    """Whether a node has its input's values, rounded or not."""
    return node.target in COPIES and not truncates(node)


def truncates(node: Node) -> bool:
    """Whether a node casts to whole numbers or to bool what has others."""
    before, after = _types(node)
    return bool(before and after and before.is_floating_point and not after.is_floating_point)


def _rounded(node: Any) -> Any:
    """What a cast or a copy is made of, down to what is rounded to fewer bytes."""
    while isinstance(node, Node) and is_copy(node) and not narrows(node):
        node = node.args[0]
    return node


def narrows(node: Node) -> bool:
    """Whether a cast or a copy is rounded to fewer bytes."""
    before, after = _types(node)
    return bool(before and after and after.itemsize < before.itemsize)


def _types(node: Node) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Of what a cast or a copy is given, and its own; None of what is no tensor, and of other nodes."""
    if node.target not in COPIES or not node.all_input_nodes:
        return None, None
    before, after = (n.meta.get("val") for n in (node.all_input_nodes[0], node))
    return getattr(before, "dtype", None), getattr(after, "dtype", None)


def _matches(pattern: Any, given: Any, found: dict[str, Any]) -> bool:
    if isinstance(pattern, Hole):
        given = _rounded(given)
        return bool(found.setdefault(pattern.name, given) is given or found[pattern.name] == given)
    given = through(given)
    match pattern:
        case Pattern(target, arguments):
            given = _as_slice(given) if target is aten.slice.Tensor else given
            if not isinstance(given, (Node, Pattern)) or len(given.args) < len(arguments):
                return False
            if ALIKE.get(given.target, given.target) != target or _says_more(given, len(arguments)):
                return False
            orders = [given.args[: len(arguments)]]
            if target in (aten.mul.Tensor, aten.add.Tensor):
                orders.append((given.args[1], given.args[0]))
            return any(_all(arguments, order, found) for order in orders)
        case list():
            return isinstance(given, (list, tuple)) and _all(pattern, given, found)
    return bool(pattern == given)


def _says_more(given: Node | Pattern, count: int) -> bool:
    """Whether it has arguments behind the first ones that change what it computes, such as a sum's alpha or a
    step of a slice. In which type it sums does not."""
    if isinstance(given, Pattern):
        return len(given.args) > count
    arguments = given.target._schema.arguments  # type: ignore[union-attr]
    usual = {a.name: a.default_value for a in arguments}
    more = {a.name: v for a, v in zip(arguments[count:], given.args[count:], strict=False)}
    return any(name != "dtype" and v != usual[name] for name, v in {**more, **given.kwargs}.items())


def _as_slice(given: Any) -> Any:
    """A piece of what is split, as the slice that it is."""
    if not isinstance(given, Node) or given.target is not operator.getitem:
        return given
    split: Any = given.args[0]
    if not isinstance(split, Node) or split.target not in SPLITS:
        return given
    args: Any = (*split.args, given.args[1])
    x, sizes, *at, n = args
    along = (at[0] if at else 0) % len(x.meta["val"].shape)
    size = x.meta["val"].shape[along]
    widths = [sizes] * -(-size // sizes) if isinstance(sizes, int) else sizes
    lo = sum(widths[:n])
    return Pattern(aten.slice.Tensor, (x, along, lo, min(lo + widths[n], size)))


def _all(patterns: Any, given: Any, found: dict[str, Any]) -> bool:
    """Whether each matches; what was bound on the way is forgotten where one does not."""
    before = dict(found)
    if len(patterns) == len(given) and all(
        _matches(p, g, found) for p, g in zip(patterns, given, strict=True)
    ):
        return True
    found.clear()
    found.update(before)
    return False
