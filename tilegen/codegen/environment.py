"""The Jinja environment, and where templates are found: beside the package in a checkout, inside it when installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from tilegen.ops.base import foreign_kinds


class TemplateLoader(jinja2.BaseLoader):
    """The template folders of users' own ops, then tilegen's own templates."""

    def roots(self) -> list[Any]:
        own: Any
        try:
            own = resources.files("tilegen.templates")
        except ModuleNotFoundError:  # a checkout, or a legacy editable install
            own = Path(__file__).resolve().parent.parent.parent / "templates"
        return [*(Path(k.templates) for k in foreign_kinds() if k.templates), own]

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        for root in self.roots():
            node = root
            for part in jinja2.loaders.split_template_path(template):
                node = node.joinpath(part)
            if node.is_file():
                return node.read_text("utf-8"), str(node), lambda: True
        raise jinja2.TemplateNotFound(template)


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=TemplateLoader(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        cache_size=0,
    )


def render(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)
