"""A part of a graph as a text, and the text as a graph again, in any process.

    {"device": "cuda:0", "given": [{"name", "dtype", "shape", "stride"}],
     "nodes": [{"name", "target", "args", "kwargs", "value": ["bfloat16", 4, 32]}], "results": [name]}

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

from tilegen.nn.aten import VIEWS

aten = torch.ops.aten
TYPES = (torch.dtype, torch.memory_format, torch.layout)  # of arguments that are words of torch


@dataclass(frozen=True)
class Given:
    """A tensor that a part takes. static: the same at each call, such as a parameter. stride: of such, which
    views of weights depend on; others come contiguous."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None

    @property
    def static(self) -> bool:
        return self.stride is not None

    def empty(self, device: torch.device) -> torch.Tensor:
        """A tensor like it."""
        if self.stride is None:
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Subgraph:
    """graph: its placeholders are those given; its nodes have values (meta["val"]), and names in the text
    (meta["at"])."""

    graph: Graph
    device: torch.device
    given: tuple[Given, ...]


def text_of(nodes: Sequence[Node], given: Mapping[Node, bool], results: Sequence[Node]) -> str:
    """That of nodes of a graph, in their order. given: what they take, and whether it is static."""
    names = {node: f"v{n}" for n, node in enumerate((*given, *nodes))}
    tensors = {n: n.meta["val"] for n in given}
    text = json.dumps(
        {
            "device": str(results[0].meta["val"].device),
            "given": [
                {
                    "name": names[n],
                    "dtype": _word(tensors[n].dtype),
                    "shape": list(tensors[n].shape),
                    "stride": list(tensors[n].stride()) if static else None,
                }
                for n, static in given.items()
            ],
            "nodes": [
                {
                    "name": names[n],
                    "target": "getitem" if n.target is operator.getitem else str(n.target),
                    "args": _encoded(n.args, names),
                    "kwargs": {k: _encoded(v, names) for k, v in n.kwargs.items()},
                    "value": _value(n.meta.get("val")),
                }
                for n in nodes
            ],
            "results": [names[n] for n in results],
        },
        separators=(",", ":"),
    )
    return b64encode(zlib.compress(text.encode())).decode()


def unpacked(text: str) -> Any:
    """What it says."""
    return json.loads(zlib.decompress(b64decode(text)))


def read(text: str, mode: FakeTensorMode) -> Subgraph:
    """The part that a text says, in the form that torch.export gives a model; its values are of a
    mode."""
    said, graph, nodes = unpacked(text), Graph(), {}
    given = tuple(
        Given(g["name"], getattr(torch, g["dtype"]), tuple(g["shape"]), _strides(g["stride"]))
        for g in said["given"]
    )
    device = torch.device(said["device"])
    with mode:
        for g in given:
            nodes[g.name] = graph.placeholder(g.name)
            nodes[g.name].meta["val"] = g.empty(device)
        for n in said["nodes"]:
            args, kwargs = (_decoded(n[of], nodes) for of in ("args", "kwargs"))
            nodes[n["name"]] = graph.call_function(_operator(n["target"]), tuple(args), kwargs)
            nodes[n["name"]].meta = {"at": n["name"], "val": _of_value(n["value"], device)}
    graph.output(tuple(nodes[name] for name in said["results"]))
    exported_form(graph, {nodes[g.name] for g in given if g.static})
    return Subgraph(graph, device, given)


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


def _value(value: Any) -> Any:
    """A tensor's type and sizes, or a list of such; what is no tensor has none."""
    if isinstance(value, (list, tuple)):
        return {"of": [_value(v) for v in value]}
    return [_word(value.dtype), *value.shape] if isinstance(value, torch.Tensor) else None


def _of_value(said: Any, device: torch.device) -> Any:
    match said:
        case {"of": values}:
            return [_of_value(v, device) for v in values]
        case [dtype, *shape]:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    return None


def _encoded(a: Any, names: Mapping[Node, str]) -> Any:
    match a:
        case Node():
            return {"$node": names[a]}
        case list() | tuple():
            return [_encoded(v, names) for v in a]
        case None | bool() | int() | str():
            return a
        case float():
            return {"$float": repr(a)}
        case torch.device():
            return {"$device": str(a)}
    if isinstance(a, TYPES):
        return {"$torch": _word(a)}
    raise TypeError(f"an argument {a!r} of {type(a).__name__} has no text")


def _decoded(a: Any, nodes: Mapping[str, Node]) -> Any:
    match a:
        case list():
            return [_decoded(v, nodes) for v in a]
        case {"$node": name}:
            return nodes[name]
        case {"$float": number}:
            return float(number)
        case {"$device": name}:
            return torch.device(name)
        case {"$torch": word}:
            return getattr(torch, word)
        case dict():
            return {k: _decoded(v, nodes) for k, v in a.items()}
    return a


def _word(a: Any) -> str:
    return str(a).removeprefix("torch.")


def _operator(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found
