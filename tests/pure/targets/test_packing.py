"""A weight that is packed tile by tile is unpacked bit by bit; which weights need not be kept besides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.packing import held_whole, pack, packed_once, unpack

EXAMPLES = {
    "gpt3_mlp": {"M": 16, "H": 392, "I": 200},
    "llama_mlp": {"M": 64, "H": 256, "I": 344},
    "llama_layer": {"B": 2, "H": 256, "I": 344, "S_max": 64},
}


@tg.spec
def doubled(M=64):
    x, w = tg.input("x", (M, 64), "bfloat16"), tg.weight("w", (64, 64), "bfloat16")
    return tg.add(tg.linear(x, w, name="first"), tg.relu(w, name="r"), name="y")


def planned(name: str, **options: Any) -> Plan:
    plan = tg.plan(load_program(f"examples/{name}.py", EXAMPLES[name]), "h200", **options)
    assert isinstance(plan, Plan)
    return plan


def weights_of(plan: Plan) -> dict[str, torch.Tensor]:
    tensors = plan.graph.tensors.values()
    return {
        t.name: torch.randn(t.plan_shape).to(getattr(torch, t.dtype)) for t in tensors if t.role == "weight"
    }


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("split", [{}, {"split_k": {"down": 2}}])
def test_what_is_packed_is_unpacked_bit_by_bit(name: str, split: Any) -> None:
    plan = planned(name, norms="separate", **split)
    weights = weights_of(plan)
    products = dict(generate(plan, frozenset(weights)).packed)
    packed = packed_once(products, weights, {})
    whole = held_whole(plan.graph, products.values())
    matrices = {n for n, a in weights.items() if a.dim() == 2}
    assert whole.keys() == matrices
    for weight in whole:
        found = torch.full_like(weights[weight], float("nan"))
        unpack(found, weight, products, packed)
        assert torch.equal(found, weights[weight])


def test_a_weight_that_a_norm_was_multiplied_into_is_kept() -> None:
    plan = planned("llama_layer", norms="fused")
    products = generate(plan, frozenset(weights_of(plan))).packed
    fused = {op.packing.tensors[0] for _, op in products if op.packing and len(op.packing.tensors) > 1}
    assert fused and not fused & held_whole(plan.graph, [op for _, op in products]).keys()


def test_a_weight_that_another_op_reads_is_kept() -> None:
    plan = tg.plan(doubled(), "h200")
    assert isinstance(plan, Plan)
    products = [op for _, op in generate(plan, frozenset({"w"})).packed]
    assert products and not held_whole(plan.graph, products)


def test_rows_and_columns_that_no_tile_packs_are_missed() -> None:
    plan = planned("gpt3_mlp")
    products = [op for _, op in generate(plan, frozenset({"w1", "w2"})).packed]
    assert held_whole(plan.graph, products).keys() == {"w1", "w2"}
    rows = products[0].packing.rows  # type: ignore[union-attr]
    rows[rows == 3] = -1
    assert held_whole(plan.graph, products).keys() == {"w2"}


def test_parts_of_a_sum_are_all_needed() -> None:
    plan = planned("gpt3_mlp", split_k={"down": 3})
    products = [op for _, op in generate(plan, frozenset({"w1", "w2"})).packed]
    last = [op for op in products if op.packing and op.packing.tensors == ("w2",)]
    assert len(last) == 3 and "w2" in held_whole(plan.graph, products)
    names = {op.bound.op.name for op in last[1:]}
    left = [op for op in products if op.bound.op.name not in names]
    assert "w2" not in held_whole(plan.graph, left)


def test_packing_keeps_zeros_where_no_row_is() -> None:
    plan = planned("gpt3_mlp")
    products = dict(generate(plan, frozenset({"w1", "w2"})).packed)
    op = next(op for op in products.values() if op.packing and (op.packing.rows < 0).any())
    packed = pack(op, {n: torch.ones_like(a) for n, a in weights_of(plan).items()})
    rows = torch.from_numpy(op.packing.rows < 0)  # type: ignore[union-attr]
    assert packed.permute(0, 3, 1, 2, 4)[rows].count_nonzero() == 0
