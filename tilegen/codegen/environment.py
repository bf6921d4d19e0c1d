"""The Jinja environment. Jinja itself is imported when a text is first rendered: a kernel from the cache
needs none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sympy as sp

from tilegen.analysis.regions import to_c
from tilegen.config import own_templates
from tilegen.errors import CompileError, PlanError
from tilegen.frontend.dims import dims_of
from tilegen.ops.base import OpInstance, foreign_ops

if TYPE_CHECKING:
    import jinja2

NAMES = {"cpu": "CPU", "cuda/threads": "CUDA"}


def roots() -> list[Path]:
    """The template folders of users' own ops, then tilegen's own templates."""
    return [*(Path(k.templates) for k in foreign_ops() if k.templates), own_templates()]


def source_of(template: str) -> tuple[str, str, Callable[[], bool]] | None:
    """(text, where it was found, whether it still is that text)"""
    from jinja2.loaders import split_template_path

    parts = split_template_path(template)  # which refuses to leave the folder
    for root in roots():
        node = root.joinpath(*parts)
        if node.is_file():
            return _kept(node)
    return None


def _kept(node: Path) -> tuple[str, str, Callable[[], bool]]:
    text = node.read_text("utf-8")
    return text, str(node), lambda: bool(node.read_text("utf-8") == text)


@lru_cache(maxsize=4)
def environment(folders: tuple[str, ...]) -> jinja2.Environment:
    """One for each list of template folders, since it keeps what it has compiled by name."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(source_of),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=in_c,
    )
    made.filters["in_c"] = in_c
    return made


def in_c(value: Any) -> Any:
    """What a template prints: a size that moves as C, in parentheses where it is a formula."""
    if not isinstance(value, sp.Basic) or not dims_of(value):
        return value
    text = to_c(value)
    return text if text.replace(".", "").isidentifier() else f"({text})"


@dataclass(frozen=True)
class Source:
    """A text that is written when it is first asked for: a kernel from the cache needs none."""

    write: Callable[[], str]

    @cached_property
    def text(self) -> str:
        return self.write()


def template_of(name: str) -> jinja2.Template:
    return environment(tuple(map(str, roots()))).get_template(name)


def render(template: str, **context: Any) -> str:
    return template_of(template).render(**context)


def refuse_missing_macro(target: str, suffix: str, b: OpInstance) -> None:
    """PlanError where an op of a user's own has no tile function for a target."""
    if b.kind.built_in:
        return
    path = f"{target}/{b.kind.stem}.{suffix}.j2"
    if source_of(path) is None:
        raise PlanError(
            f"op {b.op.name!r} ({b.op.kind}) has no template {path} for the {NAMES[target]} target",
            b.op.where,
        )


def macro_text(target: str, suffix: str, op: Any) -> str:
    """The tile function of an op: macro KIND of templates/TARGET/STEM.SUFFIX.j2. CompileError where there is
    none."""
    import jinja2

    kind, stem = op.bound.op.kind, op.bound.kind.stem
    path = f"{target}/{stem}.{suffix}.j2"
    try:
        module: Any = template_of(path).module
    except jinja2.TemplateNotFound as error:
        raise CompileError(
            f"op {op.name!r} ({kind}) has no template {error.name} for the {NAMES[target]} target"
        ) from None
    macro = getattr(module, kind, None)
    if macro is None:
        raise CompileError(f"templates/{path} has no macro {kind!r}")
    return str(macro(op))
