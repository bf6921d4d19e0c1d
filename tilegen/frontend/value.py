"""What op functions take and give, and what collects it while a @spec function runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from tilegen.errors import SpecError, nearest
from tilegen.frontend.names import check_name
from tilegen.frontend.program import ONE_BYTE, Call, Operand, Size, Tensor

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def caller() -> str:
    """file:line of the innermost frame outside this package and torch: the line of the spec that is being
    run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _inner(frame):
        frame = frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"


def _inner(frame: FrameType) -> bool:
    own = os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE)
    return own or str(frame.f_globals.get("__name__", "")).startswith("torch.")


@dataclass
class Builder:
    """Collects what a @spec function declares while it runs."""

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    appended: dict[str, str] = field(default_factory=dict)  # state -> where it was appended
    counts: dict[str, int] = field(default_factory=dict)
    # tensors whose form is still open, tied by pointwise ops
    alike: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # name in lower case -> where it was taken
    unasked: set[str] = field(default_factory=set)  # results that no user asked for by themselves

    def taken(self, name: str) -> str:
        """Where a name is taken by a tensor or an op, upper and lower case being the same; empty when it is
        free."""
        return self.names.get(name.lower(), "")

    def fresh(self, stem: str) -> str:
        """`stem`, or stem_1, stem_2 … when it is taken."""
        name = stem
        while self.taken(name):
            self.counts[stem] = self.counts.get(stem, 0) + 1
            name = f"{stem}_{self.counts[stem]}"
        return name

    def declare(self, tensor: Tensor) -> Value:
        check_name(tensor.name, tensor.where)
        taken = self.taken(tensor.name)
        if taken:
            raise SpecError(f"the name {tensor.name!r} is declared twice (first at {taken})", tensor.where)
        self.names[tensor.name.lower()] = tensor.where
        self.tensors[tensor.name] = tensor
        return Value(self, tensor.name, tensor.shape)

    def settle(self, name: str, form: str, where: str) -> None:
        """Fix how the plan sees a tensor, or refuse a second, different view of it."""
        tensor = self.tensors[name]
        if tensor.form and tensor.form != form:
            raise SpecError(
                f"{name!r} {tensor.shape} is used as {tensor.form} and here as {form}"
                f"{_two_forms(tensor, form)}",
                where,
            )
        self.tensors[name] = replace(tensor, form=form)
        for other in self.alike.pop(name, ()):
            self.settle(other, form, where)

    def tie(self, names: Sequence[str]) -> None:
        """These tensors are seen alike, in whatever form the first op needs that cares."""
        for name in names:
            self.alike.setdefault(name, []).extend(n for n in names if n != name)


def _two_forms(tensor: Tensor, form: str) -> str:
    """What to write where rows are made of an image, or an image of rows."""
    if (tensor.form, form) == ("spatial", "rows"):
        b, h, w, c = tensor.shape
        return (
            f"; tg.flatten({tensor.name}) is rows, {(b, h * w * c)}, one for each image; "
            f"a linear over the {c} channels of each pixel is tg.conv2d with a weight of (N, 1, 1, {c})"
        )
    if (tensor.form, form) == ("rows", "spatial"):
        return "; images are inputs and the results of convolutions and pooling"
    return ""


OPERATORS: dict[str, Callable[..., Value]] = {}  # of Value, by tilegen.ops


@dataclass(frozen=True, eq=False)
class Value:
    """What an op function takes and gives: a tensor, or a view of its columns."""

    builder: Builder
    tensor: str
    shape: tuple[Size, ...]
    columns: tuple[Size, Size] | None = None
    flattened: bool = False

    def __repr__(self) -> str:
        return f"{self.tensor} {self.shape}"

    @property
    def dtype(self) -> str:
        return self.builder.tensors[self.tensor].dtype

    @property
    def given(self) -> bool:
        """Whether no op of the spec makes it."""
        return self.builder.tensors[self.tensor].role != "intermediate"

    def operand(self, form: str, where: str, one_byte: bool = False) -> Operand:
        """This value as an operand of an op that sees it in `form`; one_byte: one that takes such
        numbers."""
        if self.dtype in ONE_BYTE and not one_byte:
            raise SpecError(f"{self.tensor!r} is {self.dtype}, which linear alone takes", where)
        if form and not self.flattened:
            self.builder.settle(self.tensor, form, where)
        return Operand(self.tensor, self.columns, self.flattened)

    def chunk(self, n: int) -> tuple[Value, ...]:
        """n equal column views, as torch.chunk(x, n, dim=-1).

        Raises:
            SpecError: the columns do not split into n equal parts.
        """
        where = caller()
        if not isinstance(n, int) or n < 1 or self.shape[-1] % n:
            raise SpecError(
                f"chunk: {self.tensor!r} has {self.shape[-1]} columns, which do not split into {n!r} equal"
                " parts",
                where,
            )
        return self.split([self.shape[-1] // n] * n)

    def split(self, sizes: Sequence[Size]) -> tuple[Value, ...]:
        """Column views of the given widths, as torch.split(x, sizes, dim=-1).

        Raises:
            SpecError: the widths are no list of sizes, or do not sum to the columns of x.
        """
        where = caller()
        if self.flattened:
            raise SpecError(
                f"split: {self.tensor!r} is flattened; column views of a flattened tensor are not supported",
                where,
            )
        if not isinstance(sizes, (list, tuple)) or not all(is_size(s) for s in sizes):
            raise SpecError(
                f"split: widths are a list of sizes, given {sizes!r} for the {self.shape[-1]} columns of"
                f" {self.tensor!r}",
                where,
            )
        if sum(sizes) != self.shape[-1] or any(isinstance(s, int) and s < 1 for s in sizes):
            raise SpecError(
                f"split: widths {list(sizes)} sum to {sum(sizes)}, {self.tensor!r} has {self.shape[-1]}"
                " columns",
                where,
            )
        at = self.columns[0] if self.columns else 0
        views = []
        for size in sizes:
            columns = None if self.columns is None and size == self.shape[-1] else (at, at + size)
            views.append(replace(self, shape=(*self.shape[:-1], size), columns=columns))
            at = at + size
        return tuple(views)

    def __add__(self, other: Value | float) -> Value:
        return OPERATORS["+"](self, other)

    def __radd__(self, other: float) -> Value:
        return OPERATORS["+"](self, other)

    def __sub__(self, other: Value | float) -> Value:
        return OPERATORS["-"](self, other)

    def __rsub__(self, other: float) -> Value:
        return OPERATORS["-"](other, self)

    def __mul__(self, other: Value | float) -> Value:
        return OPERATORS["*"](self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | float) -> Value:
        return OPERATORS["/"](self, other)

    def __rtruediv__(self, other: float) -> Value:
        return OPERATORS["/"](other, self)

    def __pow__(self, n: int) -> Value:
        return OPERATORS["**"](self, n)

    def __neg__(self) -> Value:
        return OPERATORS["*"](self, -1.0)

    def __lt__(self, other: Value | float) -> Value:
        return OPERATORS["<"](self, other)

    def __le__(self, other: Value | float) -> Value:
        return OPERATORS["<="](self, other)

    def __gt__(self, other: Value | float) -> Value:
        return OPERATORS["<"](other, self)

    def __ge__(self, other: Value | float) -> Value:
        return OPERATORS["<="](other, self)

    def __matmul__(self, other: Value) -> Value:
        return OPERATORS["@"](self, other)

    def permute(self, dims: Sequence[int]) -> Value:
        """tg.permute(x, dims)."""
        return OPERATORS["permute"](self, dims)

    def transpose(self, a: int, b: int) -> Value:
        """tg.transpose(x, a, b)."""
        return OPERATORS["transpose"](self, a, b)

    def reshape(self, shape: Sequence[Size]) -> Value:
        """tg.reshape(x, shape)."""
        return OPERATORS["reshape"](self, shape)

    def __getitem__(self, key: Any) -> Value:
        """x[..., a:b], x[:, a:b]: a view of columns. x[:, a:b, ::2], x[:, 0]: a copy, but where all of it is
        taken.

        Raises:
            SpecError: it takes nothing, holds other than slices and whole numbers, or more of them than x has
                dimensions, or leaves one dimension.
        """
        where = caller()
        given = list(key) if isinstance(key, tuple) else [key]
        if given.count(Ellipsis) < 2:
            at = given.index(Ellipsis) if Ellipsis in given else len(given)
            missing = [slice(None)] * (len(self.shape) - len(given) + (Ellipsis in given))
            given[at : at + 1] = missing
        whole = all(type(k) is int or (isinstance(k, slice) and _whole_numbers(k)) for k in given)
        if not whole or len(given) != len(self.shape):
            raise SpecError(
                f"{self.tensor!r}[{key!r}]: a view is of columns, x[..., a:b], a copy of places, x[:, a:b:2]"
                f" or x[:, a], with whole numbers for its {len(self.shape)} dimensions",
                where,
            )
        return OPERATORS["[]"](self, given, None, where)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch asks where one of its functions is given a Value: a spec is declared, not computed."""
        import tilegen

        name = str(getattr(function, "__name__", function)).strip("_")
        ops = sorted(op for op in dir(tilegen) if callable(getattr(tilegen, op)) and op.islower())
        here = f"; tg.{name}" if name in ops else nearest(name, ops)
        raise SpecError(f"torch's {name} was given a tensor of a spec, which has no elements{here}", caller())

    def __iter__(self) -> Iterator[Value]:
        raise SpecError(
            f"{self.tensor!r} is one tensor; use .chunk(n) or .split(sizes) for column views", caller()
        )


def _whole_numbers(key: slice) -> bool:
    return key.step != 0 and all(n is None or type(n) is int for n in (key.start, key.stop, key.step))


_active: ContextVar[Builder | None] = ContextVar("tilegen_builder", default=None)


def builder(what: str) -> Builder:
    """The builder of the spec that is running; an error when none is."""
    active = _active.get()
    if active is None:
        raise SpecError(f"tg.{what} is called outside a @tg.spec function", caller())
    return active


@contextmanager
def building(name: str) -> Iterator[Builder]:
    token = _active.set(Builder(name))
    try:
        yield builder("spec")
    finally:
        _active.reset(token)


def is_size(n: object) -> bool:
    return (isinstance(n, int) and not isinstance(n, bool)) or hasattr(n, "free_symbols")
