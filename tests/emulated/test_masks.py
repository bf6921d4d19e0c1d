"""Attention over sequences of lengths, with prefixes, slopes and block masks, on the emulator, and planted
faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.ops import BIASES, MASKS, masked
from tilegen.runtime.data import random_arguments

NAMED = {c.name: c for c in MASKS}
LENGTHS, WINDOW, PREFIX = (
    NAMED["lengths"],
    NAMED["lengths and a window"],
    NAMED["a prefix"],
)
SLOPES = NAMED["slopes, all keys"]
CAPPED = Case("capped", masked, {"B": 1, "S": 40, "alibi": True, "cap": 0.5})
FEW = Case("few queries", masked, {"S": 3, "K": 200, "B": 4, "lengths": True, "alibi": True})
BLOCKS, ODD, TOLD = (
    NAMED[n] for n in ("blocks, keys made", "blocks of odd sizes", "blocks, lengths, slopes")
)
HEADS_BIAS, PADDING, WINDOWS, MADE, FEW_BIAS, CAPPED_BIAS = (
    NAMED[n]
    for n in (
        "a bias of heads, 197 keys",
        "a bias of padding",
        "a bias of windows",
        "a bias that another op makes",
        "a bias of batches and queries, 3 queries",
        "a bias, capped, slopes",
    )
)
FAULTS = [
    ("sm_90a", HEADS_BIAS, "the bias is another query's", "query * Op::BIAS_OF_QUERY", "(query + 1) / 2"),
    (
        "sm_90a",
        HEADS_BIAS,
        "the bias is another head's",
        "tg_op_y>(T, smem, ring, given, 0, blocks, seen,\n            limit, h * 197 + 128 * i",
        "tg_op_y>(T, smem, ring, given, 0, blocks, seen,\n            limit, 128 * i",
    ),
    ("sm_90a", HEADS_BIAS, "one of odd keys is left out", "there - column", "(there - column) / 2 * 2"),
    ("sm_90a", PADDING, "what hides keys is finite", "x == __int_as_float(0xff800000) ? x : ", ""),
    ("sm_90a", PADDING, "what saw no key is divided by 0", "sum[half] == 0.0f ? 0.0f : ", ""),
    ("sm_90a", PADDING, "the bias is another sequence's", "limit, b, ", "limit, 0, "),
    ("sm_90a", WINDOWS, "the bias is another window's", "b % 4", "b / 2"),
    ("sm_90a", MADE, "the bias is not awaited", "tg_waits(g, t, 0, 3, g.step);", ""),
    ("sm_90a", FEW_BIAS, "the bias is another row's", "own / Op::HEADS, rows - 1", "own, rows - 1"),
    ("sm_90a", CAPPED_BIAS, "the bias is capped", "if constexpr (Op::BIAS_LATE) tg_add", "if (false) tg_add"),
    ("sm_80", HEADS_BIAS, "the bias is another query's", "h * 197 + query", "h * 197 + first_query"),
    ("sm_80", HEADS_BIAS, "one of odd keys is left out", "there - column", "(there - column) / 2 * 2"),
    ("sm_80", PADDING, "what hides keys is finite", "x == __int_as_float(0xff800000) ? x : ", ""),
    ("sm_80", WINDOWS, "the bias is another window's", "b % 4", "b / 2"),
    ("sm_80", CAPPED_BIAS, "the bias is dropped", "x += i ? v.y : v.x;", ""),
    ("sm_90a", BLOCKS, "other keys are masked", "return KEYS * tg_y_keys[at]", "return KEYS * (at % 3)"),
    ("sm_90a", BLOCKS, "other keys are loaded", "300 * b + 64 * tg_y_keys[4 * i + k]", "300 * b + 64 * k"),
    ("sm_90a", BLOCKS, "what saw no key is divided by 0", "sum[half] == 0.0f ? 0.0f : ", ""),
    ("sm_90a", ODD, "the mask is dropped", "if (Op::partial(at))", "if (false)"),
    ("sm_90a", ODD, "the mask is another row's", "tg_y_hidden[query / 17]", "tg_y_hidden[query / 18]"),
    ("sm_90a", ODD, "the mask is another block's", "key / 23 & 1", "key / 24 & 1"),
    ("sm_90a", TOLD, "the last block is left out", ">= seen) --blocks", ">= seen - 64) --blocks"),
    ("sm_80", BLOCKS, "other keys are brought", "return 64 * tg_y_keys[4 * i + n]", "return 64 * n"),
    ("sm_80", BLOCKS, "what saw no key is divided by 0", "whole == 0.0f ? 0.0f : ", ""),
    ("sm_80", ODD, "the mask is dropped", "if (beside.masks)", "if (false)"),
    ("sm_80", ODD, "the mask is the first row's", "beside.query[i / 2][i % 2] = query;", ""),
    ("sm_80", ODD, "the mask is another block's", "key / 23 & 1", "key / 24 & 1"),
    ("sm_80", TOLD, "keys behind the last are seen", "beside.there = past;", ""),
    ("sm_90a", LENGTHS, "lengths are dropped", "tg_length(T.n + b)", "300"),
    (
        "sm_90a",
        LENGTHS,
        "a key behind the last is seen",
        "tg_length(T.n + b)",
        "tg_length(T.n + b) + 1",
    ),
    (
        "sm_90a",
        LENGTHS,
        "the last key is hidden",
        "tg_length(T.n + b)",
        "tg_length(T.n + b) - 1",
    ),
    (
        "sm_90a",
        LENGTHS,
        "lengths are another sequence's",
        "tg_length(T.n + b)",
        "tg_length(T.n)",
    ),
    (
        "sm_90a",
        FEW,
        "a key behind the last is seen",
        "tg_length(T.n + b)",
        "tg_length(T.n + b) + 1",
    ),
    (
        "sm_90a",
        WINDOW,
        "what saw no key is divided by 0",
        "sum[half] == 0.0f ? 0.0f : ",
        "",
    ),
    (
        "sm_90a",
        WINDOW,
        "the window of no key has no block",
        "/ 128 - from, 1)",
        "/ 128 - from, 0)",
    ),
    ("sm_90a", PREFIX, "the prefix is dropped", "Op::PREFIX - 1", "-1"),
    (
        "sm_90a",
        PREFIX,
        "the prefix has one key less",
        "Op::PREFIX - 1",
        "Op::PREFIX - 2",
    ),
    ("sm_90a", PREFIX, "the prefix has one key more", "Op::PREFIX - 1", "Op::PREFIX"),
    ("sm_90a", PREFIX, "blocks of the prefix are not loaded", "300), 141)", "300), 1)"),
    (
        "sm_90a",
        SLOPES,
        "slopes are dropped",
        "if constexpr (Op::BIASED) tg_add",
        "if constexpr (false) tg_add",
    ),
    ("sm_90a", SLOPES, "slopes are another head's", "column0 / Op::WIDTH +", "0 +"),
    ("sm_90a", FEW, "slopes are another head's", " % Op::HEADS;", " % 1;"),
    (
        "sm_90a",
        CAPPED,
        "slopes are not divided by the cap",
        "slope[half] *= Op::per_scale();",
        "",
    ),
    ("sm_80", LENGTHS, "lengths are dropped", "tg_get1(T.n + b)", "300"),
    (
        "sm_80",
        LENGTHS,
        "a key behind the last is seen",
        "tg_get1(T.n + b)",
        "tg_get1(T.n + b) + 1",
    ),
    (
        "sm_80",
        LENGTHS,
        "keys behind the last are brought, and seen",
        "beside.there = there;",
        "",
    ),
    ("sm_80", WINDOW, "what saw no key is divided by 0", "whole == 0.0f ? 0.0f : ", ""),
    (
        "sm_80",
        PREFIX,
        "the prefix has one key less",
        "tg_max(before + query + 1, 141)",
        "tg_max(before + query + 1, 140)",
    ),
    ("sm_80", PREFIX, "the prefix has one key more", ", 141)", ", 142)"),
    (
        "sm_80",
        SLOPES,
        "slopes are another head's",
        "tg_get1(T.slopes + 2 * h + n / n0)",
        "tg_get1(T.slopes + 2 * h)",
    ),
    (
        "sm_80",
        CAPPED,
        "slopes are dropped",
        "x += beside.slope[m][half]",
        "x += 0.0f * beside.slope[m][half]",
    ),
]


@pytest.mark.parametrize("case", MASKS, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize("case", BIASES, ids=lambda c: c.name)
def test_what_is_added_to_scores_is_right_on_sm_80(case: Case) -> None:
    assert emulated(case, range(1), target="sm_80") == ""


@pytest.mark.parametrize(
    ("target", "case", "what", "old", "new"),
    FAULTS,
    ids=[f"{f[0]} {f[1].name}, {f[2]}" for f in FAULTS],
)
def test_a_fault_is_seen(target: str, case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(2), replaced(old, new), target=target) != ""


@pytest.mark.parametrize("machine", ["h200", "a100"])
@pytest.mark.parametrize("sizes", [{"S": 140}, {"S": 140, "causal": True, "window": 30}, {"S": 5, "K": 140}])
def test_any_length_is_taken_and_what_is_behind_it_may_be_anything(
    machine: str, sizes: dict[str, int]
) -> None:
    """Of no keys, of less, of one, of whole blocks, of all, of more."""
    program = masked(B=7, heads=2, kv_heads=1, lengths=True, **sizes)
    lengths = torch.tensor([0, -9, 1, 64, 128, 140, 1000], dtype=torch.int32)
    torch.manual_seed(0)
    q, k, v = (torch.randn(t.shape).bfloat16() for t in program.arguments[:3])
    behind = torch.arange(140) >= lengths[:, None]
    k[behind], v[behind] = torch.nan, torch.nan
    found = tg.compile(program, "cuda-emulated", on=machine)(q, k, v, lengths)
    want = tg.reference(program, q, k, v, lengths)
    torch.testing.assert_close(found.float(), want, rtol=2e-2, atol=2e-2)
    assert not found[:2].any()


@pytest.mark.parametrize("what", [{"lengths": True, "alibi": True}, {"prefix": 40, "lengths": True}])
def test_sizes_may_move(what: dict[str, Any]) -> None:
    """Up to fewer keys than a prefix has."""
    sizes = {"B": 2, "heads": 2, "causal": True, **what}
    kernel = tg.compile(masked(S=tg.dim("S", max=150), **sizes), "cuda-emulated", on=4)
    for s in (1, 17, 130):
        still = masked(**{**sizes, "S": s, "prefix": min(s, what.get("prefix", 0))})
        arguments = random_arguments(still, s)
        want = tg.reference(still, *arguments)
        torch.testing.assert_close(kernel(*arguments).float(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("target", ["cuda-emulated", "cpu"])
@pytest.mark.parametrize("bias", ["b", "hq", "bhq"])
def test_batches_of_a_bias_may_move(target: str, bias: str) -> None:
    how: dict[str, Any] = {"S": 20, "heads": 2, "bias": bias}
    kernel = tg.compile(masked(B=tg.dim("B", max=9), **how), target, on=4)
    for b in (1, 2, 9):
        still = masked(B=b, **how)
        arguments = random_arguments(still, b)
        want = tg.reference(still, *arguments)
        torch.testing.assert_close(kernel(*arguments).float(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("machine", ["h200", "a100", "cpu"])
def test_a_row_of_the_least_numbers_is_a_mean(machine: str) -> None:
    """Models hide keys so, and of a row that sees none torch gives a mean; -inf gives 0."""
    program = masked(B=2, S=70, heads=2, kv_heads=2, bias="b", wide=True)
    torch.manual_seed(0)
    q, k, v = (torch.randn(t.shape).bfloat16() for t in program.arguments[:3])
    bias = torch.zeros(2, 1, 1, 70)
    bias[0], bias[1, ..., :40] = torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min
    on = {} if machine == "cpu" else {"on": machine}
    kernel = tg.compile(program, "cpu" if machine == "cpu" else "cuda-emulated", **on)
    heads = [x.float().unflatten(-1, (2, 64)).transpose(1, 2) for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*heads, bias).transpose(1, 2).flatten(2)
    torch.testing.assert_close(kernel(q, k, v, bias).float(), want, rtol=2e-2, atol=2e-2)
    bias[0] = -torch.inf
    assert not kernel(q, k, v, bias)[0].any()
