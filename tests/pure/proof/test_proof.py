"""Right plans are proved; what the proof derives, and what it says of spoiled plans, is what the element-wise
oracle says."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hand_plans import (
    PLANS,
    Maker,
    Plan,
    blocks,
    conv_strided,
    decode,
    mlp_rows,
    mlp_tiles,
    op,
    part,
    read,
    tensor,
)

from tests.oracles.elements import _parts, examine
from tilegen.proof import memory_order
from tilegen.proof.checker import CHECKS, Certificate, check, prove
from tilegen.proof.plan_input import read_plan
from tilegen.proof.table import Boxes, Findings


@pytest.mark.parametrize("make", PLANS, ids=lambda f: f.__name__)
def test_right_plans_are_proved(make: Any) -> None:
    plan = json.loads(json.dumps(make()))
    before = json.dumps(plan)
    certificate = prove(plan)
    assert certificate.ok and not certificate.violations, certificate.text()
    assert [c.name for c in certificate.checks] == list(CHECKS)
    assert json.dumps(plan) == before
    assert examine(plan).ok


def _elements(
    boxes: Boxes, names: list[str], shapes: list[tuple[int, ...]], part: int
) -> set[tuple[str, tuple[int, ...]]]:
    out = set()
    for i in np.flatnonzero(boxes.cta == part):
        t = int(boxes.tensor[i])
        ranges = [
            range(*r)
            for r in zip(boxes.low[i].tolist(), boxes.high[i].tolist(), boxes.stride[i].tolist(), strict=True)
        ]
        out |= {(names[t], at) for at in product(*ranges[: len(shapes[t])])}
    return out


@pytest.mark.parametrize("make", PLANS, ids=lambda f: f.__name__)
def test_derived_elements_are_the_oracles(make: Any) -> None:
    _compare_elements(make())


def _compare_elements(plan: Plan) -> None:
    findings = Findings()
    table = read_plan(plan, findings)
    assert table is not None, findings.kept
    for number, one in enumerate(_parts(plan)):
        assert _elements(table.needs, table.tensors, table.shapes, number) == one.work.reads, one.name
        assert _elements(table.derived, table.tensors, table.shapes, number) == one.work.writes, one.name


def _random_op(kind: str, r: random.Random) -> Plan:
    """A plan of one op of random shape, tile and cluster; its tiles list nothing."""

    def n(high: int) -> int:
        return r.randint(1, high)

    batch, m, k, cols, d, parts = n(2), n(7), n(7), n(7), n(3), n(3)
    tile, attributes, grid = [n(4), n(4), n(4)], dict[str, Any](), tuple[int, ...]()
    if kind == "linear":
        k0 = r.randrange(k)
        attributes = {"groups": n(2), "k_range": [k0, r.randint(k0 + 1, k)]}
        attributes["epilogue"] = {
            "expression": "acc0",
            "operands": [{"index": 2, "as": "columns"}, {"index": 3, "as": "elements"}],
        }
        operands, result = [[m, k + 2], [attributes["groups"] * cols, k], [cols], [m, cols]], [m, cols]
        grid = (-(-m // tile[0]), -(-cols // tile[1]))
    elif kind == "matmul":
        ta, tb, right = r.random() < 0.5, r.random() < 0.5, r.choice([1, batch])
        attributes = {
            "batch": batch,
            "m": m,
            "n": cols,
            "k": k,
            "transpose_a": ta,
            "transpose_b": tb,
            "b_batch": right,
        }
        operands = [[batch * k, m] if ta else [batch * m, k], [right * cols, k] if tb else [right * k, cols]]
        result, grid = [batch * m, cols], (batch, -(-m // tile[0]), -(-cols // tile[1]))
    elif kind in ("conv2d", "max_pool2d"):
        (h, w), window, out = (n(9), n(9)), [n(3), n(3)], [n(5), n(5)]
        attributes = {
            "stride": [n(4), n(4)],
            "padding": [n(2), n(2)],
            "dilation": [n(3), n(3)],
            "window": window,
        }
        operands = [[batch, h, w, k]] + ([[cols, *window, k]] if kind == "conv2d" else [])
        result, tile = (
            [batch, *out, cols if kind == "conv2d" else k],
            [n(2), n(3), n(3), n(4)] + ([n(3)] if kind == "conv2d" else []),
        )
        grid = tuple(-(-s // t) for s, t in zip(result, tile, strict=False))
    elif kind == "softmax":
        cols += m
        attributes = {"batch": batch, "rows": m, "scale": 1.0, "causal": r.random() < 0.5}
        operands, result, tile, grid = (
            [[batch * m, cols]],
            [batch * m, cols],
            tile[:1],
            (batch, -(-m // tile[0])),
        )
    elif kind == "attention":
        kv, group = n(2), n(2)
        attributes = {
            "batch": batch,
            "q_len": m,
            "k_len": k,
            "heads": kv * group,
            "kv_heads": kv,
            "head_dim": d,
            "scale": 1.0,
        }
        attributes["causal"] = r.random() < 0.7
        operands, result = (
            [[batch * m, kv * group * d], [batch * k, kv * d], [batch * k, kv * d]],
            [batch * m, kv * group * d],
        )
        tile[2] = r.choice([th for th in (1, 2) if group % th == 0])
        grid = (batch, kv * group // tile[2], -(-m // tile[0]))
        cached = r.random() < 0.4
        if not cached and r.random() < 0.5:
            attributes["lengths"] = True
            operands += [[batch]]
        if r.random() < 0.5:
            attributes["alibi"] = True
            operands += [[kv * group]]
        if not cached and r.random() < 0.5:
            sizes = (
                r.choice([s for s in range(1, batch + 1) if batch % s == 0]),
                r.choice([1, kv * group]),
                r.choice([1, m]),
            )
            attributes["bias"] = list(sizes)
            operands += [[math.prod(sizes), k]]
        if not cached and attributes["causal"] and r.random() < 0.5:
            attributes["prefix"] = n(k)
        if not cached and r.random() < 0.5:
            bq, bk = attributes["block_size"] = [n(4), n(4)]
            row = range(-(-k // bk))
            attributes["block_mask"] = [[r.random() < 0.4 for _ in row] for _ in range(-(-m // bq))]
        if not cached and attributes["causal"] and "prefix" not in attributes and r.random() < 0.5:
            attributes["window"] = n(k)
        if cached:  # and the keys shared out
            operands += [[1]]
            splits = n(3)
            if splits > 1:
                attributes["splits"], result, grid, parts = (
                    splits,
                    [splits * batch * m, kv * group * (d + 8)],
                    (*grid, splits),
                    1,
                )
    elif kind == "combine":
        heads, splits = n(4), n(3)
        attributes, operands = (
            {"splits": splits, "heads": heads, "head_dim": d},
            [[splits * m, heads * (d + 8)]],
        )
        result, tile, grid, parts = [m, heads * d], tile[:2], (-(-m // tile[0]), -(-heads // tile[1])), 1
    names: list[Any] = [f"t{i}" for i in range(len(operands))]
    maker = Maker(
        kind,
        {f"t{i}": tensor(shape, "input") for i, shape in enumerate(operands)} | {"y": tensor(result)},
        {},
    )
    if kind == "linear":
        names[0] = {"tensor": "t0", "columns": [1, k + 1]}
    maker.plan["ops"]["o"] = op(kind, names, "y", tile, parts, **attributes)
    for at in product(*map(range, grid)):
        maker.tile("o", at, *({"reads": [], "writes": [], "posts": []} for _ in range(parts)))
    return maker.plan


@pytest.mark.parametrize(
    "kind", ["linear", "matmul", "conv2d", "max_pool2d", "softmax", "attention", "combine"]
)
def test_random_shapes_are_the_oracles(kind: str) -> None:
    for seed in range(40):
        _compare_elements(_random_op(kind, random.Random(seed)))


def test_flattened_operand_is_the_oracles() -> None:
    """Steps of any length over [2, h w c] are boxes of [2, h, w, c]."""
    for step, parts in product(range(1, 25), (1, 2, 3)):
        m = Maker(
            "flat",
            {"x": tensor([2, 2, 3, 4], "input"), "w": tensor([3, 24], "weight"), "y": tensor([2, 3])},
            {
                "o": op(
                    "linear",
                    [{"tensor": "x", "flatten": True}, "w"],
                    "y",
                    [1, 3, step],
                    parts,
                    groups=1,
                    k_range=[step // 3, 23],
                )
            },
        )
        for i in range(2):
            m.tile("o", (i, 0), *({"reads": [], "writes": [], "posts": []} for _ in range(parts)))
        _compare_elements(m.plan)


def test_statement_counts_every_edge() -> None:
    statements = {c.name: c.statement for c in check(mlp_rows()).checks}
    assert "12 reads of 1 written tensor: each of 54 writing CTAs posts before" in statements["coverage"]
    assert "18 waits" in statements["count"] and "9 posts to 3 semaphores" in statements["count"]
    assert "54 edges generic -> generic" in statements["memory order"]


def test_text_and_dict() -> None:
    certificate = check(mlp_tiles())
    assert certificate.text().startswith("mlp_tiles (M = 10) on cpu: proved")
    assert json.loads(json.dumps(certificate.to_dict()))["ok"] is True
    assert certificate.sizes == (("M", 10),) and certificate.machine == "cpu"


def test_strided_listing_may_be_wider() -> None:
    """All columns may be listed where every other one is needed; all rows may not: nobody waits for the odd
    ones."""
    plan = conv_strided()
    for tile in plan["tiles"][6:]:
        tile["ctas"][0]["reads"][0]["box"][2] = [0, 6]
    assert check(plan).ok
    plan["tiles"][6]["ctas"][0]["reads"][0]["box"][1] = [0, 3]
    assert "without a full wait for one (0, 1, 0, 0) rank 1" in check(plan).violations[0].message


def test_one_read_listed_in_pieces() -> None:
    plan = mlp_rows()
    for tile in plan["tiles"]:
        for one in tile["ctas"]:
            head, tail = [list(r) for r in one["reads"][0]["box"]], [list(r) for r in one["reads"][0]["box"]]
            head[1][1] = tail[1][0] = 3
            one["reads"][:1] = [
                {**one["reads"][0], "box": head},
                {"tensor": one["reads"][0]["tensor"], "box": tail, "waits": []},
            ]
    assert check(plan).ok


def test_a_write_listed_in_pieces() -> None:
    plan = mlp_rows()
    for tile in plan["tiles"]:
        for one in tile["ctas"]:
            (rows, columns), name = one["writes"][0]["box"], one["writes"][0]["tensor"]
            one["writes"] = [{"tensor": name, "box": [[r, r + 1], columns]} for r in range(*rows)]
    assert check(plan).ok


def test_positions_need_no_listing() -> None:
    plan = decode()
    for tile in plan["tiles"]:
        tile["ctas"][0]["reads"] = [r for r in tile["ctas"][0]["reads"] if r["tensor"] != "at"]
    assert check(plan).ok and examine(plan).ok


@pytest.mark.parametrize("writer", memory_order.PROXIES)
@pytest.mark.parametrize("reader", memory_order.PROXIES)
def test_memory_order_rows(writer: str, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: Any = ((0, 1) if reader == memory_order.ASYNC else (), writer == memory_order.ASYNC)
    monkeypatch.setitem(memory_order._OF_SM90, "linear", lambda *_: ways)  # type: ignore[index]
    plan = mlp_rows()
    plan["target"] = "sm_90a"
    for tile in plan["tiles"]:
        for one in tile["ctas"]:
            for access, proxy in [(one["writes"][0], writer), *((r, reader) for r in one["reads"])]:
                access["proxy"] = proxy
    statement = prove(plan).checks[-1].statement
    assert f"54 edges {writer} -> {reader}" in statement
    assert ("fence.proxy.async.global" in statement) == (reader == "async")
    assert ("wait_group 0" in statement) == (writer == "async")
    for target in ("cpu", "sm_80", "interpret"):
        assert (memory_order.row(target, writer, reader) is not None) == (
            (writer, reader) == ("generic", "generic")
        )


def test_a_target_that_the_proof_does_not_know_is_named() -> None:
    """What it declares is taken as listed, and the certificate says so."""
    plan = mlp_rows()
    plan["target"] = "toy"
    assert (
        "54 edges generic -> generic: left to target 'toy', not known here"
        in prove(plan).checks[-1].statement
    )


def test_the_first_line_names_what_is_taken_on_trust() -> None:
    plan = mlp_rows()
    plan["ops"]["down"] |= {"kind": "mine", "footprint": "declared"}
    certificate = prove(plan)
    assert certificate.heading.endswith(
        "proved, if down reads and writes what it declares and its ops compute what the program says"
    )
    assert Certificate.from_dict(certificate.to_dict()) == certificate


def swap(plan: Plan, a: int, b: int) -> None:
    tiles = plan["tiles"]
    tiles[a], tiles[b] = tiles[b], tiles[a]
    tiles[a]["rank"], tiles[b]["rank"] = a, b


def _mutants(plan: Plan, chance: random.Random) -> Iterator[Plan]:
    """Plans with one thing changed: waits, posts, ranks, listed reads and writes."""
    tiles = plan["tiles"]
    waits = [
        (t, p, r, w)
        for t, tile in enumerate(tiles)
        for p, one in enumerate(tile["ctas"])
        for r, rd in enumerate(one["reads"])
        for w in range(len(rd["waits"]))
    ]
    posts = [(t, p) for t, tile in enumerate(tiles) for p, one in enumerate(tile["ctas"]) if one["posts"]]
    parts = [(t, p) for t, tile in enumerate(tiles) for p in range(len(tile["ctas"]))]

    def fresh() -> Plan:
        return copy.deepcopy(plan)

    for t, p, r, w in chance.sample(waits, min(8, len(waits))):
        for change in ("drop", "less", "more", "other", "late"):
            new = fresh()
            reads = new["tiles"][t]["ctas"][p]["reads"]
            wait = reads[r]["waits"][w]
            if change == "drop":
                del reads[r]["waits"][w]
            elif change in ("less", "more"):
                wait[1] += 1 if change == "more" else -1
            elif change == "other":
                wait[0] = chance.randrange(len(plan["semaphores"]))
                wait[1] = plan["semaphores"][wait[0]]
            elif r + 1 < len(reads):
                reads[r + 1]["waits"].append(reads[r]["waits"].pop(w))
            yield new
    for t, p in chance.sample(posts, min(6, len(posts))):
        for change in ("drop", "more", "other", "forget"):
            new = fresh()
            post = new["tiles"][t]["ctas"][p]["posts"]
            semaphore = post[0][0]
            if change == "drop":
                post.clear()
            elif change == "more":
                post[0][1] += 1
            elif change == "other":
                post[0][0] = chance.randrange(len(plan["semaphores"]))
            elif plan["semaphores"][semaphore] > 1:  # a count that adds up, without this tile
                post.clear()
                new["semaphores"][semaphore] -= 1
                for wait in (
                    w for x in new["tiles"] for one in x["ctas"] for rd in one["reads"] for w in rd["waits"]
                ):
                    wait[1] -= wait[0] == semaphore
            yield new
    for t, p in chance.sample(parts, min(8, len(parts))):
        for change in ("read", "narrow", "write"):
            new = fresh()
            one = new["tiles"][t]["ctas"][p]
            if change == "read":
                del one["reads"][-1]
            elif change == "narrow":
                box = one["reads"][0]["box"]
                wide = [d for d, b in enumerate(box) if b[1] - b[0] > 1]
                if wide:
                    box[wide[-1]][0] += 1
            else:
                one["writes"] = []
            yield new
    for _ in range(8):
        new = fresh()
        swap(new, *chance.sample(range(len(tiles)), 2))
        yield new


@pytest.mark.parametrize("make", PLANS, ids=lambda f: f.__name__)
def test_agrees_with_the_oracle(make: Callable[[], Plan]) -> None:
    outcomes = []
    for number, plan in enumerate(_mutants(make(), random.Random(7))):
        certificate, report = check(plan), examine(plan)
        assert certificate.ok == report.ok, (number, certificate.text(), report)
        if not certificate.ok:
            assert any(v.message for v in certificate.violations)
        outcomes.append(certificate.ok)
    assert outcomes.count(False) > len(outcomes) // 2


def large(size: int, tile: int, chunks: int) -> Plan:
    """Two square products of `size` in square tiles, a semaphore per producer tile, the sum awaited in
    chunks."""
    m = Maker(
        "large",
        {
            "x": tensor([size, 64], "input"),
            "w1": tensor([size, 64], "weight"),
            "h": tensor([size, size]),
            "w2": tensor([size, size], "weight"),
            "y": tensor([size, size], "output"),
        },
        {
            "up": op("linear", ["x", "w1"], "h", [tile, tile, 64], groups=1),
            "down": op("linear", ["h", "w2"], "y", [tile, tile, 64], groups=1),
        },
    )
    cut = blocks(size, tile)
    one = {at: m.semaphore(1) for at in product(range(len(cut)), range(len(cut)))}
    for (i, r), (j, c) in product(enumerate(cut), enumerate(cut)):
        m.tile(
            "up", (i, j), part([read("x", [r, [0, 64]]), read("w1", [c, [0, 64]])], "h", [r, c], [one[i, j]])
        )
    width = -(-len(cut) // chunks)
    for (i, r), (j, c) in product(enumerate(cut), enumerate(cut)):
        reads = []
        for first in range(0, len(cut), width):
            depth = [first * tile, min((first + width) * tile, size)]
            reads += [
                read("h", [r, depth], m.waits(one[i, k] for k in range(first, min(first + width, len(cut))))),
                read("w2", [c, depth]),
            ]
        m.tile("down", (i, j), part(reads, "y", [r, c]))
    return m.plan


@pytest.mark.parametrize("size, tiles", [(24 * 128, 1152), (100 * 128, 20000)])
def test_large_plans(size: int, tiles: int) -> None:
    plan = large(size, 128, 2)
    assert len(plan["tiles"]) == tiles
    assert check(plan).ok
