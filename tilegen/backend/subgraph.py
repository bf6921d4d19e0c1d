"""A part of a graph as a text, and the text as a graph again, in any process.

    {"device": "cuda:0", "most": 64, "given": [{"name", "dtype", "shape", "stride"}],
     "nodes": [{"name", "target", "args", "kwargs", "value": ["bfloat16", [16, 0], 32]}], "results": [name]}

A size that moves is a factor and a rest (tilegen.backend.sizes), "most" the largest of what moves.

An operator whose argument is the text needs no table of what was compiled before: Inductor's cache holds all.
The text is packed, since it goes through torch's dispatcher at each call: of a large region it has 100 kB.
"""

from __future__ import annotations

import json
import operator
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node

from tilegen.backend.sizes import NAME, Linear, Moving, is_size, read_anew
from tilegen.frontend.dims import Dim
from tilegen.nn.aten import VIEWS

aten = torch.ops.aten
TYPES = (torch.dtype, torch.memory_format, torch.layout)  # of arguments that are words of torch


@dataclass(frozen=True)
class Given:
    """A tensor that a part takes. static: the same at each call, such as a parameter. stride: of such, which
    views of weights depend on; others come contiguous."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | Linear, ...]
    stride: tuple[int, ...] | None

    @property
    def static(self) -> bool:
        return self.stride is not None

    def empty(self, device: torch.device, size: int | torch.SymInt | None = None) -> torch.Tensor:
        """A tensor like it. size: of what moves."""
        shape = [n if isinstance(n, int) else n.at(size) for n in self.shape]
        if self.stride is None:
            return torch.empty(shape, dtype=self.dtype, device=device)
        return torch.empty_strided(shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Subgraph:
    """graph: its placeholders are those given; its nodes have values (meta["val"]) of a mode, and names in
    the text (meta["at"]). dim: what moves."""

    graph: Graph
    mode: FakeTensorMode
    device: torch.device
    given: tuple[Given, ...]
    dim: Dim | None


def text_of(
    nodes: Sequence[Node],
    given: Mapping[Node, bool],
    results: Sequence[Node],
    moves: Moving | None = None,
) -> str:
    """That of nodes of a graph, in their order. given: what they take, and whether it is static. moves: what
    does in the graph, if anything."""
    said = _Said({node: f"v{n}" for n, node in enumerate((*given, *nodes))}, moves)
    tensors = {n: n.meta["val"] for n in given}
    written = {
        "given": [
            {
                "name": said.names[n],
                "dtype": _word(tensors[n].dtype),
                "shape": said.sizes(tensors[n].shape),
                "stride": list(tensors[n].stride()) if static else None,
            }
            for n, static in given.items()
        ],
        "nodes": [
            {
                "name": said.names[n],
                "target": "getitem" if n.target is operator.getitem else str(n.target),
                "args": said.argument(n.args),
                "kwargs": {k: said.argument(v) for k, v in n.kwargs.items()},
                "value": said.value(n.meta.get("val")),
            }
            for n in nodes
        ],
        "results": [said.names[n] for n in results],
    }
    device, most = str(results[0].meta["val"].device), moves.most if moves and said.moved else None
    text = json.dumps({"device": device, "most": most, **written}, separators=(",", ":"))
    return b64encode(zlib.compress(text.encode())).decode()


@dataclass
class _Said:
    """What a text says of a graph. names: of its nodes. moved: whether a size of it moves."""

    names: Mapping[Node, str]
    moves: Moving | None
    moved: bool = False

    def size(self, n: Any) -> int | list[int]:
        if isinstance(n, int):
            return n
        assert self.moves is not None
        found = self.moves.linear(n)
        if isinstance(found, int):
            return found
        self.moved = True
        return [found.factor, found.rest]

    def sizes(self, given: Sequence[Any]) -> list[int | list[int]]:
        return list(map(self.size, given))

    def value(self, value: Any) -> Any:
        """A tensor's type and sizes, or a list of such; what is no tensor has none."""
        if isinstance(value, (list, tuple)):
            return {"of": [self.value(v) for v in value]}
        return [_word(value.dtype), *self.sizes(value.shape)] if isinstance(value, torch.Tensor) else None

    def argument(self, a: Any) -> Any:
        if isinstance(a, torch.SymInt) or is_size(a):
            return {"$size": self.size(a if isinstance(a, torch.SymInt) else a.meta["val"])}
        match a:
            case Node():
                return {"$node": self.names[a]}
            case list() | tuple():
                return [self.argument(v) for v in a]
            case None | bool() | int() | str():
                return a
            case float():
                return {"$float": repr(a)}
            case torch.device():
                return {"$device": str(a)}
        if isinstance(a, TYPES):
            return {"$torch": _word(a)}
        raise TypeError(f"an argument {a!r} of {type(a).__name__} has no text")


def unpacked(text: str) -> Any:
    """What it says."""
    return json.loads(zlib.decompress(b64decode(text)))


def read(text: str) -> Subgraph:
    """The part that a text says, in the form that torch.export gives a model."""
    said = unpacked(text)
    most, nodes, graph = said["most"], dict[str, Node](), Graph()
    mode, size = (FakeTensorMode(), None) if most is None else read_anew(most)
    known = _Known(torch.device(said["device"]), size, None if most is None else Dim(NAME, most))
    given = tuple(
        Given(g["name"], getattr(torch, g["dtype"]), tuple(map(_size, g["shape"])), _strides(g["stride"]))
        for g in said["given"]
    )
    with mode:
        for g in given:
            nodes[g.name] = graph.placeholder(g.name)
            nodes[g.name].meta["val"] = g.empty(known.device, size)
        for n in said["nodes"]:
            args, kwargs = (known.argument(n[of], nodes) for of in ("args", "kwargs"))
            nodes[n["name"]] = graph.call_function(_operator(n["target"]), tuple(args), kwargs)
            nodes[n["name"]].meta = {"at": n["name"], "val": known.value(n["value"])}
    graph.output(tuple(nodes[name] for name in said["results"]))
    exported_form(graph, {nodes[g.name] for g in given if g.static})
    return Subgraph(graph, mode, known.device, given, known.dim)


@dataclass(frozen=True)
class _Known:
    """What the text of a graph is read with. size, dim: what moves, as shapes have it, and as arguments."""

    device: torch.device
    size: torch.SymInt | None
    dim: Dim | None

    def value(self, said: Any) -> Any:
        match said:
            case {"of": values}:
                return [self.value(v) for v in values]
            case [dtype, *shape]:
                sizes = [_at(n, self.size) for n in shape]
                return torch.empty(sizes, dtype=getattr(torch, dtype), device=self.device)
        return None

    def argument(self, a: Any, nodes: Mapping[str, Node]) -> Any:
        match a:
            case list():
                return [self.argument(v, nodes) for v in a]
            case {"$node": name}:
                return nodes[name]
            case {"$size": size}:
                return _at(size, self.dim)
            case {"$float": number}:
                return float(number)
            case {"$device": name}:
                return torch.device(name)
            case {"$torch": word}:
                return getattr(torch, word)
            case dict():
                return {k: self.argument(v, nodes) for k, v in a.items()}
        return a


def exported_form(graph: Graph, static: set[Node]) -> None:
    """What Inductor writes, as torch.export would:

    two views of one tensor alike          → one of them
    addmm(b, x, permute(w)), mm(x, …)      → linear(x, w, b)
    """
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if static.issuperset(node.all_input_nodes):
            static.add(node)
        if node.target in VIEWS:
            first = known.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)
        elif node.target in (aten.addmm.default, aten.mm.default):
            *bias, x, w = node.args
            if w in static and x not in static and not node.kwargs:
                _as_linear(graph, node, x, w, bias)


def _as_linear(graph: Graph, node: Node, x: Any, w: Any, bias: list[Any]) -> None:
    turned = w.target in (aten.permute.default, aten.t.default, aten.transpose.int)
    with graph.inserting_before(node):
        own = w.args[0] if turned else graph.call_function(aten.permute.default, (w, [1, 0]))
        own.meta.setdefault("val", w.meta["val"].T)
        made = graph.call_function(aten.linear.default, (x, own, *bias))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
    graph.erase_node(node)


def _strides(said: list[int] | None) -> tuple[int, ...] | None:
    return None if said is None else tuple(said)


def _at(said: Any, moves: Any) -> Any:
    found = _size(said)
    return found if isinstance(found, int) else found.at(moves)


def _size(said: Any) -> int | Linear:
    return said if isinstance(said, int) else Linear(*said)


def _word(a: Any) -> str:
    return str(a).removeprefix("torch.")


def _operator(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found
