"""The ops of a parsed plan: what their footprints are derived from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilegen.proof.footprint.derive import KINDS
from tilegen.proof.footprint.frame import DIMENSIONS, Malformed, Op, View, expect, is_int
from tilegen.proof.tensor_input import Tensors

ROWS = ("linear", "matmul")  # kinds whose rows a cluster may share out
SHARED_ROWS = {"m": 0, "km": 0, "2x2": 4, "2x4": 8, "4x2": 8}  # how, and of how many CTAs; 0: any number


def declared(op: Any) -> bool:
    """An op of a kind of somebody's own, whose footprint the plan declares: there is nothing here to derive
    it from."""
    return isinstance(op, dict) and op.get("footprint") == "declared" and op.get("kind") not in KINDS


def read_op(name: str, op: Any, tensors: Tensors, coords: list[list[int]]) -> Op:
    """coords: of its tiles, in rank order. Malformed, or an error of a value's type, where it is no op."""
    kind, tile, cluster, result = op["kind"], op["tile"], op["cluster"], op["result"]
    if kind not in KINDS:
        raise Malformed(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
    if not (isinstance(tile, list) and all(is_int(t, 1) for t in tile) and is_int(cluster, 1)):
        raise Malformed(f"tile is {tile!r} and cluster {cluster!r}, expected ints >= 1")
    if not _finite(op["attributes"]):
        raise Malformed("an attribute is not finite")
    role = tensors.roles[tensors.number(result)]
    if role in ("input", "weight"):
        raise Malformed(f"result {result} has role {role}, expected one that is written")
    views = tuple(map(tensors.view, expect(op["operands"], list, "operands")))
    written = tensors.view(result)
    if op.get("pixels"):
        views, written = tuple(map(_rows, views)), _rows(written)
    return Op(
        name,
        kind,
        expect(op["attributes"], dict, "attributes"),
        views,
        written,
        tuple(tile),
        cluster,
        _cluster_split(op),
        coords,
        _images(views, tensors) if op.get("pixels") else None,
        expect(op.get("pingpong", False), bool, "pingpong"),
    )


def _cluster_split(op: dict[str, Any]) -> str:
    kind, cluster, found = op["kind"], op["cluster"], op.get("cluster_split", "k")
    splits = ("k", "n", *(SHARED_ROWS if kind in ROWS else ()))
    if found not in splits:
        raise Malformed(f"cluster_split is {found!r} of a {kind}, expected one of {', '.join(splits)}")
    if SHARED_ROWS.get(found, 0) not in (0, cluster):
        raise Malformed(f"cluster_split is {found!r} of a cluster of {cluster}")
    return str(found)


def _images(views: Sequence[View], tensors: Tensors) -> tuple[Sequence[int], Sequence[int]]:
    """Of a linear of pixels, x and w as they were declared."""
    x, w = (expect(tensors.given[v.tensor]["declared"], list, "declared") for v in views[:2])
    if not all(len(sizes) == DIMENSIONS and all(is_int(n, 1) for n in sizes) for sizes in (x, w)):
        raise Malformed(f"images {x} and filters {w} of pixels, expected four sizes each")
    return x, w


def _rows(view: View) -> View:
    """An image as the rows of its pixels, a filter as one row for each that it gives."""
    if len(view.shape) != DIMENSIONS:
        return view
    return replace(view, shape=(math.prod(view.shape[:-1]), view.shape[-1]))


def _finite(value: Any) -> bool:
    """No NaN or infinity anywhere inside."""
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
