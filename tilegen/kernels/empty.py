"""A kernel of a program without rows: nothing is planned, nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import torch

from tilegen.errors import ArgumentError
from tilegen.frontend.program import Program, Tensor
from tilegen.kernels.operator import Called, key_of
from tilegen.runtime.arguments import TORCH_DTYPES, check, fixed, given_outputs


class EmptyKernel(Called):
    """Gives empty tensors of the program's shapes and leaves states as they are. Arguments are checked as a
    Kernel's are; torch sees an operator, whose gradients are zeros."""

    moves = False
    packed_bytes = workspace_bytes = 0

    def __init__(
        self, program: Program, target: str, place: str, bound: Mapping[str, torch.Tensor] | None = None
    ):
        """place: where tensors are, cpu or cuda."""
        self.program, self.target, self._place = program, target, place
        self.bound = dict(bound or {})
        self.outputs = tuple(program.tensor(name) for name in program.outputs)
        self.given = tuple(t for t in self.arguments if t.name not in self.bound)
        self.differentiable = not any(t.role == "state" for t in self.arguments)
        here = torch.cuda.current_device() if place == "cuda" else None
        self.device = torch.device(place) if here is None else torch.device(place, here)
        self.key = key_of(self)

    @property
    def title(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def identity(self) -> str:
        """What it gives, in words that are the same wherever it does."""
        return f"{self.program!r} {self.target} {type(self).__name__}"

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The spec's inputs, weights and states in declaration order."""
        return self.program.arguments

    def explain(self) -> str:
        return f"{self.program!r} has no rows: nothing runs"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.explain())}</pre>"

    def __repr__(self) -> str:
        return f"<EmptyKernel on {self.target}: {self.program!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return EmptyKernel, (self.program, self.target, self._place, self.bound)

    def prepare(self, /, **weights: torch.Tensor) -> EmptyKernel:
        """A kernel with these arguments fixed, which takes the others."""
        return self.prepared(weights, {})

    def prepared(
        self,
        weights: Mapping[str, torch.Tensor],
        copies: dict[str, torch.Tensor],
        once: frozenset[str] | None = None,
    ) -> EmptyKernel:
        """As Kernel.prepared: no weight is copied."""
        besides = fixed(self.title, self.arguments, weights, self._place)
        return EmptyKernel(self.program, self.target, self._place, {**self.bound, **besides})

    def held_packed(self, names: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
        """As Kernel.held_packed: none of them."""
        return {}

    def unpacked(self, name: str) -> torch.Tensor:
        """As Kernel.unpacked: no weight is held packed."""
        raise ArgumentError(f"{self.title}: {name!r} is not held packed")

    def refuse(self, given: Sequence[torch.Tensor]) -> None:
        """ArgumentError where an argument does not fit."""
        for t, a in zip(self.given, given, strict=True):
            check(t, a, self._place)

    def shapes(self, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Of its results."""
        return [t.shape for t in self.outputs]

    def program_of(self, given: Sequence[torch.Tensor]) -> Program:
        """What it computes."""
        return self.program

    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any:
        """Results without elements: what its operator does."""
        self.refuse(arguments)
        if out is not None:
            given_outputs(self.title, self.outputs, out, self._place)
            return out
        made = tuple(
            torch.empty(t.shape, dtype=TORCH_DTYPES[t.dtype], device=self.device) for t in self.outputs
        )
        return made[0] if len(made) == 1 else made or None

    def check(self) -> None:
        """Nothing was launched."""
