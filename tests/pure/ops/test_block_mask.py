"""Block masks: which blocks of keys tiles take is what the elements say, and nothing else is awaited."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

import tilegen as tg
from tests.oracles.dependences import disagreement
from tests.oracles.elements import examine
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.block_mask import WORD, fitting, key_blocks
from tilegen.options import Options
from tilegen.proof.checker import check
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import plan
from tilegen.targets.select import place

F = "float32"


def drawn(seed: int) -> tuple[AttentionAttributes, int, int]:
    """An attention with a block mask, and the queries and keys of a tile's step."""
    r = random.Random(seed)
    q_len = r.randint(1, 12)
    k_len, size = q_len + r.randint(0, 40), (r.randint(1, 6), r.randint(1, 6))
    rows = [[r.random() < 0.3 for _ in range(-(-k_len // size[1]))] for _ in range(-(-q_len // size[0]))]
    causal = r.random() < 0.6
    window = r.randint(1, 9) if causal and r.random() < 0.5 else None
    prefix = r.randint(1, k_len) if causal and not window and r.random() < 0.5 else None
    a = AttentionAttributes(
        1, q_len, k_len, 1, 1, 8, 1.0, causal, window=window, prefix=prefix,
        block_mask=tuple(map(tuple, rows)), block_size=size,
    )  # fmt: skip
    return a, r.randint(1, 7), r.randint(1, 9)


def sees(a: AttentionAttributes, i: int, j: int) -> bool:
    assert a.block_mask and a.block_size
    own = i + a.k_len - a.q_len
    near = not a.causal or (j <= own and (a.window is None or j > own - a.window)) or j < (a.prefix or 0)
    return a.block_mask[i // a.block_size[0]][j // a.block_size[1]] and near


@pytest.mark.parametrize("seed", range(60))
def test_taken_and_partial_blocks_are_those_of_the_elements(seed: int) -> None:
    a, tq, tk = drawn(seed)
    assert a.block_mask and a.block_size
    found = key_blocks(a, tq, tk)
    for n, first in enumerate(range(0, a.q_len, tq)):
        queries = range(first, min(first + tq, a.q_len))
        taken = {j // tk for i, j in product(queries, range(a.k_len)) if sees(a, i, j)}
        assert found.taken[n] == (tuple(sorted(taken)) or (0,))
        for block, partial in zip(found.taken[n], found.partial[n], strict=True):
            keys = range(block * tk, min(block * tk + tk, a.k_len))
            hidden = [
                not a.block_mask[i // a.block_size[0]][j // a.block_size[1]] for i in queries for j in keys
            ]
            assert partial == any(hidden)
    for row, words in zip(a.block_mask, found.hidden, strict=True):
        assert [not words[n // WORD] >> n % WORD & 1 for n in range(len(row))] == list(row)


def test_steps_are_parts_of_blocks_where_these_are_large() -> None:
    def of(bk: int, keys: int) -> int:
        a = AttentionAttributes(
            1,
            512,
            3840,
            1,
            1,
            64,
            1.0,
            False,
            block_mask=((True,),),
            block_size=(128, bk),
        )
        return fitting(a, keys)

    assert [of(bk, 128) for bk in (128, 256, 64, 96, 192)] == [128, 128, 64, 96, 96]
    assert [of(bk, 128) for bk in (16, 48, 17)] == [128, 128, 128] and of(128, 96) == 64


@tg.spec
def made_keys(rows=((True, False, True), (False, True, False), (False, False, False)), size=8):
    """Keys that another op makes, eight at a time."""
    k = tg.relu(tg.input("k0", (1, 24, 4), F), name="k")
    q, v = tg.input("q", (1, 24, 4), F), tg.input("v", (1, 24, 4), F)
    return tg.attention(q, k, v, heads=1, block_mask=rows, block_size=size, name="y")


def planned(policies: dict[str, str] | None = None) -> Plan:
    tiles = {"k": (8, 4), "y": (8, 8, 1)}
    return plan(
        made_keys(),
        place("h200", "interpret"),
        Options.of(tiles=tiles, policies=policies or {}),
    )


@pytest.mark.parametrize("policy", ["", "tile", "kernel"])
def test_tiles_wait_for_the_blocks_that_they_take_alone(policy: str) -> None:
    found = planned({"k": policy} if policy else None)
    data = expanded(found)
    assert check(data).ok and examine(data).ok and not disagreement(found.graph)
    makers = {s: t["coord"][0] for t in data["tiles"] if t["op"] == "k" for s, _ in t["ctas"][0]["posts"]}
    for tile in (t for t in data["tiles"] if t["op"] == "y"):
        reads = [r for r in tile["ctas"][0]["reads"] if r["tensor"] == "k"]
        taken = [[0, 2], [1], [0]][tile["coord"][2]]
        assert [r["box"][0] for r in reads] == [[8 * n, 8 * n + 8] for n in taken]
        if policy == "tile":
            assert [makers[s] for r in reads for s, _ in r["waits"]] == taken


def test_what_no_query_of_a_tile_sees_is_in_no_formula() -> None:
    (edge,) = planned().graph.edges
    assert (
        edge.formula() == "k blocks [tg_y_keys[2·i + k], 0]"
        and str(edge.consumer.steps) == "Entry(tg_y_steps, i)"
    )


def test_a_mask_of_all_keys_is_none() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 24, 4) for _ in range(3)]
    full = tg.compile(made_keys(rows=((True,) * 6,) * 2, size=(12, 4)), "cpu")(*given)
    k, q, v = given[0].relu(), given[1], given[2]
    torch.testing.assert_close(full, torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_queries_that_see_no_key_give_zeros() -> None:
    given = [torch.randn(1, 24, 4) for _ in range(3)]
    for target in ("cpu", "interpret"):
        y = tg.compile(made_keys(), target)(*given)
        assert y[:, :16].ne(0).all() and not y[:, 16:].any()


def test_a_table_may_be_a_tensor() -> None:
    rows = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 0]]).bool()
    assert made_keys(rows=rows).calls == made_keys().calls
