"""Rows that fewer threads than a warp share, on the emulator: norms, softmax, reductions and their like."""

from __future__ import annotations

import pytest

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case


@tg.spec
def narrow(M=300, N=128, dtype="bfloat16"):
    """What is made of whole rows, each of its own."""
    x = tg.input("x", (M, N), dtype)
    w, bias = tg.weight("w", (N,), dtype), tg.weight("bias", (N,), dtype)
    return (
        tg.rms_norm(x, w, name="rms"),
        tg.layer_norm(x, w, bias, name="layer"),
        tg.softmax(x, scale=0.5, name="soft"),
        tg.log_softmax(x, name="log"),
        tg.sum(x, name="total"),
        tg.max(x, name="most"),
        tg.logsumexp(x, name="power"),
    )


@tg.spec
def causal(S=256, dtype="float16"):
    return tg.softmax(tg.input("x", (S, S), dtype), causal=True, name="y")


@tg.spec
def largest(M=300, N=72, k=3, dtype="bfloat16"):
    return tg.topk(tg.input("x", (M, N), dtype), k, name="y")


ROWS = Case("rows of 128", narrow, {})
WIDTHS = [
    Case(f"rows of {n}", narrow, {"N": n, "M": m, "dtype": t})
    for n, m, t in (
        (8, 300, "bfloat16"),
        (40, 17, "float16"),
        (72, 300, "float32"),
        (256, 130, "bfloat16"),
        (264, 70, "bfloat16"),
        (512, 33, "float32"),
        (1032, 9, "bfloat16"),
        (77, 70, "float16"),
    )
]
CASES = [ROWS, *WIDTHS, Case("rows as far as the diagonal", causal, {}), Case("three of 72", largest, {})]
FAULTS = [
    ("a neighbour's number is left out", "/ 2; by > 0; by /= 2", "/ 2; by > 1; by /= 2"),
    ("the next row's number is taken", "tg_min(THREADS, 32) / 2; by", "tg_min(THREADS, 32); by"),
    ("rows are passed over", "row = first + thread / THREADS,", "row = first + thread / THREADS / 2 * 2,"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_narrow_rows_are_right_under_every_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(2), target=target) == ""


@pytest.mark.parametrize("what, old, new", FAULTS, ids=[what for what, *_ in FAULTS])
def test_a_fault_among_narrow_rows_is_seen(what: str, old: str, new: str) -> None:
    assert emulated(ROWS, range(1), replaced(old, new)) != ""
