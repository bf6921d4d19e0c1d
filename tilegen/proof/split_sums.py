"""Sums over K that several ops share: their ranges fill K once, and the last op adds what the others leave.

y[i, j] = f(Σ_{k in r_last} x[i, k] w[j, k] + Σ_s partial_s[i, j])
partial_s[i, j] = Σ_{k in r_s} x[i, k] w[j, k]
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilegen.proof.footprint.frame import Op, View


def problems(ops: Sequence[Op], roles: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the split sums of a plan. ops: those whose kinds are known; roles: of tensors."""
    linears = [op for op in ops if op.kind == "linear"]
    parts = {op.result.tensor: op for op in linears if roles[op.result.tensor] == "partial"}
    added = set[str]()
    for op in linears:
        mine = {view.tensor: parts[view.tensor] for view in op.views[2:] if view.tensor in parts}
        if mine or "k_range" in op.attributes:
            added |= mine.keys()
            if op.name not in {p.name for p in parts.values()}:
                yield from _of_last(op, list(mine.values()))
    for name in parts.keys() - added:
        yield f"{parts[name].name} leaves partial sums in {name}, and no linear adds them"


def _of_last(last: Op, parts: Sequence[Op]) -> Iterator[str]:
    depth = last.views[0].shape[1]
    ranges = sorted([(*_range(op, depth), op.name) for op in (*parts, last)])
    at = 0
    for first, end, name in ranges:
        if first != at:
            yield (
                f"the sum of {last.name} over k < {depth}: {name} adds k from {first} on, where k < {at}"
                " is added before it"
            )
        at = end
    if at != depth:
        yield f"the sum of {last.name} over k < {depth} ends at {at}"
    for op in parts:
        if op.views[:2] != last.views[:2]:
            yield f"{op.name} multiplies other operands than {last.name}, which adds its sums"
        if _expression(op) != "acc0":
            yield f"{op.name} leaves {_expression(op)!r}, expected its sums as they are"
    yield from _of_expression(last, {op.result.tensor for op in parts})


def _range(op: Op, depth: int) -> tuple[int, int]:
    return op.pair("k_range") if "k_range" in op.attributes else (0, depth)


def _epilogue(op: Op) -> Mapping[str, Any]:
    return op.attributes.get("epilogue") or {"expression": "acc0", "operands": []}


def _expression(op: Op) -> str:
    return str(_epilogue(op).get("expression", "acc0"))


def _of_expression(last: Op, partials: set[str]) -> Iterator[str]:
    """Wherever the sums of a group stand in the epilogue, all their partial sums are added to them."""
    epilogue, groups = _epilogue(last), last.integer("groups")
    views: list[View] = [last.views[entry["index"]] for entry in epilogue["operands"]]
    width = last.result.shape[1]
    try:
        sums = list(_sums(ast.parse(_expression(last), mode="eval").body))
    except SyntaxError:
        yield f"the epilogue of {last.name}, {_expression(last)!r}, is no expression"
        return
    for tensor in sorted(partials):
        places = {n: view.offset for n, view in enumerate(views) if view.tensor == tensor}
        if len(places) != groups or sorted(places.values()) != [g * width for g in range(groups)]:
            yield (
                f"the epilogue of {last.name} reads the partial sums in {tensor} at columns"
                f" {sorted(places.values())}, expected each of {groups} x {width} columns once"
            )
            continue
        for n, offset in places.items():
            g = offset // width
            here = [names for names in sums if f"acc{g}" in names]
            if not here or any(names.count(f"e{n}") != 1 or names.count(f"acc{g}") != 1 for names in here):
                yield (
                    f"the epilogue of {last.name}, {_expression(last)}, does not add e{n}, partial sums in"
                    f" {tensor}, to acc{g}"
                )


def _sums(node: ast.expr) -> Iterator[list[str]]:
    """The names that are added to each other, sum by sum; one that stands alone is a sum of itself."""
    terms = _terms(node)
    yield [term.id for term in terms if isinstance(term, ast.Name)]
    for term in terms:
        for child in ast.iter_child_nodes(term):
            if isinstance(child, ast.expr) and not (isinstance(term, ast.Call) and child is term.func):
                yield from _sums(child)


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]
