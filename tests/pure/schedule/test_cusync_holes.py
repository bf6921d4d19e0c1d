"""The holes of hand-written tile synchronisation (cuSync as published), one by one: the plan made here has
none of them, and the hole, put into the plan, is refused by the proof, which names the tile and the edge that
is missing."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import tilegen as tg
from tilegen.codegen.schedule import schedule_text
from tilegen.errors import DeadlockError
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.kernels.kernel import Kernel
from tilegen.proof.checker import check
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.emit import generate
from tilegen.targets.interpret.interpreter import STRATEGIES, Interpreter

Data = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def example(name: str, **sizes: Any) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), {"dtype": "float32", **sizes})


def proved(program: Program, on: str = "cpu:3", **options: Any) -> Data:
    """The expanded plan, which is right."""
    data = expanded(tg.plan(program, on, target="interpret", **options))
    certificate = check(data)
    assert certificate.ok, certificate.text()
    return data


def tiles(data: Data, op: str) -> Iterator[Data]:
    return (t for t in data["tiles"] if t["op"] == op)


def reads(tile: Data, tensor: str, part: int = 0) -> list[Data]:
    return [r for r in tile["ctas"][part]["reads"] if r["tensor"] == tensor]


def meet(a: list[list[int]], b: list[list[int]]) -> bool:
    return all(x[0] < y[1] and y[0] < x[1] for x, y in zip(a, b, strict=True))


def first_uses(tile: Data, data: Data, tensor: str, part: int = 0) -> Iterator[tuple[Data, int, int]]:
    """(producer tile, number of the first read of the part that meets its writes, number of the first read
    behind a wait for it)"""
    mine = reads(tile, tensor, part)
    for producer in data["tiles"]:
        for other in producer["ctas"]:
            met = [
                n
                for n, r in enumerate(mine)
                for w in other["writes"]
                if w["tensor"] == tensor and meet(r["box"], w["box"])
            ]
            if met:
                semaphores = {s for s, _ in other["posts"]}
                awaited = [
                    n
                    for n, r in enumerate(mine)
                    if any(s in semaphores and target == data["semaphores"][s] for s, target in r["waits"])
                ]
                yield producer, met[0], min(awaited, default=len(mine))


def refused(data: Data, spoil: Callable[[Data], None], *words: str, check_name: str = "coverage") -> None:
    """The peer's policy in the plan: one violation of this check holds all the words."""
    spoiled = copy.deepcopy(data)
    spoil(spoiled)
    assert spoiled != data
    certificate = check(spoiled)
    assert not certificate.ok
    messages = [v.message for v in certificate.violations if v.check == check_name]
    assert any(all(w in m for w in words) for m in messages), (words, certificate.text())


# --- a ------------------------------------------------------------------------------------------------------


def test_a_mainloop_off_by_one() -> None:
    """While loading K block j+1 the peer waits for block j: the first block of every producer tile after the
    first comes unawaited."""
    data = proved(
        example("gpt3_mlp", M=64, H=64, I=256),
        tiles={"up": (32, 64, 32), "down": (32, 32, 32)},
        policies={"h": "tile"},
    )
    later = 0
    for tile in tiles(data, "down"):
        for _, first, awaited in first_uses(tile, data, "h"):
            assert awaited <= first
            later += first > 0
    # the producer tiles behind the first one, each awaited at its own first block
    assert later == 3 * len(list(tiles(data, "down")))

    def one_block_late(d: Data) -> None:
        for tile in tiles(d, "down"):
            blocks = reads(tile, "h")
            for now, after in reversed(list(zip(blocks[1:], blocks[2:], strict=False))):
                after["waits"] = now["waits"]
            blocks[1]["waits"] = []

    words = (
        "down (0, 0) rank 8 reads h[0:32, 64:96] without a full wait for up (0, 1) rank 1, which writes"
        " h[0:32, 64:128]"
    )
    spread = split_by_block(data)
    assert check(spread).ok
    refused(spread, one_block_late, words)


def split_by_block(data: Data) -> Data:
    """The plan with every read of h listed K block by K block, as the loop loads them."""
    data = copy.deepcopy(data)
    for tile in tiles(data, "down"):
        out = []
        for r in tile["ctas"][0]["reads"]:
            lo, hi = r["box"][1]
            cuts = range(lo, hi, 32) if r["tensor"] == "h" else [lo]
            step = 32 if r["tensor"] == "h" else hi - lo
            out += [
                {**r, "box": [r["box"][0], [k, min(k + step, hi)]], "waits": r["waits"] if k == lo else []}
                for k in cuts
            ]
        tile["ctas"][0]["reads"] = out
    return data


# --- b ------------------------------------------------------------------------------------------------------


# rows, rows of a producer's and of a consumer's tile; the first consumer tile that spans two, and the second
# of these
SPANNING = [(1280, 160, 256, (0, 1)), (1536, 128, 256, (0, 1)), (768, 160, 128, (1, 1))]


@pytest.mark.parametrize("rows, producer, consumer, spanning", SPANNING)
@pytest.mark.parametrize("policy", ["row", "tile"])
def test_b_several_row_blocks(
    rows: int, producer: int, consumer: int, spanning: tuple[int, int], policy: str
) -> None:
    """The peer's semaphore is that of the consumer's first row, though the consumer's rows meet several
    producer tiles."""
    program = example("gpt3_mlp", M=rows, H=64, I=128)
    data = proved(
        program,
        "h200",
        tiles={"up": (producer, 64, 64), "down": (consumer, 64, 64)},
        policies={"h": policy},
        order="op_major",
    )
    several = 0
    for tile in tiles(data, "down"):
        low, high = reads(tile, "h")[0]["box"][0]
        blocks = {p["coord"][0] for p, first, awaited in first_uses(tile, data, "h") if awaited <= first}
        assert blocks == set(range(low // producer, (high - 1) // producer + 1))
        several += len(blocks) > 1
    assert several

    def first_row_only(d: Data) -> None:
        of_row = {s: t["coord"][0] for t in tiles(d, "up") for s, _ in t["ctas"][0]["posts"]}
        for tile in tiles(d, "down"):
            for r in reads(tile, "h"):
                r["waits"] = [w for w in r["waits"] if of_row[w[0]] == r["box"][0][0] // producer]

    row, missing = spanning
    read = f"reads h[{row * consumer}:{min((row + 1) * consumer, rows)}, "
    refused(
        data,
        first_row_only,
        f"down ({row}, 0) rank ",
        read,
        f"without a full wait for up ({missing}, 0) rank ",
    )


# --- c ------------------------------------------------------------------------------------------------------


def test_c_split_sum_inside_a_producer_tile() -> None:
    """The peer waits where k is a multiple of the producer's tile width; a share that begins at k = 704 of
    tiles of 128 skips its first."""
    program = example("gpt3_mlp", M=64, H=64, I=1408)
    data = proved(
        program,
        tiles={"up": (64, 128, 64), "down": (64, 64, 64)},
        split_k={"down": 2},
        policies={"h": "tile"},
        order="op_major",
    )
    assert data["ops"]["down"]["attributes"]["k_range"] == [704, 1408] and 704 % 128 == 64
    for tile in tiles(data, "down"):
        uses = {p["coord"][1]: (first, awaited) for p, first, awaited in first_uses(tile, data, "h")}
        assert sorted(uses) == [5, 6, 7, 8, 9, 10] and uses[5] == (0, 0)
        assert reads(tile, "h")[0]["box"][1][0] == 704

    def multiples_only(d: Data) -> None:
        for op in ("down_k0", "down"):
            for tile in tiles(d, op):
                for r in reads(tile, "h"):
                    r["waits"] = [] if r["box"][1][0] % 128 else r["waits"]

    refused(
        data,
        multiples_only,
        "down (0, 0) rank",
        "reads h[0:64, 704:768] without a full wait for up (0, 5) rank 5, which writes h[0:64, 640:768]",
    )


# --- d ------------------------------------------------------------------------------------------------------


@tg.spec
def two_convs():
    x = tg.input("x", (1, 56, 56, 4), "float32")
    w1, w2 = (tg.weight(name, (4, 3, 3, 4), "float32") for name in ("w1", "w2"))
    return tg.conv2d(tg.relu(tg.conv2d(x, w1, padding=1, name="one")), w2, padding=1, name="two")


def test_d_halo() -> None:
    """A 3x3 consumer also reads the pixels before and after its own (rows of 56: 57); the peer waits for the
    block of its own only."""
    data = proved(
        two_convs(),
        tiles={"one": (1, 2, 56, 4, 4), "two": (1, 2, 56, 4, 4)},
        policies={"*": "tile"},
        order="op_major",
    )
    tensor = data["ops"]["one"]["result"]
    for tile in tiles(data, "two"):
        row = tile["coord"][1]
        uses = {p["coord"][1]: awaited <= first for p, first, awaited in first_uses(tile, data, tensor)}
        assert uses == {r: True for r in (row - 1, row, row + 1) if 0 <= r < 28}
        assert reads(tile, tensor)[0]["box"][1] == [max(0, 2 * row - 1), min(56, 2 * row + 3)]

    def own_block_only(d: Data) -> None:
        posted = {t["coord"][1]: t["ctas"][0]["posts"][0][0] for t in tiles(d, "one")}
        for tile in tiles(d, "two"):
            for r in reads(tile, tensor):
                r["waits"] = [w for w in r["waits"] if w[0] == posted[tile["coord"][1]]]

    def block_before_only(d: Data) -> None:
        posted = {t["coord"][1]: t["ctas"][0]["posts"][0][0] for t in tiles(d, "one")}
        for tile in tiles(d, "two"):
            for r in reads(tile, tensor):
                r["waits"] = [w for w in r["waits"] if w[0] <= posted[tile["coord"][1]]]

    read = f"two (0, 5, 0, 0) rank 33 reads {tensor}[0:1, 9:13, 0:56, 0:4] without a full wait for one "
    refused(data, own_block_only, f"{read}(0, 4, 0, 0) rank 4")
    refused(data, block_before_only, f"{read}(0, 6, 0, 0) rank 6")


# --- e ------------------------------------------------------------------------------------------------------


@tg.spec
def two_operands():
    """Both operands of the product, and what is added in the epilogue, are made by tiles."""
    x = tg.input("x", (1, 12, 8), "float32")
    w = [tg.weight(f"w{n}", (8, 8), "float32") for n in range(3)]
    a, b, c = (tg.linear(x, v, name=name) for name, v in zip("abc", w, strict=True))
    d = tg.matmul(a, b, transpose_b=True, name="d")
    return tg.matmul(d, c, name="y")


def test_e_every_operand_waits_for_itself() -> None:
    """In the peer's reordered path one warp waits, and the others load without; here each operand has its own
    waits, before its read."""
    plan = tg.plan(
        two_operands(),
        "cpu:3",
        tiles={"d": (4, 4, 4), "y": (4, 4, 4)},
        policies={"*": "row"},
        order="op_major",
    )
    data, text = expanded(plan), schedule_text(plan)
    assert check(data).ok
    for op, operands in (("d", "ab"), ("y", "dc")):
        function = text[text.index(f"tg_waits_{op}(") :]
        function = function[: function.index("\n}\n")]
        assert re.findall(r"if \(operand == (\d)", function) == ["0", "1"]
        for tile, tensor in product(tiles(data, op), operands):
            uses = list(first_uses(tile, data, tensor))
            assert uses and all(awaited <= first for _, first, awaited in uses)

    def second_goes_without(d: Data) -> None:
        for tile in tiles(d, "d"):
            for r in reads(tile, "b"):
                r["waits"] = []

    refused(
        data, second_goes_without, "d (0, 0, 0) rank", " reads b[0:4, ", "without a full wait for b (0, 0)"
    )


def test_e_every_part_of_a_gang_waits_for_itself() -> None:
    """The same among the CTAs of a cluster: that one of them has waited says nothing of the reads of
    another."""
    program = example("gpt3_mlp", M=32, H=32, I=64)
    options = {
        "tiles": {"up": (16, 32, 32), "down": (16, 16, 16)},
        "cluster": {"down": 2},
        "policies": {"h": "row"},
        "order": "op_major",
    }
    data = proved(program, "4", **options)
    for tile, part in product(tiles(data, "down"), range(2)):
        uses = list(first_uses(tile, data, "h", part))
        assert uses and all(awaited <= first for _, first, awaited in uses)

    def only_the_first_waits(d: Data) -> None:
        for tile in tiles(d, "down"):
            for r in reads(tile, "h", 1):
                r["waits"] = []

    refused(
        data,
        only_the_first_waits,
        "down (1, 1) rank 7 CTA 1 reads h[16:32, 32:64] without a full wait for up (1, 1) rank 3",
    )


# --- f ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way, columns", [("K", [16, 24]), ("V", [24, 32])])
def test_f_attention_waits_for_keys_and_values(way: str, columns: list[int]) -> None:
    """The peer waits for the rows of Q only; K and V of all rows before come from other tiles."""
    data = proved(
        attention(), tiles={"qkv": (8, 8, 16), "attn": (8, 8, 1)}, policies={"qkv": "tile"}, order="op_major"
    )
    for tile in tiles(data, "attn"):
        _, _, block = tile["coord"]
        uses = {tuple(p["coord"]): awaited <= first for p, first, awaited in first_uses(tile, data, "qkv")}
        head = tile["coord"][1]
        assert uses == {(block, head): True} | {
            (row, way): True for row in range(block + 1) for way in (2, 3)
        }
        needed = [r for r in reads(tile, "qkv") if r["box"][1] == columns]
        assert {x for r in needed for x in range(*r["box"][0])} == set(range(8 * (block + 1)))

    def rows_of_the_query_only(d: Data) -> None:
        for tile in tiles(d, "attn"):
            own = {
                s
                for p in tiles(d, "qkv")
                if p["coord"][0] == tile["coord"][2]
                for s, _ in p["ctas"][0]["posts"]
            }
            for r in reads(tile, "qkv"):
                r["waits"] = [w for w in r["waits"] if w[0] in own]

    rank = next(t["rank"] for t in tiles(data, "attn") if t["coord"] == [0, 1, 2])
    producer = columns[0] // 8
    read = (
        f"attn (0, 1, 2) rank {rank} reads qkv[0:8, {columns[0]}:{columns[1]}] without a full wait for qkv"
        f" (0, {producer}) rank {producer}"
    )
    refused(data, rows_of_the_query_only, read)


@tg.spec
def attention():
    """Two heads of queries, one of keys and values, 24 rows, causal."""
    x = tg.input("x", (1, 24, 16), "float32")
    qkv = tg.linear(x, tg.weight("w", (32, 16), "float32"), name="qkv")
    q, k, v = qkv.split([16, 8, 8])
    return tg.attention(q, k, v, heads=2, kv_heads=1, causal=True, name="attn")


# --- g ------------------------------------------------------------------------------------------------------


def small_plan(**options: Any) -> Plan:
    return tg.plan(
        example("gpt3_mlp", M=12, H=6, I=8),
        "cpu:7",
        tiles={"up": (4, 4, 6), "down": (4, 3, 4)},
        policies={"h": "row"},
        **options,
    )


def test_g_every_path_of_a_wait_acquires() -> None:
    """The peer's wait first tries a plain load, and on success goes on without an acquire; here the load that
    ends a wait acquires."""
    source = generate(small_plan())
    assert re.search(r"#define TG_WAIT_ORDER std::memory_order_acquire\n", source)
    assert re.search(r"#define TG_POST_ORDER std::memory_order_release\n", source)
    body = source[source.index("TG_FN void tg_wait(") :]
    body = body[: body.index("\n}\n")]
    loop = re.findall(r"for \([^;]*; ([^;]*);[^;]*\) {", body)
    assert loop == ["value.load(TG_WAIT_ORDER) < target"]  # the wait ends by this load,
    leaves = re.findall(r"[^;{}]*return\b[^;]*", body)
    # or the whole run is given up
    assert leaves and all("aborted()" in leave or "tg_give_up(" in leave for leave in leaves)
    assert "break" not in body and "goto" not in body
    assert source.count("TG_POST_ORDER)") == 1 and source.count(".value.fetch_add(1, TG_POST_ORDER)") == 1


def test_g_the_order_is_part_of_the_proof() -> None:
    """The peer has no fence between proxies; an edge without a chain of release and acquire is refused."""
    data = expanded(small_plan(order="op_major"))
    statement = next(c.statement for c in check(data).checks if c.name == "memory order")
    assert "memory_order_release" in statement and "memory_order_acquire" in statement

    def async_stores(d: Data) -> None:
        for tile in tiles(d, "up"):
            tile["ctas"][0]["writes"][0]["proxy"] = "async"

    refused(
        data,
        async_stores,
        "from a write through async to a read through generic: kernels for cpu have no such chain",
        check_name="memory order",
    )


@pytest.mark.parametrize("scheduling", ["dynamic", "lists"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sms", [1, 2, 7])
def test_g_progress_needs_no_dispatch_order(sms: int, strategy: str, scheduling: str) -> None:
    """The peer relies on grids being dispatched in launch order; here the lowest unfinished rank can always
    run, on any number of SMs."""
    program = example("gpt3_mlp", M=12, H=6, I=8)
    options = {
        "tiles": {"up": (4, 4, 6), "down": (4, 3, 4)},
        "policies": {"h": "row"},
        "scheduling": scheduling,
    }
    plan = tg.plan(program, f"cpu:{sms}", **options)
    given = random_arguments(program)
    result = Kernel(plan, None, Interpreter(plan, strategy, seed=sms), sms)(*given)
    assert relative_error(result, tg.reference(program, *given)) < 1e-5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_g_consumers_first_is_refused(strategy: str) -> None:
    """What the peer's wait kernel is there to prevent: consumers take all SMs and spin for ever."""
    plan = small_plan(order="op_major")
    data = expanded(plan)

    def consumers_first(d: Data) -> None:
        d["tiles"] = [*tiles(d, "down"), *tiles(d, "up")]
        for rank, tile in enumerate(d["tiles"]):
            tile["rank"] = rank

    words = "down (0, 0) rank 0 waits for semaphore 0, to which up (0, 1) rank 7 posts later"
    refused(data, consumers_first, words, check_name="progress")
    consumers_first(data)
    given = random_arguments(example("gpt3_mlp", M=12, H=6, I=8))
    with pytest.raises(
        DeadlockError, match=r"no SM can go on: down\(\d, \d\) waits for semaphore \d: 0 of 2 posts; down"
    ):
        Kernel(plan, None, Interpreter(plan, strategy, data=data), 6)(*given)
    # one SM more: luck
    assert isinstance(Kernel(plan, None, Interpreter(plan, strategy, data=data), 7)(*given), torch.Tensor)
