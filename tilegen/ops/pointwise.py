"""Pointwise maths: y = f(a, b, …) element by element. The planner folds it into the epilogue of the op before
wherever it can.

An expression is text that Python, C++ and CUDA read alike: calls of FUNCTIONS, +, -, *, / and parentheses
over acc0, acc1 (accumulators) and e0, e1, … (operands), all float32. What has other names in C++ is told in
tilegen.codegen.expression.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.errors import PlanError, SpecError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.value import Value, builder, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register
from tilegen.ops.softmax import row_tiles
from tilegen.ops.spatial import spatial_tiles

# name -> number of arguments; each is a C++ and a CUDA function of the same name and a torch expression below
LONGEST = 4000  # characters of an expression
FUNCTIONS = {
    **dict.fromkeys(("gelu_tanh", "gelu_erf", "relu", "silu", "sigmoid", "hardswish", "softplus"), 1),
    **dict.fromkeys(("tanh", "exp", "log", "sqrt", "rsqrt", "abs"), 1),
    **dict.fromkeys(("less", "less_equal", "maximum", "minimum", "leaky_relu"), 2),
    "where": 3,
    "clamp": 3,
    "scale": 2,
    "batch_norm": 6,
}


@dataclass(frozen=True)
class PointwiseAttributes(Attributes):
    """The expression over e0, e1, …, and how each operand is read: by "elements", "columns", "rows" or
    "images". An op of a plan has both in its epilogue."""

    expression: str = ""
    how: tuple[str, ...] = ()


def pointwise(expression: str, x: Value, *others: Value, name: str | None = None, where: str = "") -> Value:
    """y = expression(e0 = x, e1, …), element by element in float32.

    x (…, N); the others have x's shape, or are vectors (N,), or one column (…, 1), which is the same for all
    of a row; beside images (B, H, W, N) also vectors of each, (B, N); all of one dtype, y too; what
    has not x's shape may be float32. expression: + - * /, numbers, and calls of abs, batch_norm, clamp, exp,
    gelu_erf, gelu_tanh, hardswish, leaky_relu, less, less_equal (1 or 0), log, maximum, minimum, relu, rsqrt,
    scale, sigmoid, silu, softplus, sqrt, tanh and where(condition, then, else).

    Raises:
        SpecError: the expression holds anything else, or an operand has another shape or dtype.
    """
    where = where or caller()
    try:
        check_expression(expression, {f"e{n}" for n in range(1 + len(others))})
    except PlanError as error:
        raise SpecError(str(error), where) from None
    tensors("pointwise", where, x=x)
    need(
        len(x.shape) > 1, f"pointwise: the first operand has at least two dimensions, given {x.shape}", where
    )
    how = ["elements"]
    for other in others:
        need(isinstance(other, Value), f"pointwise: operands are tensors, given {other!r}", where)
        tensors("pointwise", where, other=other)
        column = (*x.shape[:-1], 1)
        ways = {x.shape: "elements", (x.shape[-1],): "columns"}
        if len(other.shape) > 1:  # beside one column of 16 bits another of float32 goes by rows
            ways = {column: "rows", **ways} if other.dtype == x.dtype else {**ways, column: "rows"}
        if len(x.shape) == 4 and all(isinstance(n, int) for n in x.shape[1:3]):
            ways = {(x.shape[0], x.shape[-1]): "images", **ways}
        *shapes, last = map(str, dict.fromkeys((x.shape, (x.shape[-1],), column, *ways)))
        need(
            other.shape in ways,
            f"pointwise: {other.tensor!r} {other.shape} is none of {', '.join(shapes)} or {last}",
            where,
        )
        how.append(ways[other.shape])
        need(
            other.dtype == x.dtype or (how[-1] != "elements" and other.dtype == "float32"),
            f"pointwise: {x.tensor!r} is {x.dtype}, {other.tensor!r} is {other.dtype}; expected one dtype",
            where,
        )
    values = (x, *others)
    alike = ("elements", "rows")  # as the result
    form = shared_form([v for v, h in zip(values, how, strict=True) if h in alike])
    forms = {"columns": "vector", "images": "rows"}
    operands = [v.operand(forms.get(h, form), where) for v, h in zip(values, how, strict=True)]
    attributes = PointwiseAttributes(expression, tuple(how))
    y = call("pointwise", name, operands, x.shape, x.dtype, form, attributes, where)
    if not form:
        y.builder.tie([y.tensor, *(o.tensor for o, h in zip(operands, how, strict=True) if h in alike)])
    return y


def shared_form(values: Sequence[Value], of_views: str = "rows") -> str:
    """The form that one of the tensors has already; for four dimensions left open where none has, or
    `of_views` where some are views; else rows."""
    tensors = builder("pointwise").tensors
    forms = {"rows" if v.flattened else tensors[v.tensor].form for v in values} - {""}
    if "spatial" in forms:
        return "spatial"
    if forms or len(values[0].shape) != 4:
        return "rows"
    return "" if all(v.columns is None for v in values) else of_views


def check_expression(expression: str, names: set[str], where: str = "") -> None:
    """Refuse everything but calls of FUNCTIONS, + - * /, the given names and numbers: expressions are
    compiled, also those from files. Of two whole numbers C++ would divide otherwise than Python."""

    def walk(node: ast.AST) -> None:
        match node:
            case ast.Expression(body=body):
                walk(body)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
                walk(left)
                walk(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right) if _names(left) | _names(right):
                walk(left)
                walk(right)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if plain(value):
                pass
            case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if FUNCTIONS.get(
                function
            ) == len(args):
                for argument in args:
                    walk(argument)
            case ast.Name(id=name) if name in names:
                pass
            case ast.Constant(value=value) if plain(value):
                pass
            case _:
                raise PlanError(
                    f"expression {expression!r}:"
                    f" {ast.unparse(node) if not isinstance(node, ast.Expression) else expression!r} is not"
                    f" allowed; expected {', '.join(FUNCTIONS)}, + - * / and {', '.join(sorted(names))}",
                    where,
                )

    if not isinstance(expression, str) or len(expression) > LONGEST:
        given = repr(expression)
        raise PlanError(
            f"expression {given[:80]}: expected text of at most {LONGEST} characters, given {len(given)}",
            where,
        )
    strange = re.search(r"[^\w+*/(),. -]|[^\x20-\x7e]|\b\d+_|\b0[xXoObB]", expression)
    try:
        walk(ast.parse(expression, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PlanError(f"expression {expression!r}: {getattr(error, 'msg', error)}", where) from None
    if strange:  # comments, line ends and such numbers mean something else in C++
        raise PlanError(f"expression {expression!r}: {strange[0]!r} is not allowed", where)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def plain(value: object) -> bool:
    """A number that Python and C++ read alike."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) < 2**31
    )


def spread(operand: Any, how: str) -> Any:
    """An operand as torch broadcasts it beside the result: a vector of each image beside the images."""
    return operand[:, None, None] if how == "images" else operand


def evaluate(expression: str, names: dict[str, Any]) -> Any:
    """The value of a checked expression on torch float32 tensors."""
    import torch
    import torch.nn.functional as F

    functions = {
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": F.gelu,
        "relu": F.relu,
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "hardswish": F.hardswish,
        "softplus": F.softplus,
        "leaky_relu": F.leaky_relu,
        "clamp": torch.clamp,
        "less": lambda a, b: torch.as_tensor(a < b, dtype=torch.float32),
        "less_equal": lambda a, b: torch.as_tensor(a <= b, dtype=torch.float32),
        "where": lambda c, a, b: torch.where(torch.as_tensor(c != 0), a, b),
        "maximum": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
        "minimum": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
        **{name: getattr(torch, name) for name in ("tanh", "exp", "log", "sqrt", "rsqrt", "abs")},
        "scale": lambda x, c: x * c,
        "batch_norm": lambda x, mean, var, w, bias, eps: (x - mean) * (var + eps).rsqrt() * w + bias,
    }
    check_expression(expression, set(names))
    # a checked expression names nothing else; torch imports from the frame that it traces in
    known: dict[str, Any] = {"__builtins__": {"__import__": __import__}}
    return eval(compile(expression, "<epilogue>", "eval"), known, {**functions, **names})


@register
class Pointwise(OpDef):
    """An op of its own only where no op before can carry it; all operands are read in the epilogue."""

    name, coords, stem = "pointwise", ("i", "j"), "rows"
    attributes = PointwiseAttributes

    def coords_of(self, b: OpInstance) -> tuple[str, ...]:
        return ("i", "j") if len(b.out) == 2 else ("b", "p", "q", "c")

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        return ()

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=True))

    def accumulators(self, attributes: Attributes) -> tuple[str, ...]:
        return ()

    def flops(self, b: OpInstance) -> float:
        return 4.0 * math.prod(b.tile)

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        c = b.out[-1] if isinstance(b.out[-1], int) else 256
        if len(b.out) == 4:
            return [(*t, min(c, 128)) for t in spatial_tiles(b.out, (64,))]
        return [(*t, min(c, 512)) for t in row_tiles(b.out[0], machine)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        return []
