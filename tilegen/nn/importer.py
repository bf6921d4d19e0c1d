"""From a module of PyTorch to a program: torch.export traces it, a table (tilegen.nn.aten) writes the spec.

    nn.Module, example ─ torch.export ─▶ graph of aten operators ─ patterns, table ─▶ Program, its weights

What depends on weights alone is computed here, once. Linears of the same rows become one, whose columns are
theirs: query, key and value, or gate and up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import sympy as sp
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from tilegen.errors import SpecError
from tilegen.frontend.dims import Dim, dims_of
from tilegen.frontend.inputs import input, weight
from tilegen.frontend.names import RESERVED
from tilegen.frontend.program import Program, Size
from tilegen.frontend.spec import finish
from tilegen.frontend.value import Value, builder, building, caller
from tilegen.nn import patterns
from tilegen.nn.adapter import Adapter, Layout, Returned, Taken
from tilegen.nn.aten import TABLE, VIEWS
from tilegen.nn.aten_choices import COMPARISONS, chooses
from tilegen.nn.aten_images import factors
from tilegen.nn.example import PREFIX, Example
from tilegen.nn.packed import Cut, as_packed, cut_of, side_by_side
from tilegen.nn.strided import Strided
from tilegen.nn.table import is_image
from tilegen.nn.views import View
from tilegen.ops.gemm import linear
from tilegen.ops.pointwise import pointwise

aten = torch.ops.aten
DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
OF_WEIGHTS = {**DTYPES, torch.int8: "int8"}
CONVERSIONS = (aten.to.dtype, aten._to_copy.default)
IDS = (torch.int32, torch.int64)  # of rows of tables: as int32 to a kernel
CONVOLUTIONS = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv_transpose2d.input,
    aten.convolution.default,
)  # which take over a norm that follows
SCALED = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
FUNCTIONS = (
    *(aten.gelu.default, aten.relu.default, aten.silu.default, aten.sigmoid.default, aten.tanh.default),
    *(aten.hardswish.default, aten.softplus.default, aten.mul.Tensor, patterns.gelu_tanh),
)  # that an epilogue of a linear computes
IMAGES = (
    *CONVOLUTIONS,
    aten.max_pool2d.default,
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
    aten.upsample_nearest2d.vec,
    aten.group_norm.default,
    aten.native_group_norm.default,
    aten._adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool2d.default,
    aten._native_batch_norm_legit_no_training.default,
)


@dataclass(frozen=True)
class Imported:
    """A module as a program: its weights by their names in it, and how it is called."""

    program: Program
    weights: dict[str, torch.Tensor]
    adapter: Adapter


def imported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any] | None,
) -> Imported:
    """The program of a module, from an example of a call.

    Raises:
        SpecError: something that the module computes has no word in a spec; it names the call, and where in
            the module it stands.
    """
    where, example = caller(), Example.of(module, args, kwargs, dynamic_shapes or {})
    with torch.no_grad():
        exported = example.exported()
    graph = exported.graph_module.graph
    patterns.composed(graph)
    inputs = [s.arg.name for s in exported.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    named = {name: leaf.name for name, leaf in zip(inputs, example.tensors, strict=True)}
    _refuse_writes(exported)
    title = re.sub(r"\W", "_", type(module).__name__)
    names = {id(p): name for name, p in module.named_parameters()}
    spec = written(title, graph, _known(module, exported), named, names, example.dim, where)
    leaves = dict(zip(inputs, example.tensors, strict=True))
    taken = {how.name: Taken(leaves[of], how) for of, how in spec.taken.items()}
    returned = spec.returned
    alone = len(returned) == 1 and returned[0].number is not None and exported.call_spec.out_spec.is_leaf()
    adapter = Adapter(
        title,
        example.positional,
        tuple(taken[t.name] for t in spec.program.arguments if t.role == "input"),
        example.fixed,
        example.names,
        returned,
        None if alone else exported.call_spec.out_spec,
    )
    return Imported(spec.program, spec.weights, adapter)


class NodeError(SpecError):
    """A node of a graph is what no spec can say."""

    def __init__(self, message: str, node: Node):
        super().__init__(message)
        self.node = node


@dataclass(frozen=True)
class Written:
    """A graph as a program. weights: by their names in it. taken: how it takes the graph's inputs. returned:
    how the graph's results are made of the program's. written_for: op -> the node that asked for it."""

    program: Program
    weights: dict[str, torch.Tensor]
    taken: dict[str, Layout]
    returned: tuple[Returned, ...]
    written_for: dict[str, Node]


def written(
    title: str,
    graph: Graph,
    known: Mapping[str, Any],
    inputs: Mapping[str, str] | None = None,
    parameters: Mapping[int, str] | None = None,
    dim: Dim | None = None,
    where: str = "",
) -> Written:
    """The program of a graph of aten operators, whose nodes have values (meta["val"]).

    known: what placeholders of these names are, where that is no input: weights, or what was a constant.
    inputs: names of the others in the program. parameters: names of weights by the id of their tensors.

    Raises:
        NodeError: a call has no word in a spec.
    """
    images = any(n.target in IMAGES and n.args[0].meta["val"].dim() == 4 for n in graph.nodes)
    spec = _Spec(title, known, dim, images, inputs or {}, parameters or {})
    with building(title) as b, torch.enable_grad():
        returned = spec.run(graph)
        sizes = () if dim is None else ((dim.name, dim),)
        program = finish(b, tuple(spec.returned.values()), sizes, "", where)
    return Written(program, spec.weights, spec.taken, returned, spec.written_for)


def _known(module: torch.nn.Module, exported: torch.export.ExportedProgram) -> dict[str, Any]:
    """What placeholders of an exported module are that are no inputs of it."""
    found: dict[str, Any] = {}
    for spec in exported.graph_signature.input_specs:
        target = str(spec.target)
        match spec.kind:
            case InputKind.USER_INPUT:
                continue
            case InputKind.PARAMETER:
                found[spec.arg.name] = module.get_parameter(target.removeprefix(PREFIX))
            case InputKind.BUFFER if target not in exported.constants:
                found[spec.arg.name] = module.get_buffer(target.removeprefix(PREFIX))
            case _:
                found[spec.arg.name] = exported.constants[target]
    return found


def _refuse_writes(exported: torch.export.ExportedProgram) -> None:
    specs = exported.graph_signature.output_specs
    names = [str(s.target).removeprefix(PREFIX) for s in specs if s.kind != OutputKind.USER_OUTPUT]
    if names:
        raise SpecError(f"from_torch: the module writes {', '.join(names)}; call .eval()")


@dataclass
class _Spec:
    """A spec that is being written, node after node of a graph."""

    title: str
    known: Mapping[str, Any]  # placeholders that are no inputs
    dim: Dim | None
    images: bool
    inputs: Mapping[str, str]  # of the graph: their names in the program
    parameters: Mapping[int, str]  # ids of weights: their names
    values: dict[Node, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    taken: dict[str, Layout] = field(default_factory=dict)
    returned: dict[str, Value] = field(default_factory=dict)
    written_for: dict[str, Node] = field(default_factory=dict)
    _copies: dict[Any, View] = field(default_factory=dict)
    _known: dict[int, tuple[torch.Tensor, Value]] = field(default_factory=dict)
    _merged: dict[Node, View] = field(default_factory=dict)
    _folded: set[Node] = field(default_factory=set)  # batch norms that are done
    _node: Node | None = None

    # --- what entries of the table ask (tilegen.nn.table.Trace) --------------------------------------------

    def weight(self, data: torch.Tensor, stem: str = "weight") -> Value:
        if not isinstance(data, torch.Tensor):
            raise SpecError(f"a {stem} that the model computes; expected one that it has")
        return self._weight(data, self.parameters.get(id(data)) or "_".join((*self._where[-2:], stem)))

    def _weight(self, data: torch.Tensor, name: str) -> Value:
        known = self._known.get(id(data))
        if known is not None:
            return known[1]
        value = weight(self._free(name), tuple(data.shape), self._dtype(data.dtype, OF_WEIGHTS))
        kept = data if isinstance(data, torch.nn.Parameter) and data.is_contiguous() else None
        if kept is None:
            kept = torch.nn.Parameter(data.detach().contiguous(), requires_grad=data.requires_grad)
        self.weights[value.tensor] = kept
        self._known[id(data)] = data, value
        return value

    def copied(self, x: View | Strided, order: Sequence[int] | None = None) -> View:
        x = Strided.of(x) if isinstance(x, View) else x
        order = tuple(range(len(x.dims)) if order is None else order)
        key = (x.value.tensor, x.dims, x.offset, order)
        if key not in self._copies:
            made = x.permuted(order).copied(self.name("copy"))
            self._copies[key] = made.permuted([order.index(d) for d in range(len(order))])
        return self._copies[key]

    def name(self, *what: str) -> str | None:
        parts = [*self._where[-2:], *what]
        return self._free("_".join(parts)) if parts else None

    @property
    def _where(self) -> list[str]:
        """Where in the module the node stands."""
        stack = (self._node.meta.get("nn_module_stack") or {}) if self._node else {}
        path = next((str(p) for p, _ in reversed(list(stack.values()))), "")
        return [p for p in path.removeprefix(PREFIX.rstrip(".")).split(".") if p]

    def _free(self, path: str) -> str:
        name = re.sub(r"_+", "_", re.sub(r"\W", "_", path)).strip("_")
        if not name[:1].isalpha() or name in RESERVED or name.startswith("tg_"):
            name = f"m_{name}".rstrip("_")
        return builder("from_torch").fresh(name)

    def _dtype(self, dtype: torch.dtype, known: Mapping[torch.dtype, str] = DTYPES) -> str:
        if dtype not in known:
            raise SpecError(f"a tensor of {dtype}; expected one of {', '.join(known.values())}")
        return known[dtype]

    # --- the graph ----------------------------------------------------------------------------------------

    def run(self, graph: Graph) -> tuple[Returned, ...]:
        """All nodes; how the results are those of the spec."""
        calls = builder("from_torch").calls
        for node in graph.nodes:
            self._node, done = node, len(calls)
            if node.op == "placeholder":
                self.values[node] = self._given(node)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            self.written_for |= {call.name: node for call in calls[done:]}
        results: Any = next(n for n in graph.nodes if n.op == "output").args[0]
        return tuple(map(self._result, results))

    def _given(self, node: Node) -> Any:
        if node.name in self.known:
            return self.known[node.name]
        return self._input(node) if node.users else None

    def _input(self, node: Node) -> Any:
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            return val
        shape = tuple(self._size(n) for n in val.shape)
        order = (0, 2, 3, 1) if self.images and len(shape) == 4 else None
        if order:
            shape = tuple(shape[d] for d in order)
        dropped = () if order or len(shape) != 4 or shape[1] != 1 else (0, 1) if shape[0] == 1 else (1,)
        shape = tuple(n for d, n in enumerate(shape) if d not in dropped)  # (B, 1, S, D): of all heads
        try:
            dtype = "int32" if val.dtype in IDS else self._dtype(val.dtype)
            if order and dims_of(shape[1:]):
                raise SpecError(f"images {shape}: their batch alone may move")
            value = input(self._free(self.inputs.get(node.name, node.name)), shape, dtype)
        except SpecError as error:  # what reads it has no word then; the rest of a region has
            raise NodeError(f"from_torch: {error}", next(iter(node.users))) from None
        self.taken[node.name] = Layout(value.tensor, order, dropped)
        view = View.of(value, (0, 3, 1, 2) if order else None)
        for d in dropped:
            view = view.unsqueezed(d)
        return view

    def _size(self, n: Any) -> Size:
        if isinstance(n, int):
            return n
        found = sp.sympify(n.node.expr)
        at = found.xreplace(dict.fromkeys(found.free_symbols, self.dim)) if self.dim else found
        return int(at) if at.is_Integer else at

    def _call(self, node: Node) -> Any:
        if node.target not in VIEWS and node.target is not aten.sym_size.int:
            for n in node.all_input_nodes:
                self._settle(n)
            self._node = node
        args, kwargs = (
            pytree.tree_map_only(Node, self.values.__getitem__, a) for a in (node.args, node.kwargs)
        )
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(a, (View, Strided)) for a in leaves):
            if isinstance(node.meta.get("val"), torch.Tensor) and any(isinstance(a, sp.Expr) for a in leaves):
                raise NodeError(f"from_torch: {name_of(node)} of no input, but of a size that moves", node)
            compute: Any = node.target  # of weights or sizes alone
            return args[0] if self._stays_int8(node) else compute(*args, **kwargs)
        if node.target is aten.sym_size.int:
            return args[0].shape[args[1]]
        try:
            if node.target is aten.linear.default:
                return self._linear(node, args, kwargs)
            if node.target in CONVOLUTIONS:
                return TABLE[node.target](self, *args, norm=self._norm_after(node), **kwargs)
            if node in self._folded:
                return [args[0]]
            if node.target not in TABLE:
                raise SpecError("no word for it in a spec")
            if patterns.truncates(node):
                raise SpecError("a cast that cuts off what is behind the point")
            if node.target in COMPARISONS and not chooses(node):
                raise SpecError("a comparison that not torch.where alone reads")
            return TABLE[node.target](self, *args, **kwargs)
        except SpecError as error:
            stands = ".".join(self._where) or self.title
            raise NodeError(f"from_torch: {name_of(node)} in {stands}: {error}", node) from None

    def _stays_int8(self, node: Node) -> bool:
        """Whether it converts int8 to what linears alone read, as their weights: these take it as it is."""
        if node.target not in CONVERSIONS or self.values[node.all_input_nodes[0]].dtype is not torch.int8:
            return False
        return all(u.target is aten.linear.default and u.args.index(node) == 1 for u in node.users)

    def _settle(self, node: Node) -> None:
        """Elements that no map says are copied for what reads them: four dimensions of a model of images as
        one."""
        if isinstance(x := self.values[node], Strided):
            order = (0, 2, 3, 1) if self.images and len(x.dims) == 4 else None
            self.values[node] = self._copied_for(node, name_of(node), x, order)

    def _copied_for(
        self, node: Node, what: str, x: View | Strided, order: Sequence[int] | None = None
    ) -> View:
        """As copied, in a node's name. NodeError where no copy says it."""
        self._node = node
        try:
            return self.copied(x, order)
        except SpecError as error:
            raise NodeError(f"from_torch: {what}: {error}", node) from None

    # --- linears of the same rows ---------------------------------------------------------------------------

    def _linear(self, node: Any, args: Any, kwargs: Any) -> View:
        if node in self._merged:
            return self._merged.pop(node)
        alike = [n for n in node.args[0].users if self._joins(n, node)]
        if len(alike) < 2 or node not in alike:
            if (cut := cut_of(node)) and self._joins(node, node):
                return self._packed(node, args[0], cut)
            made: View = TABLE[node.target](self, *args, **kwargs)
            return made
        x: View = args[0]
        value = x.rows()
        assert value is not None
        stem = self._common(alike)
        weights = [self.values[n.args[1]] for n in alike]
        w = self._weight(torch.cat(weights), f"{stem}_weight")
        given = None
        if len(node.args) > 2:
            given = self._weight(torch.cat([self.values[n.args[2]] for n in alike]), f"{stem}_bias")
        y = linear(value, w, given, name=self._free(stem))
        for n, part in zip(alike, y.split([len(w) for w in weights]), strict=True):
            self._merged[n] = x.of_rows(part)
        return self._merged.pop(node)

    def _packed(self, node: Any, x: View, cut: Cut) -> View:
        """A linear whose columns are taken apart within heads, by rows of its weight in another order."""
        w, *bias = (side_by_side(self.values[n], cut) for n in node.args[1:])
        stem = "_".join(self._where[-2:])
        given = self._weight(bias[0], f"{stem}_bias") if bias else None
        rows = x.rows()
        assert rows is not None
        made = linear(rows, self._weight(w, f"{stem}_weight"), given, name=self._free(stem or "linear"))
        return as_packed(x, made, cut)

    def _joins(self, other: Any, node: Any) -> bool:
        """Whether a linear can be one with another of the same rows: none is a result by itself."""
        if other.target is not aten.linear.default or other.args[0] is not node.args[0]:
            return False
        if _into_functions(other) != _into_functions(node):  # which an epilogue computes of all columns
            return False
        weights = [self.values.get(n.args[1]) for n in (other, node)]
        # scales, which int8 has, are of each linear by itself
        known = all(isinstance(w, torch.Tensor) and w.dtype in DTYPES for w in weights)
        plain = known and len(other.args) == len(node.args)
        rows = self.values[node.args[0]].rows()
        return plain and rows is not None and not is_image(rows) and not _leaves_as_it_is(other)

    def _common(self, nodes: list[Any]) -> str:
        """self_attn.q_proj, self_attn.k_proj → self_attn_q_proj_k_proj"""
        paths = []
        for n in nodes:
            self._node = n
            paths.append(self._where)
        parents = paths[0][:-1]
        together = all(p[:-1] == parents for p in paths)
        last = [p[-1] for p in paths if p] if together else ["linears"]
        return "_".join([*parents[-1:], *last])

    # --- batch norms after convolutions ---------------------------------------------------------------------

    def _norm_after(self, node: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Factor and shift of a batch norm that alone reads a convolution."""
        (norm,) = node.users if len(node.users) == 1 else (None,)
        if norm is None or norm.target is not aten._native_batch_norm_legit_no_training.default:
            return None
        given: list[Any] = [self.values.get(a, a) if isinstance(a, Node) else a for a in norm.args[1:]]
        if any(isinstance(a, (Node, View)) for a in given):
            return None
        w, bias, mean, var, _, eps = given
        self._folded.add(norm)
        return factors(w, bias, mean, var, eps)

    # --- results --------------------------------------------------------------------------------------------

    def _result(self, given: Any) -> Returned:
        if isinstance(given, Node):
            self._settle(given)
        if not isinstance(given, Node) or not isinstance(self.values[given], View):
            if isinstance(given, Node) and isinstance(self.values[given], torch.Tensor):
                raise NodeError(f"from_torch: the result {given} depends on weights alone", given)
            return Returned(None, constant=given)
        view: View = self.values[given]
        dtype, whole = given.meta["val"].dtype, view.value.dtype == "int32"
        if dtype not in (IDS if whole else (getattr(torch, view.value.dtype),)):
            told = f"from_torch: the result {given} is {dtype}, its spec's {view.value.dtype}"
            raise NodeError(told, given)
        if any(not a.place for a in view.atoms):  # the same again and again
            view = self._copied_for(given, f"the result {given}", view)
        tensor = view.value.builder.tensors[view.value.tensor]
        if view.value.columns is not None or view.value.flattened or tensor.role != "intermediate":
            if whole:
                told = f"from_torch: the result {given} is given, or some columns of whole numbers"
                raise NodeError(told, given)
            view = View(pointwise("e0", view.value), view.dims)
        name = view.value.tensor
        self.returned.setdefault(name, view.value)
        number = list(self.returned).index(name)
        return Returned(number, *view.layout(), dtype=dtype if whole else None)


def name_of(node: Node) -> str:
    """Of what a node calls: of a Python function no address."""
    return node.target.__name__ if isinstance(node.target, FunctionType) else str(node.target)


def _into_functions(node: Node) -> bool:
    """Whether all that reads a node, or a view of it, computes element by element of tensors."""
    for user in node.users:
        of_number = user.target in SCALED and len(user.all_input_nodes) == 1
        if user.target in VIEWS or of_number:
            if not _into_functions(user):
                return False
        elif user.target not in FUNCTIONS:
            return False
    return True


def _leaves_as_it_is(node: Node) -> bool:
    """Whether a node is a result of the graph, or one that is a view of it."""
    return any(u.op == "output" or (u.target in VIEWS and _leaves_as_it_is(u)) for u in node.users)
