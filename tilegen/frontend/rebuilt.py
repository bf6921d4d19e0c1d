"""A frozen value made of others, with every SymPy expression in it replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import sympy as sp


def rebuilt(value: Any, of: Callable[[sp.Expr], Any]) -> Any:
    """The value with of(e) for every expression e: in tuples, mappings and dataclasses. What holds none is
    the same object."""
    if isinstance(value, sp.Basic):
        return of(value)
    if isinstance(value, tuple):
        items = tuple(rebuilt(v, of) for v in value)
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if isinstance(value, Mapping):
        made = {key: rebuilt(v, of) for key, v in value.items()}
        return made if any(made[key] is not v for key, v in value.items()) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        changed = {name: new for name, old in fields.items() if (new := rebuilt(old, of)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value
