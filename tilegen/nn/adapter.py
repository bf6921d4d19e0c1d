"""How a module that was imported is called: its arguments as those of the kernel, the kernel's results as its
own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilegen.errors import ArgumentError

WHOLE = torch.iinfo(torch.int32)


@dataclass(frozen=True)
class Leaf:
    """A tensor or a constant among the arguments of a call: of which one, and where in it."""

    argument: str
    path: tuple[Any, ...] = ()

    def of(self, given: Mapping[str, Any]) -> Any:
        found = given[self.argument]
        for key in self.path:
            found = found[key]
        return found

    @property
    def name(self) -> str:
        return "_".join(map(str, (self.argument, *self.path)))

    def __str__(self) -> str:
        return self.argument + "".join(f"[{key!r}]" for key in self.path)


@dataclass(frozen=True)
class Layout:
    """How a kernel takes a tensor: under its own name, the dimensions in this order, without those dropped,
    which are of size 1."""

    name: str
    order: tuple[int, ...] | None = None
    dropped: tuple[int, ...] = ()

    def of(self, a: torch.Tensor) -> torch.Tensor:
        if a.dtype is torch.int64:  # no number becomes another one that a table might have
            a = a.clamp(WHOLE.min, WHOLE.max).int()
        return (a if self.order is None else a.permute(self.order)).squeeze(self.dropped).contiguous()


@dataclass(frozen=True)
class Taken:
    """A tensor of a call, and how the kernel takes it."""

    leaf: Leaf
    layout: Layout


@dataclass(frozen=True)
class Fixed:
    """What was no tensor in the example: the program was written for this value."""

    leaf: Leaf
    value: Any


@dataclass(frozen=True)
class Returned:
    """A result of the module: that of the kernel of this number, cut into pieces, which in another order are
    grouped into its shape (View.layout); or a constant. dtype: of whole numbers, which a kernel has as
    int32."""

    number: int | None
    pieces: tuple[int, ...] | None = None
    order: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    constant: Any = None
    dtype: torch.dtype | None = None

    def of(self, results: Sequence[torch.Tensor]) -> Any:
        if self.number is None:
            return self.constant
        found = results[self.number]
        found = found if self.dtype is None else found.to(self.dtype)
        if self.pieces is None:
            return found
        return found.reshape(self.pieces).permute(self.order).reshape(self.shape)


@dataclass(frozen=True)
class Adapter:
    """positional: names of the module's arguments by position; taken: as the kernel takes them; known: names
    of the example."""

    title: str
    positional: tuple[str, ...]
    taken: tuple[Taken, ...]
    fixed: tuple[Fixed, ...]
    known: frozenset[str]
    returned: tuple[Returned, ...]
    structure: Any  # of the results; None for one tensor

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """The kernel's, in order, from a call's.

        Raises:
            ArgumentError: a tensor is missing, or another argument is not that of the example.
        """
        if len(args) > len(self.positional):
            raise ArgumentError(f"{self.title} takes {len(self.positional)} arguments, given {len(args)}")
        given = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        for name, value in given.items():
            if name not in self.known and value is not None:
                raise ArgumentError(
                    f"{self.title}: {name!r} was not among the arguments that it was made from"
                    f" ({', '.join(sorted(self.known))}); give an example that has it"
                )
        for f in self.fixed:
            if f.leaf.argument in given and not _alike(f.leaf.of(given), f.value):
                raise ArgumentError(
                    f"{self.title}: {f.leaf} was {f.value!r} in the example that it was made from, given"
                    f" {_told(f.leaf.of(given))}"
                )
        found = []
        for t in self.taken:
            a = t.leaf.of(given) if t.leaf.argument in given else None
            if not isinstance(a, torch.Tensor):
                raise ArgumentError(f"{self.title}: {t.leaf} is a tensor, given {_told(a)}")
            found.append(t.layout.of(a))
        return tuple(found)

    def results(self, made: Any) -> Any:
        """The module's, from the kernel's."""
        if self.structure is None:
            return self.returned[0].of((made,))
        results = made if isinstance(made, tuple) else (made,)
        return pytree.tree_unflatten([r.of(results) for r in self.returned], self.structure)


def _alike(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b)


def _told(a: Any) -> str:
    return f"a tensor {tuple(a.shape)}" if isinstance(a, torch.Tensor) else repr(a)
