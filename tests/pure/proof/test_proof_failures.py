"""Every way of spoiling a plan is found, by name: what reads too early, what posts too little, what can never
run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hand_plans import (
    PLANS,
    Plan,
    attention,
    conv_halo,
    decode,
    mlp_gang,
    mlp_rows,
    mlp_static,
    mlp_tiles,
    part,
    read,
    split_k,
    tensor,
)

from tests.gpu.ops import BIASES
from tests.oracles.elements import examine
from tilegen.errors import ProofError
from tilegen.proof.checker import Certificate, check, prove
from tilegen.schedule.expand import expanded

Spoil = Callable[[Plan], None]


def rank_of(plan: Plan, op: str, *coord: int) -> int:
    return next(int(t["rank"]) for t in plan["tiles"] if t["op"] == op and t["coord"] == list(coord))


def part_of(plan: Plan, op: str, *coord: int, index: int = 0) -> dict[str, Any]:
    one: dict[str, Any] = plan["tiles"][rank_of(plan, op, *coord)]["ctas"][index]
    return one


def swap(plan: Plan, a: int, b: int) -> None:
    tiles = plan["tiles"]
    tiles[a], tiles[b] = tiles[b], tiles[a]
    tiles[a]["rank"], tiles[b]["rank"] = a, b


def failing(plan: Plan, check_name: str, *words: str) -> Certificate:
    """The plan fails this check with one message that holds all these words; prove raises; the oracle
    agrees."""
    certificate = check(plan)
    assert not certificate.ok and not examine(plan).ok
    messages = [v.message for v in certificate.violations if v.check == check_name]
    assert any(all(w in m for w in words) for m in messages), (words, certificate.text())
    with pytest.raises(ProofError) as caught:
        prove(plan)
    assert caught.value.certificate == certificate
    return certificate


def test_dropped_wait_names_all() -> None:
    plan = mlp_rows()
    part_of(plan, "down", 0, 1)["reads"][0]["waits"] = []
    certificate = failing(
        plan,
        "coverage",
        "down (0, 1) rank 10 reads h[0:3, 0:7] without a full wait for up (0, 0) rank 0, which writes "
        "h[0:4, 0:3] and posts to semaphore 0; awaited: none (2 more such ranges)",
    )
    assert [v.rank for v in certificate.violations] == [10]


def test_forgotten_second_row_block() -> None:
    """cuSync 5.2 b: rows 3-5 of the consumer meet two blocks of 4 rows; only that of its first row is
    awaited."""
    plan = mlp_rows()
    for tile in plan["tiles"]:
        tile["ctas"][0]["reads"][0]["waits"] = tile["ctas"][0]["reads"][0]["waits"][:1]
    failing(
        plan,
        "coverage",
        "down (1, 0) rank 12 reads h[3:6, 0:7] without a full wait for up (1, 0) rank 3",
        "awaited: 0",
    )


def test_split_sum_that_skips_its_first_wait() -> None:
    """cuSync 5.2 c: a share that begins inside a producer tile (column 4 of 3:6) does not wait for that
    tile."""
    plan = split_k()
    del part_of(plan, "down", 0, 0)["reads"][0]["waits"][0]
    failing(
        plan,
        "coverage",
        "down (0, 0) rank 11 reads h[0:5, 4:7] without a full wait for up (0, 1) rank 1, which writes h[0:4,"
        " 3:6]",
    )


def test_partial_sum_not_awaited() -> None:
    plan = split_k()
    part_of(plan, "down", 1, 0)["reads"][2]["waits"] = []
    failing(
        plan,
        "coverage",
        "down (1, 0) rank 12 reads p[5:10, 0:5] without a full wait for share (1, 0) rank 10",
    )
    failing(plan, "count", "nobody waits for semaphore 10 (share (1, 0) rank 10 posts to it)")


def test_wait_one_step_late() -> None:
    """cuSync 5.2 a: the wait for columns 3:6 stands one step behind the read that begins them."""
    plan = mlp_tiles()
    reads = part_of(plan, "down", 0, 0)["reads"]
    reads[4]["waits"], reads[2]["waits"] = reads[2]["waits"], []
    failing(
        plan,
        "coverage",
        "down (0, 0) rank 9 reads h[0:3, 2:4] without a full wait for up (0, 1) rank 1, which writes h[0:4,"
        " 3:6]",
    )


def test_forgotten_halo_in_the_waits() -> None:
    """cuSync 5.2 d."""
    plan = conv_halo()
    waits = part_of(plan, "two", 1, 1, 0, 0)["reads"][0]["waits"]
    del waits[0]
    failing(
        plan,
        "coverage",
        "two (1, 1, 0, 0)",
        "reads a[1:2, 1:5, 0:4, 0:4] without a full wait for one (1, 0, 0, 0)",
    )


def test_forgotten_halo_in_the_reads() -> None:
    """A planner that knows no halo lists too little, and waits for just that."""
    plan = conv_halo()
    for tile in plan["tiles"]:
        if tile["op"] == "two":
            first = tile["ctas"][0]["reads"][0]
            first["box"][1] = [2 * tile["coord"][1], 2 * tile["coord"][1] + 2]
            first["waits"] = [w for w in first["waits"] if w[0] == 3 * tile["coord"][0] + tile["coord"][1]]
    failing(
        plan,
        "coverage",
        "two (0, 0, 0, 0) rank 12 reads a[0:1, 0:3, 0:4, 0:4], the listed reads leave out a[0:1, 2:3, 0:4,"
        " 0:4]",
    )


def test_keys_not_awaited() -> None:
    """cuSync 5.2 f: queries are awaited, keys are not."""
    plan = attention()
    part_of(plan, "attend", 1, 3, 1)["reads"][1]["waits"] = []
    failing(
        plan, "coverage", "attend (1, 3, 1)", "reads qkv[6:8, 10:12] without a full wait for project (1, 2)"
    )


def test_what_is_added_to_scores_is_not_awaited() -> None:
    plan = expanded(next(c for c in BIASES if c.name == "a bias that another op makes").plan(4))
    assert check(plan).ok
    read = next(r for r in part_of(plan, "y", 1, 2, 0)["reads"] if r["tensor"] == "added")
    assert read["waits"] and read["box"] == [[394, 522], [0, 197]]  # of its head and queries
    read["waits"] = []
    failing(plan, "coverage", "y (1, 2, 0)", "reads added[394:", "without a full wait for added")


def test_cache_row_at_a_run_time_position() -> None:
    """Attention over a cache waits for the append of its whole batch, as any row may be the new one."""
    plan = decode()
    part_of(plan, "attend", 1, 0, 0)["reads"][2]["waits"] = []
    failing(
        plan,
        "coverage",
        "attend (1, 0, 0)",
        "reads keys[8:16, 0:2] without a full wait for append_k (1, 0)",
        "writes keys[8:16, 0:2]",
    )


def test_append_lists_less_than_it_may_write() -> None:
    plan = decode()
    part_of(plan, "append_k", 0, 0)["writes"][0]["box"] = [[0, 1], [0, 2]]
    failing(
        plan,
        "coverage",
        "append_k (0, 0)",
        "lists a write of keys[0:1, 0:2], its op may write keys[0:8, 0:2]",
    )


def test_gang_part_that_does_not_wait() -> None:
    plan = mlp_gang()
    part_of(plan, "down", 2, 1, index=1)["reads"][0]["waits"] = []
    failing(
        plan,
        "coverage",
        "down (2, 1) rank 14 CTA 1 reads h[8:10, 4:7] without a full wait for up (2, 1) rank 7 CTA 1",
    )


@pytest.mark.parametrize("change", [-1, 1])
def test_wait_for_another_count(change: int) -> None:
    plan = mlp_rows()
    part_of(plan, "down", 3, 2)["reads"][0]["waits"][0][1] += change
    failing(
        plan,
        "count",
        f"down (3, 2) rank 20 waits for {3 + change} posts of semaphore 2, its full target is 3",
    )
    failing(
        plan, "coverage", "down (3, 2) rank 20 reads h[9:10, 0:7] without a full wait for up (2, 0) rank 6"
    )


@pytest.mark.parametrize("change", [-1, 1])
def test_another_target(change: int) -> None:
    plan = mlp_rows()
    plan["semaphores"][1] += change
    for tile in plan["tiles"]:
        for wait in tile["ctas"][0]["reads"][0]["waits"]:
            wait[1] += change if wait[0] == 1 else 0
    failing(
        plan,
        "count",
        f"semaphore 1 gets 3 posts, from up (1, 0) rank 3 to up (1, 2) rank 5, its target is {3 + change}",
    )
    failing(plan, "reuse", "semaphore 1", "cannot be zeroed safely")


def test_wrong_semaphore_index() -> None:
    plan = mlp_rows()
    part_of(plan, "down", 3, 0)["reads"][0]["waits"] = [[1, 3]]
    failing(
        plan,
        "coverage",
        "down (3, 0) rank 18 reads h[9:10, 0:7] without a full wait for up (2, 0) rank 6",
        "awaited: 1",
    )


def test_missing_and_extra_posts() -> None:
    plan = mlp_rows()
    part_of(plan, "up", 0, 1)["posts"] = []
    failing(plan, "count", "semaphore 0 gets 2 posts, from up (0, 0) rank 0", "its target is 3")
    failing(plan, "coverage", "without a full wait for up (0, 1) rank 1", "posts to no semaphore")
    plan = mlp_rows()
    part_of(plan, "down", 3, 2)["posts"] = [[2, 1]]
    failing(plan, "count", "semaphore 2 gets 4 posts", "to down (3, 2) rank 20")
    failing(
        plan,
        "progress",
        "down (2, 0) rank 15 waits for semaphore 2, to which down (3, 2) rank 20 posts later",
    )


def test_semaphore_without_posts() -> None:
    plan = mlp_rows()
    plan["semaphores"].append(1)
    failing(plan, "count", "semaphore 3 gets 0 posts, its target is 1")
    failing(plan, "count", "nobody waits for semaphore 3")


def test_swapped_ranks() -> None:
    plan = mlp_rows()
    swap(plan, 8, 20)
    failing(
        plan, "progress", "down (3, 2) rank 8 waits for semaphore 2, to which up (2, 2) rank 20 posts later"
    )


def test_wait_for_the_own_tile() -> None:
    plan = mlp_gang()
    semaphore = len(plan["semaphores"])
    plan["semaphores"].append(1)
    part_of(plan, "down", 0, 0)["posts"] = [[semaphore, 1]]
    part_of(plan, "down", 0, 0, index=1)["reads"][0]["waits"].append([semaphore, 1])
    certificate = check(plan)
    assert any(
        f"down (0, 0) rank 9 CTA 1 waits for semaphore {semaphore}, to which its own tile posts" in v.message
        for v in certificate.violations
        if v.check == "progress"
    )


def test_reads_out_of_step_order() -> None:
    """The first step's columns listed behind the last step's: their wait would come too late."""
    plan = mlp_tiles()
    reads = part_of(plan, "down", 0, 0)["reads"]
    reads[0], reads[6] = reads[6], reads[0]
    certificate = check(plan)
    assert any(
        "down (0, 0) rank 9 reads h[0:3, 0:2] in step 0, but lists it behind a wait of step 3" in v.message
        for v in certificate.violations
    )


def test_overlapping_writes() -> None:
    plan = mlp_rows()
    part_of(plan, "up", 0, 1)["writes"][0]["box"] = [[0, 4], [2, 6]]
    failing(plan, "coverage", "up (0, 1) rank 1 lists a write of h[0:4, 2:6], its op writes h[0:4, 3:6]")


def test_two_ops_write_one_element() -> None:
    plan = mlp_rows()
    plan["ops"]["again"] = {**plan["ops"]["down"], "tile": [10, 5, 7]}
    reads = [read("h", [[0, 10], [0, 7]], [(0, 3), (1, 3), (2, 3)]), read("w2", [[0, 5], [0, 7]])]
    plan["tiles"].append(
        {"rank": 21, "op": "again", "coord": [0, 0], "ctas": [part(reads, "y", [[0, 10], [0, 5]])]}
    )
    certificate = failing(
        plan, "single writer", "again (0, 0) rank 21 writes y[0:3, 0:2], which down (0, 0) rank 9 writes too"
    )
    assert next(c for c in certificate.checks if c.name == "single writer").statement == "12 violations"


def test_incomplete_output() -> None:
    plan = mlp_rows()
    plan["tensors"]["z"] = tensor([2, 2], "output")
    failing(plan, "single writer", "no tile writes output z")
    plan = mlp_rows()
    plan["tensors"]["z"] = tensor([20, 6], "output")
    attributes = {"batch": 2, "seq": 5, "max_len": 10, "at": 3}
    plan["ops"]["add"] = {
        "kind": "append",
        "attributes": attributes,
        "operands": ["z", "x"],
        "result": "z",
        "tile": [6],
        "cluster": 1,
    }
    for b in range(2):
        one = part([read("x", [[5 * b, 5 * b + 5], [0, 6]])], "z", [[10 * b + 3, 10 * b + 8], [0, 6]])
        plan["tiles"].append({"rank": 21 + b, "op": "add", "coord": [b, 0], "ctas": [one]})
    failing(plan, "single writer", "no tile writes z[0:3, 0:6] of output z, nor 2 more such ranges")


def test_read_that_nobody_writes() -> None:
    plan = mlp_rows()
    plan["tensors"]["x"]["role"] = "intermediate"
    failing(plan, "coverage", "up (0, 0) rank 0 reads x[0:4, 0:6]: no tile writes this intermediate")


def test_static_lists() -> None:
    plan = mlp_static()
    plan["scheduling"][0] = plan["scheduling"][0][::-1]
    failing(
        plan,
        "progress",
        "up (0, 0) rank 0 stands behind rank 3 in the static list of SM 0: lists must ascend",
    )
    plan = mlp_static()
    plan["scheduling"][1].remove(4)
    failing(plan, "progress", "up (1, 1) rank 4 stands 0 times in the static lists, expected once")
    plan = mlp_static()
    plan["scheduling"][1].append(99)
    assert any("hold rank 99" in v.message for v in check(plan).violations)
    plan = mlp_static()
    plan["machine"]["sms"] = 2
    assert any("3 static lists, but cpu has 2 SMs" in v.message for v in check(plan).violations)


def test_unknown_proxy_and_missing_chain() -> None:
    plan = mlp_rows()
    part_of(plan, "up", 0, 0)["writes"][0]["proxy"] = "telepathy"
    messages = [v.message for v in check(plan).violations if v.check == "memory order"]
    assert messages[0] == "up (0, 0) rank 0 writes through proxy 'telepathy', expected one of generic, async"
    part_of(plan, "up", 0, 0)["writes"][0]["proxy"] = "async"
    assert any(
        "kernels for cpu have no such chain" in v.message
        for v in check(plan).violations
        if v.check == "memory order"
    )


@pytest.mark.parametrize("verb, tensor", [("writes", "h"), ("reads", "h"), ("reads", "w2")])
def test_other_proxies_than_the_kernels(verb: str, tensor: str) -> None:
    """A plan for sm_90a whose reads and writes are listed as its kernels do them, and one that is listed
    otherwise."""
    plan = mlp_rows()
    plan["target"] = "sm_90a"
    accesses = [a for tile in plan["tiles"] for one in tile["ctas"] for a in one["reads"]]
    for access in accesses:
        access["proxy"] = "async"
    assert check(plan).ok
    listed = [a for tile in plan["tiles"] for one in tile["ctas"] for a in one[verb] if a["tensor"] == tensor]
    listed[-1]["proxy"] = "generic" if verb == "reads" else "async"
    messages = [v.message for v in check(plan).violations if v.check == "memory order"]
    op, right = ("up", "generic") if verb == "writes" else ("down", "async")
    expected = (
        f"{op} {verb} {tensor} through the async and the generic proxy, kernels for sm_90a through the"
        f" {right} one"
    )
    assert messages == [expected]


def test_violations_are_capped_and_counted() -> None:
    plan = mlp_tiles()
    for tile in plan["tiles"]:
        for one in tile["ctas"][0]["reads"]:
            one["waits"] = []
    certificate = check(plan)
    assert sum(v.check == "coverage" for v in certificate.violations) == 20
    assert next(c for c in certificate.checks if c.name == "coverage").statement == "48 violations"


def set_at(*path: Any) -> Spoil:
    """Sets plan[path[0]]…[path[-2]] to path[-1]."""

    def spoil(plan: Plan) -> None:
        node: Any = plan
        for key in path[:-2]:
            node = node[key]
        node[path[-2]] = path[-1]

    return spoil


def drop(*path: Any) -> Spoil:
    def spoil(plan: Plan) -> None:
        node: Any = plan
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return spoil


FIRST_READ = ("tiles", 9, "ctas", 0, "reads", 0)
MALFORMED: list[tuple[Spoil, str]] = [
    (set_at("version", 1), "version is 1, expected 3"),
    (set_at("target", 3), "target is 3"),
    (drop("tensors"), "key 'tensors' is missing"),
    (set_at("lowering", "magic"), "lowering is 'magic'"),
    (set_at("machine", "sms", 0), "sms 0"),
    (set_at("scheduling", [[0.5]]), "scheduling is"),
    (set_at("tensors", "h", "shape", [10, -7]), "tensor 'h' has shape [10, -7]"),
    (set_at("tensors", "h", "role", "muse"), "role 'muse'"),
    (set_at("semaphores", 0, 0), "semaphore targets hold 0"),
    (set_at("semaphores", 0, float("nan")), "semaphore targets hold nan"),
    (set_at("ops", "down", "kind", "lineal"), "op 'down': kind is 'lineal'"),
    (drop("ops", "down", "tile"), "op 'down': key 'tile' is missing"),
    (set_at("ops", "down", "tile", [3, 2]), "tile [3, 2] has 2 entries"),
    (set_at("ops", "down", "operands", ["h"]), "1 operands given"),
    (
        set_at("ops", "down", "operands", ["x", "w2"]),
        "op 'down': operand 1 (w2) has shape [5, 7], expected [5, 6]",
    ),
    (set_at("ops", "down", "attributes", "eps", float("nan")), "op 'down': an attribute is not finite"),
    (set_at("ops", "down", "attributes", "k_range", [3, 9]), "k_range is [3, 9]"),
    (set_at("ops", "up", "result", "x"), "result x has role input"),
    (set_at("tiles", 9, "rank", 8), "tile at position 9: rank is 8, expected 9"),
    (set_at("tiles", 9, "op", "sideways"), "op 'sideways' is unknown"),
    (set_at("tiles", 9, "coord", [7, 0]), "op 'down': tile (7, 0) is outside the grid 4 x 3"),
    (set_at("tiles", 9, "coord", [0, 1]), "op 'down': tile (0, 1) is listed twice"),
    (
        lambda plan: plan["tiles"].pop(),
        "op 'down': tile (3, 2) is missing: the grid 4 x 3 has 12 tiles, 11 are listed",
    ),
    (set_at("tiles", 9, "ctas", []), "down (0, 0) rank 9 has 0 CTAs, its op has 1"),
    (set_at("tiles", 9, "ctas", 0, "posts", [[5, 1]]), "semaphore 5 is unknown"),
    (set_at(*FIRST_READ, "waits", [[0, "3"]]), "wait for '3'"),
    (set_at("tiles", 0, "ctas", 0, "posts", [[0, -1]]), "post of -1"),
    (set_at(*FIRST_READ, "tensor", "g"), "tensor 'g' is unknown"),
    (set_at(*FIRST_READ, "box", [[0, 3]]), "down (0, 0) rank 9: box [[0, 3]] of tensor h [10, 7]"),
    (set_at(*FIRST_READ, "box", [[0, 0], [0, 7]]), "box [[0, 0], [0, 7]]"),
    (set_at(*FIRST_READ, "box", [[0, 3], [0, 8]]), "box [[0, 3], [0, 8]]"),
    (set_at(*FIRST_READ, "box", [[0, 3], [0, 7, 0]]), "box"),
    (set_at(*FIRST_READ, "box", [[0, 3], [0, float("nan")]]), "nan"),
    (set_at(*FIRST_READ, "box", [[0, 3], [False, 7]]), "box"),
    (set_at(*FIRST_READ, "box", 7), "box 7"),
]


@pytest.mark.parametrize("spoil, message", MALFORMED, ids=[m for _, m in MALFORMED])
def test_malformed(spoil: Spoil, message: str) -> None:
    plan = mlp_rows()
    spoil(plan)
    certificate = check(plan)
    assert {v.check for v in certificate.violations} == {"format"}
    assert any(message in v.message for v in certificate.violations), certificate.text()
    assert not any(c.ok for c in certificate.checks)


@pytest.mark.parametrize(
    "junk", [None, [], "plan", 3, {}, {"version": 3}, {"version": 2, "program": 1, "machine": []}]
)
def test_not_a_plan(junk: Any) -> None:
    assert not check(junk).ok


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from _nodes(inner, (*path, key))


@pytest.mark.parametrize("make", PLANS, ids=lambda f: f.__name__)
def test_junk_anywhere_never_raises(make: Callable[[], Plan]) -> None:
    """Any one value replaced by junk gives a certificate, and no junk in a tile is overlooked."""
    plan, chance = make(), random.Random(1)
    paths = [p for p in _nodes(plan) if p]
    for path in chance.sample(paths, 60):
        junks: list[Any] = [None, -1, (1 << 31) - 1, 1 << 70, "junk", [], {}, float("nan"), [[[]]], True]
        for junk in junks:
            spoiled = copy.deepcopy(plan)
            set_at(*path, junk)(spoiled)
            if spoiled == plan:
                continue
            certificate = check(spoiled)
            assert json.dumps(certificate.to_dict()) and certificate.text()
            assert "tiles" not in path or not certificate.ok, (path, junk)
