"""Norms fused into linears: which, when, and what the graph is then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilegen as tg
from benchmarks.workloads import example
from tests.gpu.ops import NORMED, normed
from tests.oracles.dependences import owners
from tilegen.arch.machine import machine
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.fuse_norms import choice, fused, lines, problem
from tilegen.graph.graph import Graph
from tilegen.ops.gemm import LinearAttributes
from tilegen.ops.gemm import normed as is_normed
from tilegen.options import Options
from tilegen.targets.select import place

H200 = machine("h200")


def folds(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops if is_normed(graph.bound(op))]


def test_every_reader_takes_the_norm() -> None:
    graph = fused(fuse(normed()), place("h200"), Options())
    assert {op.name for op in graph.ops} == {"r", "pair", "other", "down"} and "n" not in graph.tensors
    for name in ("pair", "other"):
        op = graph.op(name)
        assert [o.tensor for o in op.operands[:3]] == [
            "r",
            {"pair": "w1", "other": "w2"}[name],
            "g",
        ] and LinearAttributes.of(op).norm_eps == 1e-5


def test_epilogues_keep_their_operands() -> None:
    before, after = fuse(normed()), fused(fuse(normed()), place("h200"), Options())

    def read(graph: Graph, name: str) -> list[tuple[str, str]]:
        op = graph.op(name)
        assert op.epilogue is not None
        return [(op.operands[index].tensor, how) for index, how in op.epilogue.operands]

    assert read(after, "other") == read(before, "other") == [("bias", "columns"), ("r", "elements")]
    assert after.op("pair").epilogue == before.op("pair").epilogue


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, ["qkv", "gate_up"]),
        ({"norms": "separate"}, []),
        ({"policies": {"n1->qkv": "tile"}}, ["gate_up"]),
        ({"policies": {"n2": "tile"}}, ["qkv"]),
        ({"tiles": {"n1": (8,)}}, ["gate_up"]),
        ({"tiles": {"qkv": (64, 48, 64)}}, ["qkv", "gate_up"]),
        ({"cluster": {"gate_up": 2}}, ["qkv"]),
        ({"split_k": {"qkv": 2}}, ["gate_up"]),
        ({"norms": "fused", "policies": {"*": "kernel"}}, ["qkv", "gate_up"]),
    ],
)
def test_what_options_speak_of_stays(options: dict[str, Any], expected: list[str]) -> None:
    assert folds(fused(fuse(example("llama_layer")), place("h200"), Options.of(**options))) == expected


@pytest.mark.parametrize(
    "sizes, on, expected",
    [({"B": 64}, "h200", 2), ({"B": 65}, "h200", 0), ({}, "cpu:4", 0), ({"dtype": "float16"}, "h200", 0)],
)
def test_where_it_is_possible(sizes: dict[str, Any], on: str, expected: int) -> None:
    assert (
        len(folds(fused(fuse(example("llama_layer", **sizes)), place(on), Options(norms="fused"))))
        == expected
    )


def program(body: Any) -> Program:
    @tg.spec
    def one():
        x, g, w = (
            tg.input("x", (8, 256), "bfloat16"),
            tg.weight("g", (256,), "bfloat16"),
            tg.weight("w", (256, 256), "bfloat16"),
        )
        return body(x, g, w)

    return one()


@pytest.mark.parametrize(
    "body, why",
    [
        (lambda x, g, w: (n := tg.rms_norm(x, g, name="n"), tg.linear(n, w, name="y")), "it is an output"),
        (
            lambda x, g, w: tg.linear(tg.relu(tg.rms_norm(x, g, name="n")), w, name="y"),
            "relu(acc0) follows it",
        ),
        (
            lambda x, g, w: tg.add(tg.linear(n := tg.rms_norm(x, g, name="n"), w, name="y"), n, name="z"),
            "'y' reads it, and not as the rows of a linear",
        ),
        (
            lambda x, g, w: (tg.softmax(tg.rms_norm(x, g, name="n"), name="y"), tg.linear(x, w, name="z")),
            "'y' reads it, and not as the rows of a linear",
        ),
        (
            lambda x, g, w: tg.linear(
                tg.rms_norm(x, g, name="n").split([128, 128])[0], w.split([128, 128])[1], name="y"
            ),
            "'y' reads it, and not as",
        ),
        (
            lambda x, g, w: tg.linear(tg.layer_norm(x, g, g, name="n"), w, name="y"),
            "a layer_norm does more than scale its rows",
        ),
    ],
)
def test_what_cannot_be_folded(body: Any, why: str) -> None:
    graph = fuse(program(body))
    assert why in problem(graph, graph.op("n"), place("h200"))
    assert folds(fused(graph, place("h200"), Options(norms="fused"))) == []
    assert any(
        line.startswith("norm n is an op of its own") and why in line for line in lines(graph, place("h200"))
    )


def test_the_model_folds_where_weights_hide_it() -> None:
    graph = fuse(example("llama_layer"))
    told = choice(graph.bound(graph.op("n2")), [graph.bound(graph.op("gate_up"))], H200)
    assert told.pays and told.fused_us == 0.0 and 3 < told.alone_us < 8
    # weights that come sooner than products are done hide nothing
    slow = replace(H200, memory=H200.memory * 20)
    assert choice(graph.bound(graph.op("n2")), [graph.bound(graph.op("gate_up"))], slow).fused_us > 1


def test_explain_tells() -> None:
    text = tg.explain(example("llama_layer"), "h200")
    assert (
        "norm fused into qkv: sums of x ∘ norm1 are scaled by 1/rms" in text
        and "= linear(rms_norm(r, norm2), w1)" in text
    )
    assert "n1 is an op of its own: it has 512 rows" in tg.explain(example("llama_layer", S=512), "h200")


@pytest.mark.parametrize("case", NORMED, ids=lambda c: c.name)
def test_plans_are_proven(case: Any) -> None:
    plan = case.plan()
    assert folds(plan.graph) == ["pair", "other"] and tg.verify(plan).ok
    for b in plan.bounds:
        assert (owners(b) >= 0).all()


def test_a_plan_survives_json() -> None:
    plan = tg.plan(normed(), "h200")
    again = tg.Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json() and folds(again.graph) == ["pair", "other"]
