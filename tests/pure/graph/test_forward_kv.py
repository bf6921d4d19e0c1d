"""New rows forwarded to attentions over caches: when, and what the graph is then."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from benchmarks.workloads import example
from tests.gpu.gemms import Case
from tests.gpu.ops import PASSED, cached
from tests.oracles.dependences import owners
from tilegen.arch.machine import machine
from tilegen.frontend.program import Program
from tilegen.graph.forward_kv import forwarded, lines, problem
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.ops.append import ropes
from tilegen.ops.attention import AttentionAttributes, roped
from tilegen.ops.attention import forwarded as is_forwarded
from tilegen.options import Options
from tilegen.targets.select import place

H200 = machine("h200")


def passes(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops if op.kind == "attention" and is_forwarded(graph.bound(op))]


def test_queries_and_new_rows_come_from_the_projection() -> None:
    graph = forwarded(fuse(example("llama_layer")), place("h200"), Options())
    op = graph.op("attn")
    assert [(o.tensor, o.columns) for o in op.operands] == [
        ("qkv", (0, 4096)),
        ("k_cache", None),
        ("v_cache", None),
        ("pos", None),
        ("qkv", (4096, 5120)),
        ("qkv", (5120, 6144)),
    ]
    assert roped(graph.bound(op))
    assert AttentionAttributes.of(op).theta == 500000.0 and "q_rope" not in graph.tensors


def test_the_appends_stay_and_nobody_awaits_them() -> None:
    plan = tg.plan(example("llama_layer"), "h200")
    names = [op.name for op in plan.graph.ops]
    assert names.index("attn_split_kv") < names.index("k_append") < names.index("out")
    assert not [e.name for e in plan.graph.edges if e.producer.op.kind == "append"]
    assert ropes(plan.graph.bound(plan.graph.op("k_append"))) and not plan.posts_of("k_append")


def test_rows_that_are_not_turned() -> None:
    graph = forwarded(fuse(cached()), place("h200"), Options())
    assert (
        passes(graph) == ["attn"]
        and not roped(graph.bound(graph.op("attn")))
        and graph.op("attn").operands[0].tensor == "qkv"
    )


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, ["attn"]),
        ({"appends": "awaited"}, []),
        ({"policies": {"k_append->attn": "tile"}}, []),
        ({"policies": {"k_cache": "tile"}}, []),
        ({"tiles": {"q_rope": (8, 4)}}, []),
        ({"tiles": {"k_append": (256,)}}, ["attn"]),
        ({"tiles": {"attn": (1, 64)}, "appends": "forwarded"}, ["attn"]),
        ({"tiles": {"attn": (1,)}}, ["attn"]),
        ({"tiles": {"attn": (1, 64, 4)}}, ["attn"]),
        ({"tiles": {"attn": (1, 64, 128)}}, []),
        ({"split_kv": {"attn": 3}}, ["attn"]),
        ({"appends": "forwarded", "policies": {"*": "kernel"}}, ["attn"]),
    ],
)
def test_what_options_speak_of_stays(options: dict[str, Any], expected: list[str]) -> None:
    assert passes(forwarded(fuse(example("llama_layer")), place("h200"), Options.of(**options))) == expected


@pytest.mark.parametrize(
    "sizes, on, expected",
    [
        ({"S": 16}, "h200", 1),
        ({"S": 17}, "h200", 0),
        ({}, "cpu:4", 0),
        ({"dtype": "float16", "B": 70}, "h200", 1),
    ],
)
def test_where_it_is_possible(sizes: dict[str, Any], on: str, expected: int) -> None:
    assert (
        len(passes(forwarded(fuse(example("llama_layer", **sizes)), place(on), Options(appends="forwarded"))))
        == expected
    )


def program(body: Any) -> Program:
    @tg.spec
    def one():
        def cache(name: str, columns: int = 256) -> Any:
            return tg.state(name, (2, 100, columns), "bfloat16")

        return body(tg.input("x", (2, 1, 256), "bfloat16"), tg.input("pos", (1,), "int32"), cache)

    return one()


def attention(q: Any, k: Any, v: Any, at: Any) -> Any:
    return tg.attention(q, k, v, heads=4, at=at, name="attn")


def rope(x: Any, at: Any, theta: float = 10000.0) -> Any:
    return tg.rope(x, heads=4, at=at, theta=theta)


def other() -> Any:
    return tg.input("other", (1,), "int32")


def half(cache: Any, x: Any, at: Any) -> Any:
    """The second half of the columns of a cache that two layers' rows are appended to."""
    return tg.append(
        cache, tg.linear(x, tg.weight(f"w_{cache.tensor}", (512, 256), "bfloat16")), at=at
    ).chunk(2)[1]


@pytest.mark.parametrize(
    "body, why",
    [
        (
            lambda x, p, c: attention(x, tg.append(c("k"), x, at=p), c("v"), p),
            "are not two caches that this launch appends to",
        ),
        (
            lambda x, p, c: (both := tg.append(c("k"), x, at=p), attention(x, both, both, p))[1],
            "are not two caches that this launch appends to",
        ),
        (
            lambda x, p, c: attention(x, half(c("k", 512), x, p), half(c("v", 512), x, p), p),
            "it reads some columns of its caches",
        ),
        (
            lambda x, p, c: attention(x, tg.append(c("k"), x, at=p), tg.append(c("v"), x, at=other()), p),
            "does not append the rows of its queries at its",
        ),
        (
            lambda x, p, c: attention(x, tg.append(c("k"), x, at=7), tg.append(c("v"), x, at=p), p),
            "does not append the rows of its queries at its position",
        ),
        (
            lambda x, p, c: attention(x, tg.append(c("k"), rope(x, p), at=p), tg.append(c("v"), x, at=p), p),
            "but not both",
        ),
        (
            lambda x, p, c: attention(rope(x, p), tg.append(c("k"), x, at=p), tg.append(c("v"), x, at=p), p),
            "but not both",
        ),
        (
            lambda x, p, c: attention(
                rope(x, p), tg.append(c("k"), rope(x, p), at=p), tg.append(c("v"), rope(x, p), at=p), p
            ),
            "its values are turned",
        ),
        (
            lambda x, p, c: attention(
                rope(x, p, 500.0), tg.append(c("k"), rope(x, p), at=p), tg.append(c("v"), x, at=p), p
            ),
            "otherwise than its keys",
        ),
        (
            lambda x, p, c: attention(
                rope(x, other()), tg.append(c("k"), rope(x, p), at=p), tg.append(c("v"), x, at=p), p
            ),
            "otherwise than its keys",
        ),
        (
            lambda x, p, c: (
                a := attention(x, tg.append(c("k"), x, at=p), v := tg.append(c("v"), x, at=p), p),
                tg.attention(a, v, v, heads=4, at=p, name="second"),
            )[1],
            "'second' reads its caches too",
        ),
    ],
)
def test_what_cannot_be_passed(body: Any, why: str) -> None:
    graph = fuse(program(body))
    assert why in problem(graph, graph.op("attn"), place("h200"))
    assert passes(forwarded(graph, place("h200"), Options(appends="forwarded"))) == []
    assert any(
        line.startswith("attn awaits its appends: ") and why in line for line in lines(graph, place("h200"))
    )


def test_explain_tells() -> None:
    text = tg.explain(example("llama_layer"), "h200")
    assert "new rows forwarded to attn_split_kv: from qkv and qkv" in text
    assert (
        "attention(rope(qkv[:, 0:4096], pos), k_cache with rope(qkv[:, 4096:5120], pos), v_cache with qkv[:,"
        " 5120:6144], pos)" in text
    )
    assert "attn_split_kv awaits its appends: 17 queries of 4 heads are more than the 64 rows" in tg.explain(
        example("llama_layer", S=17), "h200"
    )


@pytest.mark.parametrize("case", PASSED, ids=lambda c: c.name)
def test_plans_are_proven(case: Case) -> None:
    plan = case.plan()
    assert len(passes(plan.graph)) == 1 and "rows from a position on" in tg.verify(plan).text()
    for b in plan.bounds:
        assert b.op.kind == "append" or (owners(b) >= 0).all()


def test_one_semaphore_is_awaited_once() -> None:
    """Queries, new keys and new values are columns of one tensor."""
    plan = tg.plan(cached(), "h200", policies={"qkv": "kernel"})
    assert [w.edge.access.operand for w in plan.waits_of("attn")] == [0]
    finer = tg.plan(cached(), "h200", policies={"qkv": "tile"})
    assert [w.edge.access.operand for w in finer.waits_of("attn")] == [0, 4, 5]


def test_a_plan_survives_json() -> None:
    plan = tg.plan(example("llama_layer"), "h200")
    again = tg.Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json() and passes(again.graph) == ["attn_split_kv"]
