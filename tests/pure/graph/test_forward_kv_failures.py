"""New rows forwarded to attentions: what is refused, and in which words."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

import tilegen as tg
from tests.gpu.ops import cached
from tests.oracles.elements import examine
from tilegen.schedule.expand import expanded
from tilegen.targets.sm90.emit import generate


def test_an_unknown_way() -> None:
    with pytest.raises(tg.PlanError, match="appends='never': expected one of auto, awaited, forwarded"):
        tg.plan(cached(), "h200", appends="never")


@pytest.mark.parametrize(
    "options",
    [
        {"tiles": {"q_rope": (8, 4)}},
        {"policies": {"k_append->attn": "tile"}},
        {"policies": {"v_cache": "tile"}},
    ],
)
def test_options_that_speak_of_what_is_gone(options: dict[str, Any]) -> None:
    with pytest.raises(
        tg.PlanError,
        match="the options speak of .*: nothing to choose where new rows are forwarded to 'attn'",
    ):
        tg.plan(cached(roped=True), "h200", appends="forwarded", **options)


def test_a_tile_that_is_none() -> None:
    with pytest.raises(tg.PlanError, match="tile .* of 'attn': a attention tile has 3 positive sizes"):
        tg.plan(cached(), "h200", tiles={"attn": 4})


def test_a_position_is_a_whole_input() -> None:
    @tg.spec
    def two():
        x, at = tg.input("x", (2, 1, 64), "bfloat16"), tg.input("at", (2,), "int32")
        return tg.linear(
            tg.append(tg.state("c", (2, 9, 1, 64), "bfloat16"), x, at=at.chunk(2)[1]), x, name="y"
        )

    with pytest.raises(tg.SpecError, match="a position is tg.input"):
        two()


def small(**options: Any) -> dict[str, Any]:
    program = cached(B=2, S_max=7, heads=2, kv_heads=1, D=16, H=32, roped=True)
    return expanded(tg.plan(program, "h200", tiles={"qkv": (64, 16, 64), "attn": (1, 16, 2)}, **options))


def test_the_plan_is_right_at_first() -> None:
    assert tg.verify(small()).ok and examine(small()).ok


def attention_of(plan: dict[str, Any]) -> dict[str, Any]:
    return next(op for op in plan["ops"].values() if op["kind"] == "attention")


def whole_caches_are_read(plan: dict[str, Any]) -> None:
    """Without word that new rows are forwarded, the appends' rows are among what is read, and nobody waits
    for them."""
    op = attention_of(plan)
    del op["attributes"]["forwarded"], op["attributes"]["theta"]
    op["operands"] = op["operands"][:4]
    for tile in plan["tiles"]:
        if tile["op"] == "attn":
            tile["ctas"][0]["reads"] = [
                r for r in tile["ctas"][0]["reads"] if r["tensor"] != "qkv" or r["box"][1][0] < 32
            ]


def another_position(plan: dict[str, Any]) -> None:
    plan["tensors"]["other"] = dict(plan["tensors"]["pos"])
    plan["ops"]["v_append"]["operands"][2] = "other"
    for tile in (t for t in plan["tiles"] if t["op"] == "v_append"):
        next(r for r in tile["ctas"][0]["reads"] if r["tensor"] == "pos")["tensor"] = "other"


def longer_batches(plan: dict[str, Any]) -> None:
    """As if both sequences of the cache were one of 14 rows: what is before a position there may be behind it
    here."""
    plan["ops"]["k_append"]["attributes"] |= {"batch": 1, "max_len": 14, "seq": 2}
    [first, second] = [t for t in plan["tiles"] if t["op"] == "k_append"]
    part = first["ctas"][0]
    for read in (r for r in part["reads"] if r["tensor"] == "qkv"):
        read["box"][0] = [0, 2]
    part["writes"][0]["box"][0] = [0, 14]
    plan["tiles"].remove(second)
    for rank, tile in enumerate(plan["tiles"]):
        tile["rank"] = rank
    plan["scheduling"] = "dynamic"


def another_place(plan: dict[str, Any]) -> None:
    """Two positions in one tensor: the attention at the first, the appends at the second."""
    plan["tensors"]["pos"]["shape"] = [2]
    for op in plan["ops"].values():
        for n, operand in enumerate(op["operands"]):
            if operand == "pos":
                op["operands"][n] = {"tensor": "pos", "columns": [1, 2] if op["kind"] == "append" else [0, 1]}
    for tile in (t for t in plan["tiles"] if plan["ops"][t["op"]]["kind"] == "append"):
        next(r for r in tile["ctas"][0]["reads"] if r["tensor"] == "pos")["box"] = [[1, 2]]


@pytest.mark.parametrize("change", [whole_caches_are_read, another_position, another_place, longer_batches])
def test_caches_that_are_not_read_before_the_position_alone(change: Any) -> None:
    plan = small()
    change(plan)
    with pytest.raises(tg.ProofError, match="without a full wait for [kv]_append"):
        tg.verify(plan)
    assert not examine(plan).ok


def test_new_rows_that_are_not_awaited() -> None:
    plan = small(policies={"qkv": "tile"})
    wrong = copy.deepcopy(plan)
    reads = next(t for t in wrong["tiles"] if t["op"] == "attn")["ctas"][0]["reads"]
    new = next(r for r in reads if r["tensor"] == "qkv" and r["box"][1][0] >= 48)
    assert new["waits"]
    new["waits"] = []
    with pytest.raises(tg.ProofError, match="reads qkv.*without a full wait for qkv"):
        tg.verify(wrong)
    assert not examine(wrong).ok


@pytest.mark.parametrize("operands", [4, 5])
def test_operands_that_are_missing(operands: int) -> None:
    plan = small()
    attention_of(plan)["operands"] = attention_of(plan)["operands"][:operands]
    with pytest.raises(tg.ProofError, match="expected"):
        tg.verify(plan)


def test_tiles_that_do_not_take_all_queries() -> None:
    program = cached(S=4, heads=4, kv_heads=2)
    plan = tg.plan(program, "h200", appends="forwarded", tiles={"attn": (4, 64, 2)})
    smaller = plan.graph.with_op("attn", replace(plan.graph.op("attn"), tile=(2, 64, 2)))
    with pytest.raises(
        tg.PlanError,
        match="2 queries of 2 heads, expected all 4 in at most 64 rows where new keys are forwarded",
    ):
        generate(replace(plan, graph=smaller))
