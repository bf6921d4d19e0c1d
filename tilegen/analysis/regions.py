"""Index expressions and boxes: printed as Python or C, evaluated over arrays, and inverted.

SymPy's own C printers turn floor(i/8) into floating point; these keep integers, with floor semantics at
negatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import sympy as sp
from sympy.printing.str import StrPrinter

from tilegen.errors import AnalysisError
from tilegen.frontend.dims import Dim
from tilegen.ops.base import Box, Interval, K, OpInstance, spread
from tilegen.ops.extrema import ends, like
from tilegen.ops.listed import Entry, tables_of

Array = np.ndarray[Any, Any]


def quotient(e: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    """Numerator and denominator of the argument of a floor or ceiling."""
    p, q = sp.fraction(sp.together(e))
    return p, q


class _Integer(StrPrinter):
    """What the Python and C printers share: an index expression holds no fraction outside floor and
    ceiling."""

    def _print_Rational(self, e: sp.Rational) -> str:
        raise AnalysisError(f"a fraction {e} in an index expression")

    def _print_Mul(self, e: sp.Mul) -> str:
        if not e.as_coeff_Mul()[0].is_Integer:
            raise AnalysisError(f"a fraction {e} in an index expression")
        return str(super()._print_Mul(e))

    def _print_Pow(self, e: sp.Pow, rational: bool = False) -> str:
        """The product that it is: pixels of an image whose height and width move together."""
        if not (e.exp.is_Integer and e.exp.is_positive):
            raise AnalysisError(f"a power {e} in an index expression")
        return f"({'*'.join([f'({self._print(e.base)})'] * int(e.exp))})"

    def _print_Entry(self, e: Entry) -> str:
        table, place = e.args
        return f"{self._print(table)}[{_bare(self._print(place))}]"

    def _nested(self, name: str, args: Sequence[sp.Expr]) -> str:
        head, *rest = (self._print(a) for a in sorted(args, key=sp.default_sort_key))
        for argument in rest:
            head = f"{name}({head}, {argument})"
        return head


class _PythonPrinter(_Integer):
    def _print_floor(self, e: sp.floor) -> str:
        p, q = quotient(e.args[0])
        return f"(({self._print(p)}) // ({self._print(q)}))"

    def _print_ceiling(self, e: sp.ceiling) -> str:
        p, q = quotient(e.args[0])
        return f"(-((-({self._print(p)})) // ({self._print(q)})))"

    def _print_Mod(self, e: sp.Mod) -> str:
        return f"(({self._print(e.args[0])}) % ({self._print(e.args[1])}))"

    def _print_Min(self, e: sp.Min) -> str:
        return self._nested("minimum", e.args)

    def _print_Max(self, e: sp.Max) -> str:
        return self._nested("maximum", e.args)


class _CPrinter(_Integer):
    """C integers: `/` and `%` where the numerator is known to be nonnegative, tg_fdiv and tg_mod (floor
    semantics) elsewhere."""

    def _print_floor(self, e: sp.floor) -> str:
        p, q = quotient(e.args[0])
        return (
            f"({self._term(p)} / {self._print(q)})"
            if p.is_nonnegative
            else f"tg_fdiv({self._print(p)}, {self._print(q)})"
        )

    def _print_ceiling(self, e: sp.ceiling) -> str:
        p, q = quotient(e.args[0])
        if isinstance(p, Dim):
            return f"(({self._print(p)} + {self._print(q - 1)}) / {self._print(q)})"
        return f"tg_cdiv({self._print(p)}, {self._print(q)})"

    def _print_Mod(self, e: sp.Mod) -> str:
        p, q = e.args
        return (
            f"({self._term(p)} % {self._print(q)})"
            if p.is_nonnegative
            else f"tg_mod({self._print(p)}, {self._print(q)})"
        )

    def _print_Mul(self, e: sp.Mul) -> str:
        return str(super()._print_Mul(e)).replace(" * ", "*").replace("*", " * ")

    def _print_Dim(self, e: Any) -> str:
        return f"sizes.{e.name}"

    def _term(self, p: sp.Expr) -> str:
        """Parenthesised when it is a sum: a product divides as it stands."""
        return f"({self._print(p)})" if isinstance(p, sp.Add) else self._print(p)

    def _print_Min(self, e: sp.Min) -> str:
        return self._nested("tg_min", e.args)

    def _print_Max(self, e: sp.Max) -> str:
        return self._nested("tg_max", e.args)


@lru_cache(maxsize=65536)
def to_python(e: Any) -> str:
    """Text to be compiled. Terms stand as they lie: nobody reads them, and SymPy sorts them slowly."""
    return str(_PythonPrinter({"order": "none"}).doprint(sp.sympify(e)))


@lru_cache(maxsize=65536)
def to_c(e: Any, names: tuple[tuple[str, str], ...] = ()) -> str:
    """C text of an index expression; `names` renames symbols."""
    expression = sp.sympify(e)
    if names:
        # the printer needs the symbols' signs, so they are renamed, not replaced by text
        table = dict(names)
        expression = expression.xreplace(
            {
                s: sp.Symbol(table[s.name], integer=True, nonnegative=True)
                for s in expression.free_symbols
                if s.name in table
            }
        )
    return _bare(str(_CPrinter().doprint(expression)))


def _bare(text: str) -> str:
    """Without parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n < len(text) - 1:
            return text
    return text[1:-1]


@lru_cache(maxsize=65536)
def compiled(e: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """The expression as a function of ints or arrays."""
    tables = {t.name: np.array(t.values, dtype=np.int64) for t in tables_of(e)}
    known = {"minimum": np.minimum, "maximum": np.maximum, **tables}
    return eval(f"lambda {', '.join(names)}: {to_python(e)}", known)


def evaluate(e: Any, values: Mapping[str, Any]) -> Any:
    """An expression over ints or arrays of the named coordinates."""
    names = tuple(values)
    return compiled(e, names)(*values.values())


def full(value: Any, n: int) -> Array:
    """Whole numbers for n entries: an array of as many, or a number of them all. NumPy's broadcast_to is slow
    for what planning asks ten thousand times."""
    found = np.asarray(value, dtype=np.int64)
    return found if found.shape == (n,) else np.full(n, found)


@lru_cache(maxsize=1 << 16, typed=True)
def pretty(e: Any) -> str:
    """As a person writes it: ⌊a/b⌋, 128·i, min(…). Plans of many sizes, and of layers alike, ask the same."""
    return str(_Pretty().doprint(sp.sympify(e)))


class _Pretty(StrPrinter):
    def _print_floor(self, e: sp.floor) -> str:
        return f"⌊{self._fraction(e.args[0])}⌋"

    def _print_ceiling(self, e: sp.ceiling) -> str:
        return f"⌈{self._fraction(e.args[0])}⌉"

    def _fraction(self, e: sp.Expr) -> str:
        p, q = quotient(e)
        top = f"({self._print(p)})" if isinstance(p, sp.Add) else self._print(p)
        return self._print(p) if q == 1 else f"{top}/{self._print(q)}"

    def _print_Min(self, e: sp.Min) -> str:
        return f"min({', '.join(self._print(a) for a in sorted(e.args, key=sp.default_sort_key))})"

    def _print_Max(self, e: sp.Max) -> str:
        return f"max({', '.join(self._print(a) for a in sorted(e.args, key=sp.default_sort_key))})"

    def _print_Mod(self, e: sp.Mod) -> str:
        return f"({self._print(e.args[0])} mod {self._print(e.args[1])})"

    def _print_Entry(self, e: Entry) -> str:
        return f"{self._print(e.args[0])}[{self._print(e.args[1])}]"

    def _print_Mul(self, e: sp.Mul) -> str:
        return super()._print_Mul(e).replace("*", "·")


def pretty_box(box: Box) -> str:
    """[lo, hi) x … of a box."""

    def one(i: Interval) -> str:
        step = f" step {i.stride}" if i.stride != 1 else ""
        return f"{pretty(i.lo)} : {pretty(i.hi)}{step}"

    return "[" + ", ".join(one(i) for i in box) + "]"


@dataclass(frozen=True)
class Blocking:
    """One dimension of a tensor as its writer cuts it: block n holds elements [lo, hi) of tile coordinates n
    stands for.

    lo = offset + Σ coefficient·coordinate with the largest coefficient first; the block's index is the
    mixed-radix number of the coordinates, so that blocks ascend with elements and the blocks under a range of
    elements are a range of blocks.
    """

    coords: tuple[sp.Symbol, ...]
    coefficients: tuple[Any, ...]
    extents: tuple[Any, ...]
    offset: Any

    @property
    def count(self) -> Any:
        return math.prod(self.extents)

    @property
    def index(self) -> Any:
        """Block index of a tile, in its coordinates."""
        n: Any = sp.Integer(0)
        for symbol, extent in zip(self.coords, self.extents, strict=True):
            n = n * extent + symbol
        return n

    def block_of(self, element: Any) -> Any:
        """Block index of an element."""
        n: Any = sp.Integer(0)
        rest = sp.sympify(element) - self.offset
        for position, (coefficient, extent) in enumerate(zip(self.coefficients, self.extents, strict=True)):
            n = n * extent + divide(rest, coefficient)
            if position + 1 < len(self.coefficients):
                rest = modulo(rest, coefficient)
        return n


@lru_cache(maxsize=4096)  # ops alike, of which a net has many, ask for the same
def divide(p: Any, q: Any) -> Any:
    """⌊p/q⌋ with the whole parts taken out: ⌊(128·i + 127)/128⌋ = i."""
    p, q = spread(p), sp.sympify(q)
    if q == 1:
        return p
    if isinstance(p, (sp.Min, sp.Max)):
        return like(p, *(divide(a, q) for a in p.args))  # floor is monotone
    affine = _affine(p) if q.is_Integer and q > 0 else None
    if affine:
        return _divided(*affine, int(q))
    out, rest = sp.Integer(0), sp.Integer(0)
    for term in sp.Add.make_args(p):
        share = term / q
        if share.is_integer:
            out += share
        elif share.is_number:
            out += sp.floor(share)
            rest += term - q * sp.floor(share)
        else:
            rest += term
    rest = _drop_remainder(rest, q)
    if rest.is_number and q.is_number and 0 <= rest < q:
        return out
    rounded = sp.floor(rest / q)
    least, most = ends(rounded) or (0, 1)
    return out + (least if least == most else rounded)


Terms = list[tuple[int, sp.Symbol]]


def _affine(p: Any) -> tuple[int, Terms] | None:
    """Constant and terms of c + Σ n·s over whole c and n and nonnegative whole symbols that have no most;
    None of anything else."""
    constant, terms = 0, Terms()
    for term in sp.Add.make_args(p):
        n, s = term.as_coeff_Mul()
        if not n.is_Integer:
            return None
        if s is sp.S.One:
            constant += int(n)
        elif s.is_Symbol and not isinstance(s, Dim) and s.is_integer and s.is_nonnegative:
            terms.append((int(n), s))
        else:
            return None
    return constant, terms


def _divided(constant: int, terms: Terms, q: int) -> Any:
    """⌊(c + Σ n·s)/q⌋, as below, by numbers: SymPy asks long whether such a floor is a number, which it never
    is."""
    whole, rest = divmod(constant, q)
    out = sp.Add(whole, *(n // q * s for n, s in terms if n % q == 0))
    left = [(n, s) for n, s in terms if n % q]
    if not left:
        return out
    g = math.gcd(q, *(n for n, _ in left))
    return out + sp.floor(sp.Add(rest // g * g, *(n * s for n, s in left)) / q, evaluate=False)


def _drop_remainder(p: Any, q: Any) -> Any:
    """⌊(g·y + r)/q⌋ = ⌊(g·y + g·⌊r/g⌋)/q⌋ for g dividing q: 64·k + 63 over 256 is 64·k over 256."""
    constant, terms = p.as_coeff_Add()
    g = q
    for term in sp.Add.make_args(terms):
        coefficient, rest = term.as_coeff_Mul()
        if not (coefficient.is_Integer and rest.is_integer):
            return p
        g = sp.gcd(g, coefficient)
    return terms + g * (constant // g) if g.is_Integer and constant.is_Integer and terms != 0 else p


def modulo(p: Any, q: Any) -> Any:
    return sp.expand(p - q * divide(p, q))


def blocking(b: OpInstance, interval: Interval) -> Blocking:
    """Invert one dimension of a write map; AnalysisError when it is not affine with positive whole
    coefficients."""
    lo = sp.expand(interval.lo)
    symbols = sorted((s for s in lo.free_symbols if s in b.coords), key=lambda s: s.name)
    extents = dict(zip(b.coords, b.grid, strict=True))
    parts = []
    for s in symbols:
        coefficient = lo.coeff(s)
        if (
            coefficient.free_symbols & set(symbols)
            or not coefficient.is_positive
            or not coefficient.is_integer
        ):
            raise AnalysisError(
                f"op {b.op.name!r}: the write map {pretty(lo)} is not affine in {s} with a positive whole"
                " coefficient"
            )
        parts.append((s, coefficient, extents[s]))
    offset = lo.subs(dict.fromkeys(symbols, 0))
    if sp.expand(lo - offset - sum(c * s for s, c, _ in parts)) != 0:
        raise AnalysisError(
            f"op {b.op.name!r}: the write map {pretty(lo)} is not affine in its tile coordinates"
        )
    # the outer coordinate has the larger coefficient; an open size counts as large
    parts.sort(key=lambda part: float(part[1].subs(dict.fromkeys(part[1].free_symbols, 10**6))), reverse=True)
    return Blocking(
        tuple(p[0] for p in parts), tuple(p[1] for p in parts), tuple(p[2] for p in parts), offset
    )


MOST_TILES = 1 << 22  # of an op: every tile is listed in dozens of arrays, and proved


def tiles_of(b: OpInstance) -> Tiles:
    """The tiles of an op; kept with it."""
    return b.__dict__.setdefault("_tiles", Tiles(b))


@dataclass(frozen=True)
class Tiles:
    """All tiles of an op as arrays: one per coordinate, in row-major order of the grid."""

    bound: OpInstance

    @cached_property
    def grid(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.bound.grid)

    @cached_property
    def count(self) -> int:
        """AnalysisError where there are more than can be listed."""
        n = math.prod(self.grid)
        if n > MOST_TILES:
            op = self.bound.op
            raise AnalysisError(
                f"{op.name!r} has {n:,} tiles of {'x'.join(map(str, op.tile))}, "
                f"at most {MOST_TILES:,} can be planned; choose larger tiles or smaller sizes",
                op.where,
            )
        return n

    @cached_property
    def coords(self) -> dict[str, Array]:
        axes = np.unravel_index(np.arange(self.count), self.grid) if self.grid else ()
        return {c.name: a.astype(np.int64) for c, a in zip(self.bound.coords, axes, strict=True)}

    def value(self, e: Any, **more: Any) -> Array:
        """An expression at every tile (int64, one entry per tile, or broadcast against `more`)."""
        result = evaluate(e, {**self.coords, **more})
        return np.broadcast_to(
            np.asarray(result, dtype=np.int64), np.broadcast_shapes(np.shape(result), (self.count,))
        ).copy()

    @cached_property
    def steps(self) -> Array:
        return self.value(self.bound.steps)


def depends_on_step(box: Box) -> bool:
    return any(K in sp.sympify(e).free_symbols for i in box for e in (i.lo, i.hi))
