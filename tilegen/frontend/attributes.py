"""What an op is besides its operands: its attributes, typed. A kind of op has a class of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tilegen.errors import AnalysisError

A = TypeVar("A", bound="Attributes")


class HasAttributes(Protocol):
    """A call of a spec, an op of a graph, an op on its tensors."""

    @property
    def attributes(self) -> Attributes: ...


@dataclass(frozen=True)
class Attributes:
    """The base: no attributes. Fields are ints, floats, bools, strings, sizes of a spec, or tuples of these,
    so that a program hashes and a plan is JSON. A field with a default is one that not every op of the kind
    has."""

    @classmethod
    def of(cls: type[A], op: HasAttributes) -> A:
        """The attributes of an op of this kind. Raises AnalysisError where it is of another."""
        return cls.check(op.attributes)

    @classmethod
    def check(cls: type[A], attributes: Attributes) -> A:
        """The attributes, known to be of this kind. Raises AnalysisError where they are of another."""
        if not isinstance(attributes, cls):
            raise AnalysisError(f"{attributes} are not {cls.__name__}")
        return attributes

    def items(self) -> Iterator[tuple[str, Any]]:
        """The fields that differ from their defaults, by name."""
        for f in sorted(dataclasses.fields(self), key=lambda f: f.name):
            value = getattr(self, f.name)
            if f.default is dataclasses.MISSING or value != f.default:
                yield f.name, value

    @classmethod
    def from_items(cls: type[A], items: Mapping[str, Any], what: str) -> A:
        """From what `items` gives. Raises AnalysisError where a field is missing or not known."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        needed = {name for name, f in fields.items() if f.default is dataclasses.MISSING}
        if needed - set(items) or set(items) - set(fields):
            raise AnalysisError(
                f"{what} has the attributes {', '.join(sorted(items)) or 'none'}; expected"
                f" {', '.join(sorted(fields)) or 'none'}"
            )
        return cls(**items)
