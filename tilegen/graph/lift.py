"""A graph over a size that moves, from the graphs at two of its values.

    rows 63, rows 64  →  rows M        heads 32, heads 32  →  heads 32

Every number of a graph before it is cut into tiles is a size that the user wrote, times or plus constants: it
is linear in what moves, and two values tell it. What follows from tiles (grids, semaphores, ranks) is derived
from the lifted graph, never lifted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tilegen.errors import PlanError
from tilegen.frontend.dims import Dim


def lifted(least: Any, most: Any, dim: Dim, at: tuple[int, int]) -> Any:
    """The value over `dim` that is `least` and `most` at its two values `at`.

    Raises PlanError where they differ in more than numbers: the graphs are then not of one shape.
    """
    if type(least) is not type(most):
        raise _differ(least, most, dim, at)
    if isinstance(most, tuple) and len(least) == len(most):
        items = tuple(lifted(a, b, dim, at) for a, b in zip(least, most, strict=True))
        return items if any(new is not old for new, old in zip(items, most, strict=True)) else most
    if isinstance(most, Mapping) and list(least) == list(most):
        return {key: lifted(least[key], value, dim, at) for key, value in most.items()}
    if dataclasses.is_dataclass(most) and not isinstance(most, type):
        names = [f.name for f in dataclasses.fields(most) if f.init]
        fields = {name: lifted(getattr(least, name), getattr(most, name), dim, at) for name in names}
        changed = {name: new for name, new in fields.items() if new is not getattr(most, name)}
        return dataclasses.replace(most, **changed) if changed else most
    if least == most:
        return most
    if isinstance(most, int) and not isinstance(most, bool):
        slope, rest = divmod(most - least, at[1] - at[0])
        if rest == 0:
            return slope * dim + (most - slope * at[1])
    raise _differ(least, most, dim, at)


def _differ(least: Any, most: Any, dim: Dim, at: tuple[int, int]) -> PlanError:
    return PlanError(
        f"{dim.name} moves, and the program is of another shape at {at[0]} than at {at[1]}: {least!r} there,"
        f" {most!r} here; choose another max, or leave {dim.name} a number"
    )
