"""docs/api.md from docstrings: `python -m docs.api` writes it, a test holds it up to date."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tilegen as tg

DOCUMENT = Path(__file__).with_name("api.md")
WIDTH = 110
# heading -> names of tilegen, or classes elsewhere whose public methods are told too
PARTS: dict[str, tuple[str, ...]] = {
    "Specs": ("spec", "input", "weight", "state", "dim", "symbol", "Spec", "Program"),
    "Products": ("linear", "matmul", "conv2d", "conv_transpose2d"),
    "Attention and caches": ("attention", "append", "rope", "rotary", "softmax", "log_softmax", "embedding"),
    "Norms and numbers of rows": (
        *("rms_norm", "layer_norm", "group_norm", "sum", "mean", "max", "min", "logsumexp"),
        *("topk", "argmax", "take_along"),
    ),
    "Images and columns": (
        *("max_pool2d", "avg_pool2d", "global_avg_pool", "upsample", "flatten", "cat", "pad"),
    ),
    "Elements in another order": ("permute", "transpose", "reshape", "narrow"),
    "Pointwise": (
        *("gelu", "relu", "leaky_relu", "silu", "sigmoid", "hardswish", "softplus", "tanh", "exp", "log"),
        *("sqrt", "rsqrt", "abs", "clamp", "add", "sub", "mul", "div", "scale", "batch_norm"),
        *("maximum", "minimum", "where", "pointwise"),
    ),
    "Planning and compiling": (
        *("compile", "generate", "plan", "explain", "verify", "simulate", "reference", "Options", "Plan"),
    ),
    "Layers of a model": ("module", "weights_changed"),
    "Kernels": (
        "tilegen.kernels.kernel.Kernel",
        "tilegen.kernels.moving.MovingKernel",
        "tilegen.kernels.empty.EmptyKernel",
        "tilegen.kernels.cuda_kernel.CudaKernel",
        "tilegen.kernels.launches.MultiLaunchKernel",
    ),
    "An op of one's own": (
        "tilegen.frontend.attributes.Attributes",
        "tilegen.ops.base.OpDef",
        "tilegen.ops.base.OpInstance",
        "tilegen.ops.base.Access",
    ),
    "Errors": (
        *("TilegenError", "SpecError", "PlanError", "AnalysisError", "ProofError", "CompileError"),
        *("SpillError", "CompilerMissing", "TargetError", "ArgumentError", "CacheError", "OutputError"),
        *("HangError", "RaceError", "DeadlockError"),
    ),
}


def found(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last) if module else getattr(tg, name)


def parameter(p: inspect.Parameter) -> str:
    """*others: Value, name: str | None = None"""
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    default = getattr(p.default, "__name__", None) or repr(p.default)
    said = f"{star}{p.name}" if p.annotation is p.empty else f"{star}{p.name}: {p.annotation}"
    return said if p.default is p.empty else f"{said} = {default}"


def signature(name: str, thing: Any) -> str:
    """name(parameters) -> result, over several lines where it is long."""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [parameter(p) for p in given.parameters.values()]
    star = next((n for n, p in enumerate(given.parameters.values()) if p.kind is p.KEYWORD_ONLY), None)
    if star is not None and not any(p.kind is p.VAR_POSITIONAL for p in given.parameters.values()):
        parameters.insert(star, "*")
    parameters = [p for p in parameters if p not in ("self", "cls")]
    result = "" if given.return_annotation is given.empty else f" -> {given.return_annotation}"
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= WIDTH:
        return line
    lines = [""]
    for said in parameters:
        if len(lines[-1]) + len(said) > WIDTH - 6:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{said},"
    return f"{name}(\n{textwrap.indent(chr(10).join(lines), '    ')}\n){result}"


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring of their own, in the order in which they stand."""
    for name, member in vars(cls).items():
        bare = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if not name.startswith("_") and (callable(bare) or isinstance(bare, property)) and bare.__doc__:
            yield name, bare


def entry(name: str, thing: Any, level: int) -> Iterator[str]:
    is_data = isinstance(thing, property)
    yield f"{'#' * level} {name}"
    if not is_data and not (inspect.isclass(thing) and issubclass(thing, Exception)):
        yield f"```python\n{signature(name, thing)}\n```"
    words = inspect.getdoc(thing) or ""
    yield "\n".join(line.rstrip() for line in words.splitlines())
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        for member, value in members(thing):
            yield from entry(f"{name}.{member}", value, level + 1)


def document() -> str:
    written = "`import tilegen as tg`. Written by `python -m docs.api` from the docstrings."
    parts = ["# The interface", written]
    for heading, names in PARTS.items():
        parts.append(f"## {heading}")
        for name in names:
            parts += entry(name.rpartition(".")[2] if "." in name else f"tg.{name}", found(name), 3)
    return "\n\n".join(parts) + "\n"


def missing() -> set[str]:
    """Public names that no part tells of."""
    return set(tg.__all__) - {name for names in PARTS.values() for name in names}


if __name__ == "__main__":
    DOCUMENT.write_text(document())
