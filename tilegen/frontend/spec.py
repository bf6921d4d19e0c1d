"""What the user declares: tensors and ops, collected into a Program by running a @spec function once.

A spec is pure data: nothing here computes on elements, imports torch or knows a GPU. Sizes are ints, or SymPy
symbols where they are left open for `explain`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilegen.errors import SpecError
from tilegen.frontend.call import owned
from tilegen.frontend.program import Program, check_acyclic, check_rows, listed
from tilegen.frontend.value import Builder, Value, building, caller


def as_program(given: Any) -> Program:
    """What a verb was given, where it is a Program. SpecError: what it is instead, and how to get one."""
    if isinstance(given, Program):
        return given
    if isinstance(given, Spec):
        raise SpecError(
            f"expected a Program, given the Spec {given.name}: call it, "
            f"{given.name}({', '.join(f'{p}=…' for p in given.parameters)})"
        )
    module = hasattr(given, "forward")
    hint = (
        "write a module's maths as a @tg.spec function and call the kernel in forward"
        if module
        else "a @tg.spec function, called with sizes, gives one"
    )
    what = "None" if given is None else f"a value of type {type(given).__name__}"
    raise SpecError(f"expected a Program, given {what}; {hint}")


@dataclass(frozen=True)
class Spec:
    """A decorated spec function. Calling it with sizes gives a Program.

    Raises:
        SpecError: by the call, where sizes are missing or unknown, or what the function declares is wrong; it
            names the line of the spec.
    """

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    def __repr__(self) -> str:
        sizes = [
            name if value is inspect.Parameter.empty else f"{name}={value!r}"
            for name, value in self.parameters.items()
        ]
        return f"<Spec {self.name}({listed(sizes)})>"

    @property
    def parameters(self) -> dict[str, Any]:
        return {p.name: p.default for p in inspect.signature(self.function).parameters.values()}

    def __call__(self, *args: Any, **kwargs: Any) -> Program:
        where = (
            f"{os.path.relpath(self.function.__code__.co_filename)}:{self.function.__code__.co_firstlineno}"
        )
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise SpecError(
                f"{self.name}: {error}; its parameters are {', '.join(self.parameters)}", where
            ) from None
        bound.apply_defaults()
        with building(self.name) as b:
            returned = self.function(*bound.args, **bound.kwargs)
            return finish(
                b, returned, tuple(bound.arguments.items()), inspect.getdoc(self.function) or "", where
            )


def spec(function: Callable[..., Any]) -> Spec:
    """Declare a program. Run with sizes, the function names tensors and ops and returns the outputs.

    Raises:
        SpecError: it is given no function.
    """
    if not callable(function):
        raise SpecError(f"@tg.spec declares a function, given {function!r}", caller())
    return Spec(function)


def finish(b: Builder, returned: Any, sizes: tuple[tuple[str, Any], ...], doc: str, where: str) -> Program:
    """Check what was collected and freeze it."""
    values = returned if isinstance(returned, tuple) else (returned,)
    if not values or not all(isinstance(v, Value) for v in values):
        raise SpecError(f"{b.name} must return a tensor or a tuple of tensors, returned {returned!r}", where)
    outputs = []
    for value in values:
        owned(b, value, where)
        tensor = b.tensors[value.tensor]
        if value.columns is not None or value.flattened:
            raise SpecError(
                f"an output must be a whole tensor, a view of {value.tensor!r} was returned", where
            )
        if tensor.role == "state":
            continue  # written in place: the caller already holds it
        if tensor.role != "intermediate":
            raise SpecError(f"{value.tensor!r} is an {tensor.role} and is returned as it is", tensor.where)
        if value.tensor in outputs:
            raise SpecError(f"{value.tensor!r} is returned twice", where)
        outputs.append(value.tensor)
    for name in outputs:
        b.tensors[name] = replace(b.tensors[name], role="output")
    _leave_out(b, b.unasked - {o.tensor for c in b.calls for o in c.operands} - set(outputs))
    used = {o.tensor for c in b.calls for o in c.operands}
    for tensor in b.tensors.values():
        if tensor.name not in used and tensor.role in ("input", "weight", "state"):
            raise SpecError(f"{tensor.role} {tensor.name!r} is never used", tensor.where)
        if tensor.name not in used and tensor.role == "intermediate":
            raise SpecError(f"the result {tensor.name!r} is neither used nor returned", tensor.where)
    program = Program(b.name, sizes, tuple(b.tensors.values()), tuple(b.calls), tuple(outputs), doc)
    check_acyclic(program)
    check_rows(program)
    return program


def _leave_out(b: Builder, results: set[str]) -> None:
    b.calls = [c for c in b.calls if c.result not in results]
    b.tensors = {name: t for name, t in b.tensors.items() if name not in results}
