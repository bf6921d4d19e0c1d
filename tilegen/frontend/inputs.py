"""What a @spec function declares of what it is given: inputs, weights, states, open sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegen.errors import SpecError
from tilegen.frontend.program import DTYPES, ONE_BYTE, PAIRED, UNIT, Size, Tensor
from tilegen.frontend.value import Value, builder, caller


def check_shape(
    name: str, shape: Sequence[Size], where: str, may_be_empty: Sequence[int] = ()
) -> tuple[Size, ...]:
    """may_be_empty: the dimensions that may have size 0."""
    if isinstance(shape, (int, str)) or not isinstance(shape, Sequence):
        raise SpecError(f"{name!r}: a shape is a tuple of sizes, given {shape!r}", where)
    if not 1 <= len(shape) <= 4:
        raise SpecError(f"{name!r}: 1 to 4 dimensions are supported, given {tuple(shape)}", where)
    for axis, size in enumerate(shape):
        if isinstance(size, (bool, float)):
            raise SpecError(f"{name!r}: sizes are ints, given {size!r} in {tuple(shape)}", where)
        if isinstance(size, int) and size < (axis not in may_be_empty):
            unless = " but for rows of inputs and states, which may be 0" if may_be_empty else ""
            raise SpecError(f"{name!r}: every size must be at least 1{unless}, given {tuple(shape)}", where)
        if not isinstance(size, int) and not hasattr(size, "free_symbols"):
            raise SpecError(f"{name!r}: sizes are ints or symbols, given {size!r}", where)
    return tuple(shape)


def _rows(shape: Sequence[Size], dtype: str) -> Sequence[int]:
    """The dimensions of an input that count rows: all but its columns."""
    return range(len(shape) - (dtype != "int32")) if isinstance(shape, Sequence) else ()


def _declare(role: str, name: str, shape: Sequence[Size], dtype: str) -> Value:
    where = caller()
    roles = {"int32": ("input",), **dict.fromkeys(ONE_BYTE, ("input", "weight"))}
    if not isinstance(dtype, str) or dtype not in DTYPES or role not in roles.get(dtype, (role,)):
        raise SpecError(
            f"{name!r}: dtype must be one of float16, bfloat16, float32 (an input also int32, inputs and"
            f" weights of linears float8_e4m3fn or int8), given {dtype!r}",
            where,
        )
    shape = check_shape(name, shape, where, _rows(shape, dtype) if role != "weight" else ())
    if dtype in PAIRED and not (isinstance(shape[-1], int) and shape[-1] % UNIT == 0):
        hint = f"; pad them to {-(-shape[-1] // UNIT) * UNIT}" if isinstance(shape[-1], int) else ""
        raise SpecError(
            f"{name!r}: rows of {dtype} are whole units of {UNIT} bytes, given {shape}{hint}", where
        )
    return builder(role).declare(Tensor(name, shape, dtype, role, where))


def input(name: str, shape: Sequence[Size], dtype: str = "bfloat16") -> Value:
    """An activation, given at each call.

    name: an ASCII identifier. shape: one to four sizes; rows may be 0, where no result of the program has
    any. dtype: bfloat16, float16 or float32; int32 for a position, and for numbers of rows and columns;
    float8_e4m3fn for a linear, in rows of sixteens, or int8 for its w.

    Raises:
        SpecError: the name is taken or reserved, a size is not a positive int, or the dtype is unknown.
    """
    return _declare("input", name, shape, dtype)


def weight(name: str, shape: Sequence[Size], dtype: str = "bfloat16") -> Value:
    """A parameter, given at each call, or once through `kernel.prepare`. shape and dtype as for `input`.

    Raises:
        SpecError: the name is taken or reserved, a size is not a positive int, or the dtype is unknown.
    """
    return _declare("weight", name, shape, dtype)


def state(name: str, shape: Sequence[Size], dtype: str = "bfloat16") -> Value:
    """A tensor that is read and written in place, such as a KV cache. What no tile writes counts as input.

    shape: (B, S_max, H, D) or (B, S_max, H·D). dtype: bfloat16, float16 or float32.

    Raises:
        SpecError: as for `input`; or the shape has neither three nor four sizes.
    """
    value = _declare("state", name, shape, dtype)
    if len(value.shape) not in (3, 4):
        raise SpecError(
            f"state {name!r}: shape is (B, S_max, H, D) or (B, S_max, H·D), given {value.shape}", caller()
        )
    return value


def symbol(name: str) -> Any:
    """An open size, for `explain`: a positive whole number."""
    import sympy as sp

    return sp.Symbol(name, integer=True, positive=True)
