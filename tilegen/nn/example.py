"""An example of a call of a module: which of its arguments are tensors, and what torch.export makes of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilegen.errors import SpecError
from tilegen.frontend.dims import Dim
from tilegen.nn.adapter import Fixed, Leaf

PREFIX = "module."  # of the names below a module that is exported


@dataclass(frozen=True)
class Example:
    """positional: names of the module's arguments by position. tensors, fixed: where the tensors of the call
    stand, in order, and all else. names: of the arguments given."""

    call: _Call
    positional: tuple[str, ...]
    tensors: tuple[Leaf, ...]
    fixed: tuple[Fixed, ...]
    names: frozenset[str]
    given: tuple[torch.Tensor, ...]
    dim: Dim | None
    shapes: tuple[dict[int, Any] | None, ...]

    @staticmethod
    def of(
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dynamic_shapes: Mapping[str, Any],
    ) -> Example:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(module.forward).parameters
        positional = tuple(n for n, p in parameters.items() if p.kind in kinds)
        if len(args) > len(positional):
            raise SpecError(f"from_torch: {len(args)} arguments by position, {len(positional)} have names")
        names = [*positional[: len(args)], *kwargs]
        unknown = [name for name in dynamic_shapes if name not in names]
        if unknown:
            given = ", ".join(names) or "no arguments"
            raise SpecError(f"from_torch: dynamic_shapes has {', '.join(unknown)}; the call has {given}")
        flat, structure = pytree.tree_flatten(((*args,), dict(kwargs)))
        paths = [
            _leaf(path, positional) for path, _ in pytree.tree_flatten_with_path((args, dict(kwargs)))[0]
        ]
        tensors = [(p, a) for p, a in zip(paths, flat, strict=True) if isinstance(a, torch.Tensor)]
        fixed = [Fixed(p, a) for p, a in zip(paths, flat, strict=True) if not isinstance(a, torch.Tensor)]
        dim, shapes = _moving(dynamic_shapes)
        moving = tuple(shapes.get(p.argument) if not p.path else None for p, _ in tensors)
        return Example(
            _Call(module, structure, flat),
            positional,
            tuple(p for p, _ in tensors),
            tuple(fixed),
            frozenset(names),
            tuple(_grown(a, shape) for (_, a), shape in zip(tensors, moving, strict=True)),
            dim,
            moving,
        )

    def exported(self) -> torch.export.ExportedProgram:
        """The module as a graph of aten operators without writes in place."""
        shapes = {"tensors": self.shapes} if self.dim is not None else None
        exported = torch.export.export(self.call, self.given, dynamic_shapes=shapes, strict=False)
        return exported.run_decompositions({})


class _Call(torch.nn.Module):
    """A module with all arguments that are no tensors fixed."""

    def __init__(self, module: torch.nn.Module, structure: Any, flat: list[Any]):
        super().__init__()
        self.module = module
        self._rebuilt: Callable[[Any], Any] = lambda flat: pytree.tree_unflatten(flat, structure)
        self._flat = [None if isinstance(a, torch.Tensor) else a for a in flat]
        self._at = [n for n, a in enumerate(flat) if isinstance(a, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        flat = list(self._flat)
        for n, a in zip(self._at, tensors, strict=True):
            flat[n] = a
        args, kwargs = self._rebuilt(flat)
        return self.module(*args, **kwargs)


def _leaf(path: tuple[Any, ...], positional: tuple[str, ...]) -> Leaf:
    by_name, first, *rest = (getattr(key, "idx", getattr(key, "key", None)) for key in path)
    return Leaf(str(first) if by_name else positional[int(first or 0)], tuple(rest))


def _moving(given: Mapping[str, Any]) -> tuple[Dim | None, dict[str, Any]]:
    """What moves, and the shapes in torch's words."""
    found: dict[str, Dim] = {}

    def told(name: str, size: Any) -> Any:
        if not isinstance(size, Dim):
            raise SpecError(
                f"from_torch: dynamic_shapes[{name!r}] is {{dimension: tg.dim(…)}}, given {size!r}"
            )
        found[size.name] = size
        return torch.export.Dim(size.name, min=1, max=size.most)

    shapes = {
        name: {axis: told(name, size) for axis, size in _sizes(name, shape).items()}
        for name, shape in given.items()
    }
    if len(found) > 1:
        raise SpecError(f"from_torch: {' and '.join(sorted(found))} move; one size may")
    return next(iter(found.values()), None), shapes


def _sizes(name: str, shape: Any) -> Mapping[int, Any]:
    if not isinstance(shape, Mapping):
        raise SpecError(f"from_torch: dynamic_shapes[{name!r}] is {{dimension: tg.dim(…)}}, given {shape!r}")
    return shape


def _grown(a: torch.Tensor, shape: Mapping[int, Any] | None) -> torch.Tensor:
    """Two places where one stands and more will: torch takes a size of 1 for one that stays."""
    for axis in shape or {}:
        if a.shape[axis] == 1:
            a = torch.cat((a, a), dim=axis)
    return a
