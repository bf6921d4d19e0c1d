"""Index expressions: C, Python and SymPy agree, also at negative values; division is exact; blockings
invert."""

import ctypes
import random
import subprocess
from functools import lru_cache

import numpy as np
import pytest
import sympy as sp

from tilegen.analysis import regions
from tilegen.analysis.regions import Blocking, compiled, divide, evaluate, modulo, pretty, to_c, to_python
from tilegen.errors import AnalysisError
from tilegen.ops.base import coord

I, J = coord("i"), coord("j")  # never negative: plain C division
X, Y = sp.Symbol("x", integer=True), sp.Symbol("y", integer=True)  # any sign: floor division
NAMES = ("i", "j", "x", "y")
POINTS = [
    (i, j, x, y)
    for i in (0, 1, 7, 64)
    for j in (0, 3, 129)
    for x in (-130, -64, -1, 0, 1, 63, 200)
    for y in (-9, -1, 0, 5)
]


def random_expression(chance, depth=3):
    """A tile-coordinate expression: sums, products by constants, floors, ceilings, remainders, minima and
    maxima."""
    if depth == 0:
        return chance.choice([I, J, X, Y, sp.Integer(chance.randint(-40, 40))])
    a, b = (random_expression(chance, depth - 1) for _ in range(2))
    q = sp.Integer(chance.choice([1, 2, 3, 7, 16, 64, 128]))
    return chance.choice(
        [
            lambda: a + b,
            lambda: a - b,
            lambda: chance.choice([-3, -1, 2, 5, 64]) * a,
            lambda: sp.floor(a / q),
            lambda: sp.ceiling(a / q),
            lambda: sp.Mod(a, q),
            lambda: sp.Min(a, b),
            lambda: sp.Max(a, b),
            lambda: divide(a, q),
            lambda: modulo(a, q),
        ]
    )()


@lru_cache
def expressions():
    return [random_expression(random.Random(seed)) for seed in range(160)]


HEAD = """
static int tg_min(int a, int b) { return a < b ? a : b; }
static int tg_max(int a, int b) { return a > b ? a : b; }
static int tg_fdiv(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static int tg_cdiv(int a, int b) { return tg_fdiv(a + b - 1, b); }
static int tg_mod(int a, int b) { return a - b * tg_fdiv(a, b); }
"""


def exact(e, point):
    """By SymPy, with rationals: the meaning."""
    return int(sp.sympify(e).subs(dict(zip((I, J, X, Y), point, strict=True))))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expressions")
    cases = "".join(f"    case {n}: return {to_c(e)};\n" for n, e in enumerate(expressions()))
    source = (
        HEAD
        + "int value(int n, int i, int j, int x, int y) {\n  switch (n) {\n"
        + cases
        + "  }\n  return 0;\n}\n"
    )
    (folder / "e.c").write_text(source)
    done = subprocess.run(
        ["gcc", "-w", "-O1", "-shared", "-fPIC", "-o", folder / "e.so", folder / "e.c"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "e.so"))


def test_c_and_python_agree(library):
    columns = {name: np.array([p[n] for p in POINTS]) for n, name in enumerate(NAMES)}
    for n, e in enumerate(expressions()):
        values = np.broadcast_to(evaluate(e, columns), (len(POINTS),)).tolist()
        assert values == [library.value(n, *p) for p in POINTS], f"{e}: {to_c(e)} against {to_python(e)}"
        assert values[:3] == [int(compiled(e, NAMES)(*p)) for p in POINTS[:3]]  # on ints as on arrays


@pytest.mark.parametrize("seed", range(8))
def test_python_and_sympy_agree(seed):
    chance = random.Random(1000 + seed)
    for e in chance.sample(expressions(), 8):
        for p in chance.sample(POINTS, 3):
            assert int(evaluate(e, dict(zip(NAMES, p, strict=True)))) == exact(e, p), (e, p)


def test_the_expressions_are_worth_it():
    """They use everything, and negative numerators."""
    text = " ".join(to_c(e) for e in expressions())
    for function in ("tg_min", "tg_max", "tg_fdiv", "tg_cdiv", "tg_mod", " / ", " % "):
        assert function in text


def test_the_helpers_are_those_of_the_template():
    from tilegen.config import own_templates

    template = own_templates() / "schedule.j2"
    text = template.read_text()
    for line in HEAD.strip().splitlines():
        assert line.removeprefix("static ") in text


@pytest.mark.parametrize(
    ("e", "c", "python", "words"),
    [
        (128 * I + 64 * J, "128 * i + 64 * j", "64*j + 128*i", "128·i + 64·j"),
        (sp.floor(I / 8), "i / 8", "((i) // (8))", "⌊i/8⌋"),
        (sp.floor((I + J) / 8), "(i + j) / 8", "((i + j) // (8))", "⌊(i + j)/8⌋"),
        (sp.floor((X - 1) / 8), "tg_fdiv(x - 1, 8)", "((-1 + x) // (8))", "⌊(x - 1)/8⌋"),
        (sp.Mod(I, 4), "i % 4", "((i) % (4))", "(i mod 4)"),
        (sp.Mod(X, 4), "tg_mod(x, 4)", "((x) % (4))", "(x mod 4)"),
        (sp.Min(I + 64, 100), "tg_min(100, i + 64)", "minimum(100, 64 + i)", "min(100, i + 64)"),
        (I**2, "(i)*(i)", "((i)*(i))", "i**2"),
    ],
)
def test_printed_forms(e, c, python, words):
    assert (to_c(e), to_python(e), pretty(e)) == (c, python, words)


def test_renaming_keeps_signs():
    assert to_c(sp.floor(I / 8), (("i", "step"),)) == "step / 8"


@pytest.mark.parametrize("e", [I / 3, 1 / I, sp.sqrt(I), sp.Rational(1, 2)], ids=str)
def test_what_is_no_index(e):
    for printer in (to_c, to_python):
        with pytest.raises(AnalysisError, match="fraction|power"):
            printer(e)


@pytest.mark.parametrize("seed", range(40))
def test_divide_and_modulo(seed):
    """p = q·⌊p/q⌋ + p mod q with 0 ≤ p mod q < q, and divide simplifies without changing the value."""
    chance = random.Random(seed)
    q = chance.choice([1, 2, 3, 16, 48, 128, 256])
    terms = [chance.choice([-1, 1, 2, 16, 64, 128, -256]) * s for s in (I, J, X)]
    p = sum(terms[: chance.randint(1, 3)], sp.Integer(chance.randint(-300, 300)))
    if chance.random() < 0.3:
        p = (
            sp.Min(p, chance.randint(0, 500))
            if chance.random() < 0.5
            else sp.Max(p, chance.randint(-100, 100))
        )
    quotient, rest = divide(p, q), modulo(p, q)
    for _ in range(12):
        point = (chance.randint(0, 300), chance.randint(0, 300), chance.randint(-300, 300), 0)
        value, got, left = (exact(e, point) for e in (p, quotient, rest))
        assert got == value // q and left == value % q, (p, q, point)


WHOLE = [
    (128 * I + 127, 128, I),
    (128 * I, 64, 2 * I),
    (64 * I + 63, 256, sp.floor(I / 4)),
    (I, 1, I),
    (sp.Integer(7), 8, 0),
]


@pytest.mark.parametrize("seed", range(60))
def test_numbers_divide_as_sympy_would(seed, monkeypatch):
    """Sums over coordinates are divided by their numbers: to the very expression of the general way."""
    chance = random.Random(seed)
    terms = [chance.choice([-192, -64, -1, 0, 1, 3, 12, 64, 96, 256]) * s for s in (I, J, coord("k"))]
    p, q = sp.Add(chance.randint(-300, 300), *terms), chance.choice([1, 2, 3, 8, 64, 96, 128])
    by_numbers = divide.__wrapped__(p, q)
    assert regions._affine(p) is not None
    monkeypatch.setattr(regions, "_affine", lambda p: None)
    assert divide.__wrapped__(p, q) == by_numbers


@pytest.mark.parametrize(("p", "q", "expected"), [*WHOLE, (sp.Integer(-1), 8, -1), (X, 1, X)])
def test_whole_parts_are_taken_out(p, q, expected):
    assert sp.simplify(divide(p, q) - expected) == 0


BLOCKINGS = [
    ((16,), (5,), 0),
    ((16,), (5,), 48),
    ((100, 16), (3, 7), 0),
    ((96, 32, 8), (2, 3, 4), 10),
    ((1,), (9,), 0),
]


@pytest.mark.parametrize(("coefficients", "extents", "offset"), BLOCKINGS)
def test_blockings_invert(coefficients, extents, offset):
    """Every element of a block gives the block's index, and indices ascend with elements."""
    symbols = [coord(n) for n in ("i", "j", "k")][: len(extents)]
    cut = Blocking(tuple(symbols), coefficients, extents, sp.Integer(offset))
    assert cut.count == np.prod(extents)
    seen = []
    for at in np.ndindex(*extents):
        index = int(cut.index.subs(dict(zip(symbols, at, strict=True))))
        lo = offset + sum(c * n for c, n in zip(coefficients, at, strict=True))
        outer = [c * (n + 1) for c, n in zip(coefficients, at, strict=True)]
        last = (
            offset
            + min(
                sum(c * n for c, n in zip(coefficients[:d], at[:d], strict=True)) + outer[d]
                for d in range(len(at))
            )
            - 1
        )
        # the last block of an outer one may be cut short
        assert {int(cut.block_of(e)) for e in (lo, (lo + last) // 2, last)} == {index}
        seen.append((lo, index))
    assert [index for _, index in sorted(seen)] == list(range(cut.count))
    element = sp.Symbol("e", integer=True, nonnegative=True)
    formula = cut.block_of(element)
    assert [int(formula.subs(element, lo)) for lo, _ in seen] == [index for _, index in seen]
