"""The tensors of a parsed plan, by number, and what an operand sees of one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegen.proof.footprint.frame import DIMENSIONS, Malformed, View, expect, is_int

ROLES = ("input", "weight", "intermediate", "output", "partial", "state")


@dataclass(frozen=True)
class Tensors:
    """given: as the plan has them, by name. shapes, roles: by number, in the plan's order."""

    given: dict[str, Any]
    names: list[str]
    shapes: list[tuple[int, ...]]
    roles: list[str]

    @staticmethod
    def of(given: object) -> Tensors:
        """Malformed where one is no tensor."""
        found = Tensors(expect(given, dict, "tensors"), [], [], [])
        for name, tensor in found.given.items():
            shape, role = tensor["shape"], tensor["role"]
            if not (
                isinstance(shape, list) and 1 <= len(shape) <= DIMENSIONS and all(is_int(s, 1) for s in shape)
            ):
                raise Malformed(f"tensor {name!r} has shape {shape!r}, expected 1 to {DIMENSIONS} ints >= 1")
            if role not in ROLES:
                raise Malformed(f"tensor {name!r} has role {role!r}, expected one of {', '.join(ROLES)}")
            expect(tensor["dtype"], str, f"dtype of tensor {name!r}")
            found.names.append(name)
            found.shapes.append(tuple(shape))
            found.roles.append(role)
        return found

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @property
    def by_role(self) -> dict[str, str]:
        return dict(zip(self.names, self.roles, strict=True))

    def number(self, name: Any) -> int:
        if type(name) is not str or name not in self.numbers:
            raise Malformed(f"tensor {name!r:.60} is unknown")
        return self.numbers[name]

    def dtype(self, name: str) -> str:
        found: str = self.given[name]["dtype"]
        return found

    def view(self, operand: Any) -> View:
        """What an operand sees: a tensor, columns of one, or a spatial one flattened."""
        if isinstance(operand, str):
            full = self.shapes[self.number(operand)]
            return View(operand, full, full)
        full = self.shapes[self.number(operand["tensor"])]
        if (
            operand.get("flatten") is True
            and len(full) == DIMENSIONS
            and set(operand) == {"tensor", "flatten"}
        ):
            return View(operand["tensor"], full, (full[0], math.prod(full[1:])), flat=True)
        if set(operand) != {"tensor", "columns"}:
            raise Malformed(
                f"operand is {operand!r}, expected a tensor, columns of one, or a spatial one flattened"
            )
        low, high = operand["columns"]
        if not (is_int(low) and is_int(high) and low < high <= full[-1]):
            raise Malformed(f"columns are {operand['columns']!r}, expected a range of [0, {full[-1]}]")
        return View(operand["tensor"], full, (*full[:-1], high - low), low)
