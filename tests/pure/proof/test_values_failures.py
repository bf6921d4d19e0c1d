"""Plans whose ops compute something else than the program's calls say are refused, by name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tilegen as tg
from tests.emulated.examples import EXAMPLES, program_of
from tests.gpu.gemms import CASES, gemm
from tests.gpu.ops import OPS
from tilegen.errors import ProofError
from tilegen.proof.checker import check, check_values, prove
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan

NAMED = {c.name: c for c in (*CASES, *OPS)}
Change = Callable[[dict[str, Any]], None]


def small(name: str) -> dict[str, Any]:
    return expanded(NAMED[name].plan(4))


def layer() -> Plan:
    return tg.plan(program_of(*EXAMPLES[5], "bfloat16"), 4)


PLANS = {
    "layer": expanded(layer()),
    "blocks": small("blocks"),
    "norms": small("norms"),
    "split sum": expanded(NAMED["split sum"].plan("h200")),
    "one pixel": expanded(NAMED["one pixel"].plan("h200")),
    "patches": expanded(NAMED["patches, dilation 2"].plan("h200")),
    "int8": small("int8, scaled"),
    "masks": small("lengths, slopes, a prefix, capped"),
    "block mask": small("blocks, one query"),
    "bias": small("a bias of windows"),
    "padded": expanded(tg.plan(gemm(M=512, N=1024, K=1023), "h200")),
    "rotary": small("rotary, heads of 64, tables of float32"),
}


def attribute(op: str, name: str, value: Any) -> Change:
    def change(plan: dict[str, Any]) -> None:
        assert plan["ops"][op]["attributes"][name] != value
        plan["ops"][op]["attributes"][name] = value

    return change


def expression(op: str, old: str, new: str) -> Change:
    def change(plan: dict[str, Any]) -> None:
        epilogue = plan["ops"][op]["attributes"]["epilogue"]
        assert old in epilogue["expression"], epilogue
        epilogue["expression"] = epilogue["expression"].replace(old, new)

    return change


def operand(op: str, index: int, name: Any) -> Change:
    def change(plan: dict[str, Any]) -> None:
        assert plan["ops"][op]["operands"][index] != name
        plan["ops"][op]["operands"][index] = name

    return change


def called(attribute: str, value: list[int]) -> Change:
    """The program's only convolution asks for something else."""

    def change(plan: dict[str, Any]) -> None:
        (call,) = (c for c in plan["calls"] if c["kind"] == "conv2d")
        call["attributes"][attribute] = value

    return change


def filters(shape: list[int]) -> Change:
    def change(plan: dict[str, Any]) -> None:
        plan["tensors"]["w"]["declared"] = shape

    return change


def tensor_type(name: str, dtype: str) -> Change:
    def change(plan: dict[str, Any]) -> None:
        assert plan["tensors"][name]["dtype"] != dtype
        plan["tensors"][name]["dtype"] = dtype

    return change


def output_role(role: str) -> Change:
    def change(plan: dict[str, Any]) -> None:
        plan["tensors"][plan["outputs"][0]]["role"] = role

    return change


CHANGES: list[tuple[str, Change, str]] = [
    ("layer", attribute("attn", "scale", 0.25), "attention with (('batch', 3)"),
    ("layer", attribute("attn", "theta", 10000.0), "rope with"),
    ("layer", attribute("k_append", "theta", 10000.0), "k_cache is not what the program says: rope with"),
    ("layer", attribute("qkv", "norm_eps", 1e-6), "rms_norm with (('eps', 1e-06),) where the program has"),
    ("layer", expression("gate_up", "silu(acc0) * acc1", "silu(acc1) * acc0"), "columns"),
    ("layer", expression("gate_up", "silu", "relu"), "relu where the program has silu"),
    ("layer", expression("down", "acc0 + e0", "acc0"), "where the program has +("),
    ("layer", operand("down", 2, "x"), "x where the program has +("),
    ("layer", operand("qkv", 2, "norm2"), "norm2 where the program has norm1"),
    ("layer", operand("v_append", 1, {"tensor": "qkv", "columns": [256, 384]}), "columns with 256 where"),
    ("layer", tensor_type("h", "float32"), "gate_up gives h as float32, expected bfloat16"),
    *(("layer", output_role(r), f"is an output, and its tensor {r}") for r in ("intermediate", "partial")),
    ("blocks", attribute("first0", "dilation", [2, 2]), "conv2d with (('dilation', (2, 2))"),
    ("blocks", expression("second0", "relu", "silu"), "x2 is not what the program says: silu where"),
    ("norms", attribute("n2", "eps", 1.0), "layer_norm with (('eps', 1.0),) where"),
    ("norms", operand("n2", 1, "bias"), "bias where the program has g"),
    ("split sum", expression("up", "gelu_tanh", "silu"), "silu where the program has gelu_tanh"),
    ("one pixel", called("stride", [2, 2]), "conv2d with (('dilation', (1, 1)), ('padding', (0, 0))"),
    ("one pixel", called("padding", [1, 1]), "('padding', (0, 0))"),
    ("one pixel", filters([136, 136]), "a linear of pixels with filters [136, 136], expected four sizes"),
    ("patches", called("stride", [2, 2]), "('stride', (1, 1))"),
    ("patches", attribute("conv", "dilation", [1, 1]), "conv2d with (('dilation', (1, 1))"),
    ("patches", attribute("conv", "padding", [1, 1]), "('padding', (1, 1))"),
    ("one pixel", attribute("conv", "groups", 2), "a linear of pixels, expected a linear of x and w"),
    ("one pixel", expression("conv", "relu", "silu"), "silu where the program has relu"),
    ("int8", tensor_type("w", "float32"), "y gives z as bfloat16, expected bfloat16, float32"),
    ("int8", tensor_type("r", "int8"), "y gives z as bfloat16, expected bfloat16, int8"),
    ("int8", tensor_type("x", "int8"), "y gives z as bfloat16, expected bfloat16, int8"),
    ("int8", tensor_type("z", "int8"), "y gives z as int8, expected bfloat16"),
    ("int8", expression("y", "acc0 * e0", "acc0"), "where the program has"),
    ("padded", attribute("w_padded", "behind", 2), "pad(x) where the program has x"),
    ("padded", operand("y", 0, "x"), "pad(w) where the program has w"),
    ("padded", operand("y", 1, "x_padded"), "x where the program has w"),
    ("padded", expression("w_padded", "acc0", "acc0 + 1"), "pad(x) where the program has x"),
    ("masks", attribute("y", "prefix", 8), "('prefix', 8)"),
    ("masks", attribute("y", "cap", 1.0), "('cap', 1.0)"),
    ("masks", attribute("y", "lengths", False), "('lengths', False)"),
    ("block mask", attribute("y", "block_mask", [[True] * 16]), "('block_mask', ((True, True,"),
    ("block mask", attribute("y", "block_size", [1, 63]), "('block_size', (1, 63))"),
    ("rotary", tensor_type("sin", "float16"), "y gives y as bfloat16, expected bfloat16, float16"),
    ("masks", operand("y", 4, "q"), "y reads slopes of bfloat16, expected float32"),
    ("masks", tensor_type("slopes", "bfloat16"), "y reads slopes of bfloat16, expected float32"),
    ("bias", tensor_type("bias", "bfloat16"), "y reads a bias of bfloat16, expected float16 or float32"),
    ("bias", attribute("y", "bias", [8, 4, 49]), "('bias', (8, 4, 49))"),
    ("bias", operand("y", 3, "q"), "q where the program has bias"),
]


@pytest.mark.parametrize("name, change, says", CHANGES)
def test_an_op_that_computes_something_else_is_refused(name: str, change: Change, says: str) -> None:
    plan = copy.deepcopy(PLANS[name])
    assert check_values(plan).ok
    change(plan)
    result = check_values(plan)
    assert not result.ok and says in result.statement
    assert not check(plan).ok


def test_a_plan_that_forgot_some_keys_of_a_prefix_is_refused() -> None:
    plan = small("a prefix before lengths")
    assert check(plan).ok
    for said in (plan["ops"]["y"], next(c for c in plan["calls"] if c["kind"] == "attention")):
        assert said["attributes"]["prefix"] == 100
        said["attributes"]["prefix"] = 260
    assert check_values(plan).ok and not check(plan).ok


def test_a_plan_that_forgot_a_block_of_a_block_mask_is_refused() -> None:
    plan = small("blocks, keys made")
    assert check(plan).ok
    for said in (plan["ops"]["y"], next(c for c in plan["calls"] if c["kind"] == "attention")):
        rows = said["attributes"]["block_mask"] = [list(row) for row in said["attributes"]["block_mask"]]
        assert not rows[0][2] and not rows[1][2]
        rows[0][2] = True
    assert check_values(plan).ok and not check(plan).ok


@pytest.mark.parametrize(
    "change, says",
    [
        ({"block_mask": [[True]]}, "block_mask is no table of 5 x 5"),
        ({"block_mask": None}, "block_mask is no table of 5 x 5"),
        ({"block_size": [0, 64]}, "two ints >= 1"),
    ],
)
def test_a_block_mask_of_another_shape_is_refused(change: dict[str, Any], says: str) -> None:
    plan = small("blocks, keys made")
    plan["ops"]["y"]["attributes"].update(change)
    assert says in check(plan).text()


@pytest.mark.parametrize(
    "tensor, declared, says",
    [
        ("x", [2, 13, 12, 64], "expected 2 x 13 x 12 rows"),
        ("x", [1, 13, 13, 64], "expected 1 x 13 x 13 rows"),
        ("w", [64, 3, 3, 32], "filters of 3 x 3 x 32"),
        ("x", [2, 13, 13 * 64], "expected four sizes each"),
    ],
)
def test_patches_of_other_images_are_refused(tensor: str, declared: list[int], says: str) -> None:
    plan = copy.deepcopy(PLANS["patches"])
    assert check(plan).ok
    plan["tensors"][tensor]["declared"] = declared
    with pytest.raises(ProofError, match=says):
        prove(plan)


def test_outputs_in_another_order_are_refused() -> None:
    case = NAMED["rope"]
    plan = expanded(case.plan(4))
    plan["outputs"].reverse()
    with pytest.raises(ProofError, match="values: q_rope|is not what the program says"):
        prove(plan)


@pytest.mark.parametrize(
    "spoil, says",
    [
        (lambda plan: plan["calls"].pop(), "'y'"),
        (lambda plan: plan.update(calls=[{}]), "cannot be compared"),
        (lambda plan: plan.update(calls=7), "cannot be compared"),
        (lambda plan: plan.pop("returns"), "'returns'"),
        (lambda plan: plan["returns"].append("x"), "the program 2"),
        (expression("n2", "+ e0", "+ e0.imag"), "an expression holds 'e0.imag'"),
        (expression("n2", "+ e0", "+"), "cannot be compared"),
    ],
)
def test_what_cannot_be_read_is_refused(spoil: Change, says: str) -> None:
    plan = copy.deepcopy(PLANS["norms"])
    spoil(plan)
    result = check_values(plan)
    assert not result.ok and says in result.statement, result


JUNK: list[Any] = [None, True, -1, 2**62, 0.5, float("nan"), "", "nosuch", [], {}, [[]], {"a": 1}]


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.parametrize("part", ["calls", "returns", "ops", "tensors", "outputs"])
def test_junk_anywhere_is_told_and_never_raised(part: str) -> None:
    chance = random.Random(7)
    plan = PLANS["layer"]
    for path in places(plan[part], (part,)):
        spoilt = {key: copy.deepcopy(value) for key, value in plan.items() if key != "tiles"}
        node = spoilt
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = chance.choice(JUNK)
        assert check_values(spoilt).statement


def test_a_plan_without_calls_says_on_its_first_line_what_it_rests_on() -> None:
    plan = copy.deepcopy(PLANS["norms"])
    del plan["calls"], plan["returns"]
    assert prove(plan).heading.endswith(": proved, if its ops compute what the program says")
