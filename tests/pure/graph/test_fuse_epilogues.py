"""Fusion: what becomes an epilogue, what stays an op, and that neither changes the maths."""

import ast
from dataclasses import replace

import pytest

import tilegen as tg
from tilegen.errors import PlanError
from tilegen.graph.fuse_epilogues import fuse, renumber
from tilegen.graph.split_k import split_k
from tilegen.graph.split_kv import split_kv
from tilegen.ops.append import AppendAttributes
from tilegen.ops.gemm import LinearAttributes

F = "float32"


def fused(function):
    return fuse(tg.spec(function)())


def same(a, b):
    """Equal but for spaces and parentheses without meaning."""
    return ast.dump(ast.parse(a)) == ast.dump(ast.parse(b))


def ops(graph):
    return [(op.name, op.kind, op.result) for op in graph.ops]


def linear_inputs(bias=True):
    x, w = tg.input("x", (4, 6), F), tg.weight("w", (8, 6), F)
    return (x, w, tg.weight("b", (8,), F)) if bias else (x, w)


def test_bias_and_gelu_join_the_linear():
    def spec():
        return tg.gelu(tg.linear(*linear_inputs(), name="up"), name="y")

    graph = fused(spec)
    assert ops(graph) == [("up", "linear", "y")]
    [op] = graph.ops
    assert same(op.epilogue.expression, "gelu_erf(acc0+e0)")
    assert op.epilogue.operands == ((2, "columns"),) and op.operands[2].tensor == "b"
    assert set(graph.tensors) == {"x", "w", "b", "y"} and graph.outputs == ("y",)


def test_a_result_without_a_name_takes_its_producers():
    def spec():
        return tg.linear(
            tg.gelu(tg.linear(*linear_inputs(), name="up")), tg.weight("u", (3, 8), F), name="down"
        )

    assert ops(fused(spec)) == [("up", "linear", "up"), ("down", "linear", "down")]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_pair(bias, swapped):
    def spec():
        x, w = tg.input("x", (4, 6), F), tg.weight("w", (16, 6), F)
        args = (x, w, tg.weight("b", (16,), F)) if bias else (x, w)
        gate, up = tg.linear(*args, name="pair").chunk(2)
        return tg.mul(up, tg.silu(gate), name="h") if swapped else tg.mul(tg.silu(gate), up, name="h")

    graph = fused(spec)
    assert ops(graph) == [("pair", "linear", "h")]
    [op] = graph.ops
    assert LinearAttributes.of(op).groups == 2 and graph.tensors["h"].plan_shape == (4, 8)
    assert {o.columns for o in op.operands[2:]} == ({(0, 8), (8, 16)} if bias else set())
    text = op.epilogue.expression
    # each half of the bias goes to its own accumulator
    for e, (index, how) in enumerate(op.epilogue.operands):
        assert how == "columns"
        text = text.replace(f"e{e}", "first" if op.operands[index].columns == (0, 8) else "second")
    gate, up = ("(acc0 + first)", "(acc1 + second)") if bias else ("acc0", "acc1")
    assert same(text, f"{up} * silu({gate})" if swapped else f"silu({gate}) * {up}")


def test_uneven_parts_are_no_pair():
    def spec():
        x, w = tg.input("x", (4, 6), F), tg.weight("w", (24, 6), F)
        a, b, _ = (y := tg.linear(x, w, name="three")).chunk(3)
        return tg.mul(tg.silu(a), b, name="h"), y

    graph = fused(spec)
    assert ops(graph) == [("three", "linear", "three"), ("h", "pointwise", "h")]
    assert [o.columns for o in graph.op("h").operands] == [(0, 8), (8, 16)]


def test_a_residual_joins_the_later_producer():
    def spec():
        x, w = linear_inputs(bias=False)
        a = tg.linear(x, w, name="a")
        b = tg.linear(a, tg.weight("u", (8, 8), F), name="b")
        return tg.add(a, b, name="y")

    graph = fused(spec)
    assert ops(graph) == [("a", "linear", "a"), ("b", "linear", "y")]
    op = graph.op("b")
    assert op.epilogue.operands == ((2, "elements"),) and op.operands[2].tensor == "a"
    assert same(op.epilogue.expression, "e0+acc0")


def test_a_sum_of_two_producers_joins_the_second():
    def spec():
        x, w = linear_inputs(bias=False)
        a, b = tg.linear(x, w, name="a"), tg.linear(x, tg.weight("u", (8, 6), F), name="b")
        return tg.add(a, b, name="y")

    graph = fused(spec)
    assert [(op.name, op.result) for op in graph.ops] == [("a", "a"), ("b", "y")]


def test_a_shared_result_is_kept():
    def spec():
        h = tg.linear(*linear_inputs(bias=False), name="h")
        return tg.add(tg.relu(h, name="r"), tg.linear(h, tg.weight("u", (8, 8), F), name="d"), name="y")

    graph = fused(spec)
    assert "h" in graph.tensors and graph.op("h").epilogue.expression == "acc0"
    assert graph.op("d").result == "y" and "relu" in graph.op("d").epilogue.expression


def test_an_output_is_not_fused_away():
    def spec():
        h = tg.linear(*linear_inputs(bias=False), name="h")
        r = tg.relu(h, name="r")
        return h, r, tg.silu(r, name="s")

    graph = fused(spec)
    assert graph.outputs == ("h", "r", "s") and {"h", "r", "s"} <= set(graph.tensors)
    assert ops(graph) == [("h", "linear", "h"), ("r", "pointwise", "r"), ("s", "pointwise", "s")]


def test_batch_norm_joins_the_convolution():
    def spec():
        x, w = tg.input("x", (1, 6, 6, 3), F), tg.weight("w", (4, 3, 3, 3), F)
        statistics = [tg.weight(n, (4,), F) for n in ("mean", "var", "gain", "shift")]
        return tg.relu(tg.batch_norm(tg.conv2d(x, w, padding=1, name="c"), *statistics), name="y")

    graph = fused(spec)
    assert ops(graph) == [("c", "conv2d", "y")]
    [op] = graph.ops
    assert same(op.epilogue.expression, "relu(batch_norm(acc0,e0,e1,e2,e3,1e-05))")
    assert [op.operands[i].tensor for i, _ in op.epilogue.operands] == ["mean", "var", "gain", "shift"]


def test_pointwise_chains_become_one_op():
    def spec():
        x, y = tg.input("x", (4, 6), F), tg.input("y", (4, 6), F)
        return tg.mul(tg.relu(x) + y, x * 2.0, name="z")

    graph = fused(spec)
    assert ops(graph) == [("z", "pointwise", "z")]
    assert [o.tensor for o in graph.ops[0].operands] == ["x", "y"]  # x is read once


@pytest.mark.parametrize("after", ["softmax", "attention", "rope"])
def test_what_carries_no_epilogue(after):
    def spec():
        x = tg.input("x", (2, 4, 6), F)
        y = {
            "softmax": lambda: tg.softmax(x, name="a"),
            "attention": lambda: tg.attention(x, x, x, heads=3, name="a"),
            "rope": lambda: tg.rope(x, heads=3, name="a"),
        }[after]()
        return tg.relu(y, name="r")

    assert ops(fused(spec)) == [("a", after, "a"), ("r", "pointwise", "r")]


def test_renumbering_is_simultaneous():
    assert (
        renumber("e0 + e1 * acc0 + e10", {"e0": "e1", "e1": "e0", "acc0": "acc1"}) == "e1 + e0 * acc1 + e10"
    )


# ---- split sums --------------------------------------------------------------------------------------------


def tiled(graph, tile):
    for op in graph.ops:
        graph = graph.with_op(op.name, replace(op, tile=tile))
    return graph


@pytest.mark.parametrize("splits", [2, 3])
def test_split_sum(splits):
    def spec():
        return tg.relu(
            tg.linear(
                tg.input("x", (4, 40), F), tg.weight("w", (8, 40), F), tg.weight("b", (8,), F), name="up"
            ),
            name="h",
        )

    graph = split_k(tiled(fused(spec), (4, 8, 8)), "up", splits)
    assert [op.name for op in graph.ops] == [*(f"up_k{s}" for s in range(splits - 1)), "up"]
    ranges = [LinearAttributes.of(op).k_range for op in graph.ops]
    assert ranges[0][0] == 0 and ranges[-1][1] == 40
    assert all(a[1] == b[0] and a[1] % 8 == 0 for a, b in zip(ranges, ranges[1:], strict=False))
    partials = [t for t in graph.tensors.values() if t.role == "partial"]
    assert len(partials) == splits - 1 and all(
        t.dtype == "float32" and t.plan_shape == (4, 8) for t in partials
    )
    last = graph.op("up")
    assert last.result == "h" and [o.tensor for o in last.operands] == [
        "x",
        "w",
        "b",
        *(t.name for t in partials),
    ]
    inner = "acc0"
    for s in range(splits - 1):
        inner = f"({inner}+e{s + 1})"
    assert same(last.epilogue.expression, f"relu({inner} + e0)")  # in this order: results are bit-stable


def test_split_of_a_gated_pair():
    def spec():
        gate, up = tg.linear(tg.input("x", (4, 32), F), tg.weight("w", (16, 32), F), name="pair").chunk(2)
        return tg.mul(tg.silu(gate), up, name="h")

    graph = split_k(tiled(fused(spec), (4, 8, 16)), "pair", 2)
    first, last = graph.ops
    assert first.tile == (4, 16, 16) and LinearAttributes.of(first).groups == 1
    assert graph.tensors[first.result].plan_shape == (4, 16)
    assert [o.columns for o in last.operands[2:]] == [(0, 8), (8, 16)]
    assert same(last.epilogue.expression, "silu(acc0 + e0) * (acc1 + e1)")


def test_a_split_op_is_not_split_again():
    def spec():
        return tg.linear(tg.input("x", (4, 64), F), tg.weight("w", (8, 64), F), name="up")

    graph = split_k(tiled(fused(spec), (4, 8, 8)), "up", 2)
    with pytest.raises(tg.PlanError, match="only a whole linear"):
        split_k(graph, "up", 2)


def test_unknown_op():
    def spec():
        return tg.linear(tg.input("x", (4, 64), F), tg.weight("w", (8, 64), F), name="up")

    with pytest.raises(tg.PlanError, match="no op 'down' in spec; its ops are up"):
        fused(spec).op("down")


# --- keys shared out, ropes in appends ----------------------------------------------------------------------


def caches(S=1, other=False, kept=False, fixed=False):
    """An attention over a cache that rotated keys are appended to. other: at another position; kept: the
    rotated keys are an output too."""

    def spec():
        q, x = tg.input("q", (1, S, 16), F), tg.input("x", (1, S, 8), F)
        pos = tg.input("pos", (1,), "int32")
        roped = tg.rope(x, heads=2, at=tg.input("pos2", (1,), "int32") if other else pos, name="turned")
        keys = tg.append(tg.state("cache", (1, 40, 2, 4), F), roped, at=3 if fixed else pos, name="grown")
        y = tg.attention(q, keys, keys, heads=4, kv_heads=2, at=pos, name="y")
        return (y, roped) if kept else y

    return fused(spec)


def test_a_rope_joins_the_append_that_alone_reads_it():
    graph = caches()
    assert [op.name for op in graph.ops] == ["grown", "y"] and "turned" not in graph.tensors
    grown = graph.op("grown")
    assert [o.tensor for o in grown.operands] == ["cache", "x", "pos"]
    assert AppendAttributes.of(grown).theta == 10000.0


@pytest.mark.parametrize("how", [{"other": True}, {"kept": True}, {"fixed": True}, {"S": 17}])
def test_a_rope_stays_apart(how):
    graph = caches(**how)
    assert [op.name for op in graph.ops] == ["turned", "grown", "y"]
    assert AppendAttributes.of(graph.op("grown")).theta is None


def test_split_of_keys():
    graph = tiled(caches(), (1, 8, 2))
    graph = split_kv(graph.with_op("grown", replace(graph.op("grown"), tile=(4,))), "y", 3)
    assert [(op.name, op.kind) for op in graph.ops] == [
        ("grown", "append"),
        ("y_split_kv", "attention"),
        ("y", "combine"),
    ]
    splits, partial = graph.bound(graph.op("y_split_kv")), graph.tensors["y_partial"]
    assert splits.grid == (1, 2, 1, 3) and splits.steps == 2  # five blocks of eight keys
    assert (
        partial.dtype == "float32" and partial.plan_shape == (3, 4 * (4 + 8)) and graph.op("y").result == "y"
    )
    with pytest.raises(PlanError, match="only a whole attention over caches"):
        split_kv(graph, "y_split_kv", 2)
