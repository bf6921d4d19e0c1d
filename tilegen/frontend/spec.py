"""What the user declares: tensors and ops, collected into a Program by running a @spec function once.

A spec is pure data: nothing here computes on elements, imports torch or knows a GPU. Sizes are ints, or SymPy
symbols where they are left open for `explain`.
"""

from __future__ import annotations

import inspect
import keyword
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from tilegen.errors import SpecError, nearest
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import DTYPES, PAIRED, UNIT, Call, Operand, Program, Size, Tensor, listed

# names become members, functions and enumerators of generated C++ and CUDA
RESERVED = frozenset(keyword.kwlist) | frozenset(
    """alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const
    constexpr const_cast continue co_await co_return co_yield decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor errno
    NULL EOF NAN INFINITY assert""".split()
)

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

    def operand(self, form: str, where: str, pairs: bool = False) -> Operand:
        """This value as an operand of an op that sees it in `form`; pairs: one that takes numbers of one
        byte."""
        if self.dtype in PAIRED and not pairs:
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


def check_name(name: str, where: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or "__" in name:
        raise SpecError(
            f"names must be identifiers without a leading or double underscore, given {name!r}", where
        )
    if name.startswith("tg_"):
        raise SpecError(
            f"{name!r}: names that begin with tg_ are those of the generated code's own functions and"
            " members",
            where,
        )
    if name in RESERVED or not name.isascii():
        raise SpecError(
            f"{name!r} cannot be a name in generated C++; expected an ASCII identifier that is no word of C++"
            " or Python",
            where,
        )


def is_size(n: object) -> bool:
    return (isinstance(n, int) and not isinstance(n, bool)) or hasattr(n, "free_symbols")


def check_shape(name: str, shape: Sequence[Size], where: str) -> tuple[Size, ...]:
    if isinstance(shape, (int, str)) or not isinstance(shape, Sequence):
        raise SpecError(f"{name!r}: a shape is a tuple of sizes, given {shape!r}", where)
    if not 1 <= len(shape) <= 4:
        raise SpecError(f"{name!r}: 1 to 4 dimensions are supported, given {tuple(shape)}", where)
    for size in shape:
        if isinstance(size, (bool, float)):
            raise SpecError(f"{name!r}: sizes are ints, given {size!r} in {tuple(shape)}", where)
        if isinstance(size, int) and size < 1:
            raise SpecError(f"{name!r}: every size must be at least 1, given {tuple(shape)}", where)
        if not isinstance(size, int) and not hasattr(size, "free_symbols"):
            raise SpecError(f"{name!r}: sizes are ints or symbols, given {size!r}", where)
    return tuple(shape)


def _declare(role: str, name: str, shape: Sequence[Size], dtype: str) -> Value:
    where = caller()
    roles = {"int32": ("input",), **dict.fromkeys(PAIRED, ("input", "weight"))}
    if not isinstance(dtype, str) or dtype not in DTYPES or role not in roles.get(dtype, (role,)):
        raise SpecError(
            f"{name!r}: dtype must be one of float16, bfloat16, float32 (an input also int32, inputs and"
            f" weights of linears float8_e4m3fn), given {dtype!r}",
            where,
        )
    shape = check_shape(name, shape, where)
    if dtype in PAIRED and not (isinstance(shape[-1], int) and shape[-1] % UNIT == 0):
        hint = f"; pad them to {-(-shape[-1] // UNIT) * UNIT}" if isinstance(shape[-1], int) else ""
        raise SpecError(
            f"{name!r}: rows of {dtype} are whole units of {UNIT} bytes, given {shape}{hint}", where
        )
    return builder(role).declare(Tensor(name, shape, dtype, role, where))


def input(name: str, shape: Sequence[Size], dtype: str = "bfloat16") -> Value:
    """An activation, given at each call.

    name: an ASCII identifier. shape: one to four sizes. dtype: bfloat16, float16 or float32; int32 for a
    position, and for numbers of rows and columns; float8_e4m3fn for a linear, in rows of sixteens.

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
    return program


def _leave_out(b: Builder, results: set[str]) -> None:
    b.calls = [c for c in b.calls if c.result not in results]
    b.tensors = {name: t for name, t in b.tensors.items() if name not in results}


def check_acyclic(program: Program) -> None:
    """Every op reads only tensors that are given or made by an op before it."""
    made = {t.name for t in program.arguments}
    for c in program.calls:
        for operand in c.operands:
            if operand.tensor not in made:
                raise SpecError(
                    f"cycle: {c.name!r} reads {operand.tensor!r}, which no op before it makes", c.where
                )
        made.add(c.result)
