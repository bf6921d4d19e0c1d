"""For the authors of ops: what an op function asks of its arguments, and how it adds its op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilegen.errors import SpecError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.names import check_name
from tilegen.frontend.program import Call, Operand, Size, Tensor
from tilegen.frontend.value import Builder, Value, builder, caller


def owned(b: Builder, value: Value, where: str) -> None:
    if value.builder is not b:
        raise SpecError(
            f"{value.tensor!r} belongs to another spec, {value.builder.name}; a tensor is used in the spec"
            " that declared it",
            where,
        )


def declared(what: str, where: str, **values: Any) -> None:
    """Refuse what is no tensor, or one of another spec."""
    b = builder(what)
    for name, value in values.items():
        if not isinstance(value, Value):
            raise SpecError(f"{what}: {name} is a tensor, given {value!r}", where)
        owned(b, value, where)


def tensors(what: str, where: str, **values: Any) -> None:
    """Refuse what is no tensor, one of another spec, or one of whole numbers."""
    declared(what, where, **values)
    for value in values.values():
        if value.dtype == "int32":
            raise SpecError(f"{what}: {value.tensor!r} is int32; expected numbers with a point", where)


def number(what: str, value: Any, where: str, positive: bool = False) -> float:
    """A finite number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or (positive and value <= 0)
    ):
        raise SpecError(f"{what} is a {'positive' if positive else 'finite'} number, given {value!r}", where)
    return float(value)


def call(
    kind: str,
    name: str | None,
    operands: Sequence[Operand],
    shape: Sequence[Size],
    dtype: str,
    form: str,
    attributes: Attributes = Attributes(),  # noqa: B008
    where: str = "",
) -> Value:
    """Add an op whose result is a new tensor of its own name. For the authors of ops.

    Raises SpecError where the name is taken, and where attributes is no Attributes.
    """
    b = builder(kind)
    where = where or caller()
    if not isinstance(attributes, Attributes):
        given = f"{attributes!r}, a {type(attributes).__name__}"
        raise SpecError(f"{kind}: attributes are a frozen dataclass below Attributes, given {given}", where)
    if name is not None:
        check_name(name, where)
        if b.taken(name):
            raise SpecError(f"the op name {name!r} is taken (first at {b.taken(name)})", where)
    named, name = name is not None, name or b.fresh(kind)
    b.names[name.lower()] = where
    b.tensors[name] = Tensor(name, tuple(shape), dtype, "intermediate", where, form)
    b.calls.append(Call(kind, name, tuple(operands), name, attributes, where, named))
    return Value(b, name, tuple(shape))


def may_go_unused(value: Value) -> Value:
    """One of several results of a word: its op is left out where nothing uses it. For the authors of ops."""
    value.builder.unasked.add(value.tensor)
    return value
