"""Epilogue expressions are compiled by Python and C++: everything but calls of known functions, + - * /,
names and numbers is refused."""

import pytest
import torch

import tilegen as tg
from tilegen.ops.pointwise import FUNCTIONS, check_expression, evaluate

ALLOWED = [
    "e0",
    "e0 + e1",
    "-1.5 * e0",
    "scale(e0, -2.0)",
    "relu(e0 - e1 * 0.5)",
    "batch_norm(e0, e1, e1, e1, e1, 1e-05)",
    "((e0))",
    "2 * e0",
    "e0 / e1",
    "1 / e0",
    "clamp(tanh(e0), -0.5, 0.5)",
]
REFUSED = [
    ("__import__('os')", "__import__"),
    ("open('f')", "open"),
    ("e0.data", "e0.data"),
    ("e0[0]", "e0[0]"),
    ("e0()", "e0()"),
    ("relu", "relu"),
    ("relu()", "relu()"),
    ("relu(e0, e1)", "relu(e0, e1)"),
    ("relu(e0, inplace=e1)", "inplace"),
    ("relu(*e0)", "relu(*e0)"),
    ("batch_norm(e0, e1)", "batch_norm(e0, e1)"),
    ("sin(e0)", "sin(e0)"),
    ("e0 * (1 / 2)", "1 / 2"),
    ("e0 ** 2", "e0 ** 2"),
    ("e0 @ e1", "e0 @ e1"),
    ("e0 // 2", "e0 // 2"),
    ("e0 and e1", "e0 and e1"),
    ("not e0", "not e0"),
    ("~e0", "~e0"),
    ("+e0", "+e0"),
    ("-e0", "-e0"),
    ("e0 if e1 else e0", "if"),
    ("e0 > 0", "e0 > 0"),
    ("(e0, e1)", "(e0, e1)"),
    ("[e0]", "[e0]"),
    ("{e0}", "{e0}"),
    ("f'{e0}'", "f'{e0}'"),
    ("lambda: e0", "lambda"),
    ("(e0 := e1)", ":="),
    ("[e0 for e0 in e1]", "for"),
    ("await e0", "await"),
    ("e2", "e2"),
    ("acc0", "acc0"),
    ("'e0'", "'e0'"),
    ("None", "None"),
    ("...", "..."),
    ("e0 +", "e0 +"),
    ("e0 e1", "e0 e1"),
    ("e0; e1", "e0; e1"),
    ("e0 = e1", "e0 = e1"),
    ("import os", "import os"),
    ("", "''"),
]
# what Python reads as a number or a comment and C++ reads otherwise
FOREIGN = ["True", "False", "1j", "e0 * 1_000", "e0 * 0o17", "e0 * 1e999", "e0 # e1", "e0\n#define e0 e1\n"]
FOREIGN += ["e0\\\n+ e1", f"e0 * {2**80}", "e\N{FULLWIDTH DIGIT ZERO}"]
TOO_DEEP = ["(" * 300 + "e0" + ")" * 300, "e0" + " + e0" * 20000, "relu(" * 3000 + "e0" + ")" * 3000]


@pytest.mark.parametrize("expression", ALLOWED)
def test_allowed(expression):
    check_expression(expression, {"e0", "e1"})
    x = torch.tensor([[-1.0, 0.5]])
    assert evaluate(expression, {"e0": x, "e1": x.abs()}).shape == x.shape


@pytest.mark.parametrize(("expression", "word"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused(expression, word):
    with pytest.raises(tg.PlanError) as caught:
        check_expression(expression, {"e0", "e1"}, "somewhere:7")
    assert word in str(caught.value)
    assert str(caught.value).startswith("somewhere:7: expression ")


@pytest.mark.parametrize("expression", ["sin(e0)", "e2", "e0 // 2"])
def test_the_message_says_what_is_allowed(expression):
    with pytest.raises(tg.PlanError) as caught:
        check_expression(expression, {"e0", "e1"})
    for word in (*FUNCTIONS, "+ - * /", "e0, e1"):
        assert word in str(caught.value)


@pytest.mark.parametrize("expression", FOREIGN, ids=repr)
def test_what_cpp_reads_otherwise(expression):
    with pytest.raises(tg.PlanError, match="expression"):
        check_expression(expression, {"e0", "e1"})


@pytest.mark.parametrize("expression", TOO_DEEP, ids=lambda e: e[:12])
def test_nesting_without_end(expression):
    with pytest.raises(tg.PlanError) as caught:
        check_expression(expression, {"e0"})
    assert len(str(caught.value)) < 2000


def test_null_bytes_and_surrogates():
    for expression in ("e0\0", "\ud800"):
        with pytest.raises(tg.PlanError, match="expression"):
            check_expression(expression, {"e0"})


@pytest.mark.parametrize("expression", [None, 5, b"e0", ["e0"]], ids=str)
def test_an_expression_is_text(expression):
    with pytest.raises(tg.PlanError, match="expression") as caught:
        check_expression(expression, {"e0"})
    assert repr(expression) in str(caught.value)


def test_evaluation_checks_first():
    with pytest.raises(tg.PlanError, match="__import__"):
        evaluate("__import__('os').getpid()", {"e0": torch.zeros(2, 2)})


def test_evaluation_has_no_builtins():
    assert evaluate("relu(e0)", {"e0": torch.tensor([-1.0, 2.0])}).tolist() == [0.0, 2.0]
    with pytest.raises(tg.PlanError):
        evaluate("print(e0)", {"e0": torch.zeros(1)})


def test_in_a_spec_it_is_a_spec_error():
    @tg.spec
    def wrong():
        return tg.pointwise("open(e0)", tg.input("x", (2, 2), "float32"))

    with pytest.raises(tg.SpecError, match=r"test_expression_failures.py:\d+: expression 'open\(e0\)'"):
        wrong()
