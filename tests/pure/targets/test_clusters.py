"""What each part of a cluster reads, waits for, writes and posts, by what the cluster shares: steps, rows or
columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tilegen as tg
from tests.oracles.elements import examine
from tilegen.graph.cost_model import tile_us
from tilegen.ops.cluster import CLUSTER_SHAPES
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.emit import generate

CLUSTER_SPLITS = ("k", "km", "m", "n")


@tg.spec
def mlp(M: int = 10, H: int = 6, I: int = 7, dtype: str = "float32") -> Any:
    x = tg.input("x", (M, H), dtype)
    h = tg.gelu(tg.linear(x, tg.weight("w1", (I, H), dtype), name="up"), name="h")
    return tg.add(tg.linear(h, tg.weight("w2", (H, I), dtype), name="down"), x, name="y")


@tg.spec
def products() -> Any:
    """Batched, both operands transposed; 2 x 7 x 5 from 2 x 7 x 6."""
    a = tg.linear(tg.input("x", (2, 6, 4), "float32"), tg.weight("w", (7, 4), "float32"), name="a")
    return tg.matmul(a, tg.input("c", (2, 5, 6), "float32"), transpose_a=True, transpose_b=True, name="y")


@tg.spec
def convs() -> Any:
    x = tg.input("x", (1, 5, 4, 3), "float32")
    a = tg.conv2d(x, tg.weight("w1", (5, 3, 3, 3), "float32"), padding=1, name="a")
    return tg.conv2d(a, tg.weight("w2", (4, 3, 3, 5), "float32"), padding=1, name="c")


WIDE = {"up": (8, 4, 4), "down": (4, 8, 3)}
TILES = {"up": (4, 4, 4), "down": (4, 4, 3)}


def planned(up: int | str = 1, down: int | str = 1, on: str = "6", **options: Any) -> Plan:
    return tg.plan(
        mlp(),
        on,
        target="cpu",
        cluster={"up": up, "down": down},
        **{"tiles": TILES, "policies": {"h": "tile"}, "order": "op_major", **options},
    )


def parts_of(plan: Plan, op: str, *coord: int) -> list[dict[str, Any]]:
    return next(t["ctas"] for t in expanded(plan)["tiles"] if t["op"] == op and t["coord"] == list(coord))


def boxes(part: dict[str, Any], tensor: str) -> list[Any]:
    return [r["box"] for r in part["reads"] if r["tensor"] == tensor]


def test_steps_are_shared_out() -> None:
    one, two = parts_of(planned(2), "up", 1, 0)
    assert boxes(one, "x") == [[[4, 8], [0, 4]]] and boxes(two, "x") == [[[4, 8], [4, 6]]]
    assert [p["writes"][0]["box"] for p in (one, two)] == [[[4, 8], [0, 2]], [[4, 8], [2, 4]]]


def test_rows_are_shared_out() -> None:
    """Each part reads what the whole tile reads, in all steps, waits for all of it, and finishes its rows."""
    one, two = parts_of(planned(down="2:m"), "down", 1, 0)
    alone = parts_of(planned(), "down", 1, 0)[0]
    for part in (one, two):
        assert [r for r in part["reads"] if r["tensor"] != "x"] == [
            r for r in alone["reads"] if r["tensor"] != "x"
        ]
    assert [p["writes"][0]["box"] for p in (one, two)] == [[[4, 6], [0, 4]], [[6, 8], [0, 4]]]
    # the residual: its own rows only
    assert [boxes(p, "x") for p in (one, two)] == [[[[4, 6], [0, 4]]], [[[6, 8], [0, 4]]]]


def test_steps_are_shared_out_and_rows_finished() -> None:
    one, two = parts_of(planned("2:km"), "up", 1, 0)
    assert boxes(one, "x") == [[[4, 8], [0, 4]]] and boxes(two, "x") == [[[4, 8], [4, 6]]]
    assert [p["writes"][0]["box"] for p in (one, two)] == [[[4, 6], [0, 4]], [[6, 8], [0, 4]]]


def test_columns_are_shared_out() -> None:
    one, two = parts_of(planned(down="2:n"), "down", 1, 1)  # columns 4:6 of a tile of 4
    alone = parts_of(planned(), "down", 1, 1)[0]
    assert one["reads"] == alone["reads"]
    # its share is clipped away
    assert two["reads"] == [r for r in alone["reads"] if r["tensor"] != "x"] and two["writes"] == []
    assert [w["box"] for w in one["writes"]] == [[[4, 8], [4, 6]]]


def test_every_part_posts() -> None:
    for cluster_split in CLUSTER_SPLITS:
        plan = planned(f"2:{cluster_split}")
        assert all(n == 2 for n in plan.targets)
        # rows 8:10 of a tile of 4: where rows are shared out, part 1 writes nothing and posts
        one, two = parts_of(plan, "up", 2, 1)
        assert one["posts"] == two["posts"] != []
        assert bool(two["writes"]) == ("m" not in cluster_split)


@pytest.mark.parametrize("cluster_split", CLUSTER_SPLITS)
@pytest.mark.parametrize("policy", ["row", "tile", "chunk:2"])
def test_plans_are_right(cluster_split: str, policy: str) -> None:
    """By the checker, by the oracle element by element, and after a round trip."""
    for up, down in (
        (f"2:{cluster_split}", 1),
        (1, f"2:{cluster_split}"),
        (f"4:{cluster_split}", f"2:{cluster_split}"),
        ("2:m", f"4:{cluster_split}"),
    ):
        plan = planned(up, down, policies={"h": policy}, scheduling="static")
        back = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert back.digest == plan.digest and back.graph.ops == plan.graph.ops
        assert tg.verify(plan).ok and examine(expanded(back)).ok


@pytest.mark.parametrize("shape", CLUSTER_SHAPES)
@pytest.mark.parametrize("policy", ["row", "tile", "chunk:2"])
def test_plans_of_clusters_with_rows_and_columns_of_ctas_are_right(shape: str, policy: str) -> None:
    for up, down in ((shape, 1), (1, shape), (shape, shape), ("2:k", shape)):
        plan = planned(up, down, on="20", tiles=WIDE, policies={"h": policy}, scheduling="static")
        back = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert back.digest == plan.digest and back.graph.ops == plan.graph.ops
        assert tg.verify(plan).ok and examine(expanded(plan)).ok


def test_a_cta_of_such_a_cluster_has_its_rows_and_columns() -> None:
    """Of a tile of 4 rows and 4 columns at (0, 4), seven columns in all."""
    parts = parts_of(planned("2x2", on="20"), "up", 0, 1)
    assert [[w["box"] for w in part["writes"]] for part in parts] == [
        [[[0, 2], [4, 6]]],
        [[[0, 2], [6, 7]]],
        [[[2, 4], [4, 6]]],
        [[[2, 4], [6, 7]]],
    ]


@pytest.mark.parametrize("cluster_split", CLUSTER_SPLITS)
def test_matmuls_and_convolutions(cluster_split: str) -> None:
    plan = tg.plan(
        products(),
        "6",
        target="interpret",
        tiles={"a": (4, 4, 3), "y": (6, 4, 2)},
        cluster={"a": 2, "y": f"2:{cluster_split}"},
        policies={"a": "tile"},
    )
    assert tg.verify(plan).ok and examine(expanded(plan)).ok
    if "m" not in cluster_split:
        tiles = {"a": (1, 2, 3, 4, 2), "c": (1, 2, 3, 4, 2)}
        plan = tg.plan(
            convs(),
            "6",
            target="interpret",
            tiles=tiles,
            cluster={"a": f"2:{cluster_split}", "c": f"4:{cluster_split}"},
            policies={"a": "tile"},
        )
        assert tg.verify(plan).ok and examine(expanded(plan)).ok


def test_how_gangs_are_asked_for_and_stored() -> None:
    for given, parts, cluster_split in (
        (2, 2, "k"),
        ("2", 2, "k"),
        ("2:k", 2, "k"),
        ("4:m", 4, "m"),
        ("1:m", 1, "k"),
        ("4:km", 4, "km"),
        ("2x2", 4, "2x2"),
    ):
        op = planned(given, on="20").graph.op("up")
        assert (op.cluster, op.cluster_split) == (parts, cluster_split)
    ops = planned("2:m").to_json()["ops"]
    assert (ops["up"]["cluster"], ops["up"]["cluster_split"]) == (2, "m") and "cluster_split" not in ops[
        "down"
    ]
    assert len({planned(f"2:{cluster_split}").digest for cluster_split in CLUSTER_SPLITS}) == 4


def test_a_plan_from_before_shares_steps() -> None:
    data = planned(2).to_json()
    del data["ops"]["up"]["cluster_split"]
    assert Plan.from_json(data).graph.op("up").cluster_split == "k"
    assert tg.verify(data).ok


def test_a_gang_runs_a_tile_in_a_share_of_the_time() -> None:
    """Whatever it shares: half the work of a tile, besides what each tile costs."""

    def work(given: int | str) -> float:
        plan = planned(given)
        return tile_us(plan.graph.bound(plan.graph.op("up")), plan.machine) - plan.machine.tile_us

    for cluster_split in CLUSTER_SPLITS:
        assert work(f"2:{cluster_split}") == pytest.approx(work(1) / 2)


# --- how tiles come and go ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "stores"), [(1, "async"), ("2:n", "async"), ("2:m", "generic")])
def test_proxies_of_a_plan(parts: int | str, stores: str) -> None:
    tiles = {"up": (128, 64, 64), "down": (128, 64, 64)}
    plan = tg.plan(
        mlp(M=256, H=64, I=64, dtype="bfloat16"), "h200", tiles=tiles, cluster={"up": parts, "down": parts}
    )
    for part in parts_of(plan, "up", 0, 0):
        assert {w["proxy"] for w in part["writes"]} == {stores} and {
            r.get("proxy") for r in part["reads"]
        } == {"async"}
    down = parts_of(plan, "down", 0, 0)[0]
    assert {(r["tensor"], r.get("proxy")) for r in down["reads"]} == {
        ("h", "async"),
        ("w2", "async"),
        ("x", None),
    }
    assert f"edges {stores} -> async: " in tg.verify(plan).checks[-1].statement.replace("edge ", "edges ")


# --- static lists -------------------------------------------------------------------------------------------


def test_strided_lists_need_no_table() -> None:
    plan = planned(scheduling="static", on="5")
    assert plan.scheduling == tuple(tuple(range(w, plan.order.count, 5)) for w in range(5))
    assert tg.verify(plan).ok
    text = generate(plan)
    assert "worker + turn * TG_WORKERS" in text and "tg_list" not in text
    data = plan.to_json()
    data["scheduling"][0], data["scheduling"][1] = data["scheduling"][1], data["scheduling"][0]
    assert "tg_list_start[worker] + turn" in generate(Plan.from_json(data))
