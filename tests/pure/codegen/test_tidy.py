"""A generated kernel holds what it uses and nothing else, in lines that fit; taking the rest out changes no
instruction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import gemms, ops
from tests.gpu.families import drawn
from tests.oracles.sass import Sass
from tests.shares import share
from tilegen.codegen.tidy import WIDTH, fitted, pruned, tidied
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.targets.sm80.emit import generate as portable
from tilegen.targets.sm90 import emit

CASES = {c.name: c for c in (*drawn(20261124, 20), *gemms.HOPPER, *ops.OPS)}
WORD = re.compile(r"\b\w+\b")
FUNCTION = re.compile(r"\bTG_FN [^;{}()=]*?\b(\w+)\s*\(")


def code(text: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', re.sub(r"//.*", "", text))


def uncalled(text: str) -> list[str]:
    """Functions whose name stands nowhere but where they are defined."""
    bare = code(text)
    words, defined = WORD.findall(bare), FUNCTION.findall(bare)
    named = set(defined) - {"operator"}  # which is called without its name
    return sorted(name for name in named if words.count(name) == defined.count(name))


def constants(text: str) -> list[str]:
    """Constants of enums with a value, that nobody names."""
    bare = code(text)
    named = [c for body in re.findall(r"\benum \{(.*?)\}", bare, re.S) for c in re.findall(r"(\w+) =", body)]
    words = WORD.findall(bare)
    return sorted(c for c in set(named) if words.count(c) == named.count(c))


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > WIDTH]


def texts(case: Any) -> list[str]:
    """Of its kernel, of that for packed weights, and of its variants."""
    plan = case.plan()
    weights = frozenset(t.name for t in case.program.arguments if t.role == "weight")
    asked = ((frozenset(), ""), (weights, ""), (weights, "trace"), (frozenset(), "jitter"))
    return [emit.generate(plan, packed, variant).text for packed, variant in asked]


@pytest.mark.parametrize("name", share(list(CASES), 3))
def test_all_functions_are_called_all_constants_named_and_lines_fit(name: str) -> None:
    for text in texts(CASES[name]):
        assert (uncalled(text), constants(text), too_long(text)) == ([], [], [])


@pytest.mark.parametrize("case", gemms.CASES, ids=lambda c: c.name)
def test_so_for_sm_80(case: Any) -> None:
    text = portable(case.plan(target="sm_80"), "sm_80").text
    assert (uncalled(text), constants(text), too_long(text)) == ([], [], [])


@pytest.mark.parametrize("name", ["mlp, M = 64, deep steps", "new rows forwarded, turned", "3 channels"])
def test_the_machine_code_stays_what_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    slim = emit.generate(case.plan()).text
    monkeypatch.setattr(emit, "tidied", lambda text, root: text)
    whole = emit.generate(case.plan()).text
    assert len(whole) > len(slim) and uncalled(whole)
    assert (
        Sass.of(compile_cuda(slim, "sm_90a").code, tmp_path).code
        == Sass.of(compile_cuda(whole, "sm_90a").code, tmp_path).code
    )


# --- on texts of our own ------------------------------------------------------------------------------------

TEXT = """\
// What is here.
#define TG_FN __device__
#define UNUSED 3

// ---- of no use ----

// Never called.
TG_FN int never(int a) { return a; }

// ---- of use ----
enum { A = 1, B = 2, C = A + 4 };  // B is not named

struct held {
  int data;
  enum { SIDE = 3, OTHER = 4 };

  // Not called.
  TG_FN int lost() const { return data; }
  TG_FN int kept() const { return data * SIDE; }
};

template <int N> TG_FN int twice(int a) {
  return N * a;  // never(a) is spoken of
}
template <> TG_FN int twice<3>(int a) { return a; }

extern "C" __global__ void __launch_bounds__(384, 1)
root(held h) {
  h.data = twice<C>(h.kept());
}
"""


def test_what_stays() -> None:
    assert (
        pruned(TEXT, "root")
        == """\
// What is here.
#define TG_FN __device__

// ---- of use ----
enum { A = 1, C = A + 4 };  // B is not named

struct held {
  int data;
  enum { SIDE = 3 };

  TG_FN int kept() const { return data * SIDE; }
};

template <int N> TG_FN int twice(int a) {
  return N * a;  // never(a) is spoken of
}
template <> TG_FN int twice<3>(int a) { return a; }

extern "C" __global__ void __launch_bounds__(384, 1)
root(held h) {
  h.data = twice<C>(h.kept());
}
"""
    )


def test_an_operator_stays_that_is_called_without_its_name() -> None:
    text = "struct all {\n  bool operator()(int) const { return true; }\n  int other() { return 1; }\n};\n"
    text += "void root(all seen) {\n  seen(1);\n}\n"
    assert "operator()" in pruned(text, "root") and "other" not in pruned(text, "root")


def test_nothing_is_taken_out_twice() -> None:
    once = tidied(TEXT, "root")
    assert tidied(once, "root") == once


def test_lines_are_broken_between_words_and_outside_of_quotes() -> None:
    long = (
        "  f("
        + ", ".join(f'argument{n} + "a string, of words {n}"' for n in range(8))
        + ");  // what it does"
    )
    lines = fitted(long).splitlines()
    assert lines[0] == "  // what it does" and not too_long("\n".join(lines)) and len(lines) > 3
    assert " ".join(line.strip() for line in lines[1:]) == long.strip().partition("  //")[0]
    comment = "// " + " ".join(f"word{n}" for n in range(60)) + ".\n// And so it goes on."
    assert fitted(comment).replace("\n// ", " ").rstrip() == comment.replace("\n// ", " ")
    function = (
        f"  TG_FN int f({', '.join(f'int argument{n}' for n in range(6))}) const {{ return argument0 +"
        " argument1 + argument2; }"
    )
    assert fitted(function).splitlines() == [
        function.partition(" return")[0],
        "    return argument0 + argument1 + argument2;",
        "  }",
    ]
