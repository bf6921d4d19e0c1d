"""What the interpreter says of wrong plans: races, deadlocks and spoiled counters, by tile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutant_layers import Holding
from tests.mutant_plans import Data, Subject, subjects
from tests.mutants import posters
from tilegen.errors import DeadlockError, HangError, RaceError, TilegenError
from tilegen.kernels.kernel import Kernel
from tilegen.targets.interpret.interpreter import STRATEGIES

SPREAD = ("random", "round-robin")  # strategies under which tiles run on different SMs


def run(
    subject: Subject,
    data: Data,
    strategy: str = "round-robin",
    seed: int = 0,
    workers: int = 0,
    held: int | None = None,
) -> Any:
    """One run on as many SMs as there are tiles; the tile of rank `held` comes as late as it can."""
    library = Holding(subject.plan, strategy, seed, data, held)
    return Kernel(subject.plan, None, library, subject.workers(workers))(
        *(a.clone() for a in subject.arguments)
    )


def said(*given: Any, **more: Any) -> str:
    """The words of the error that a run ends in."""
    with pytest.raises(TilegenError) as caught:
        run(*given, **more)
    assert type(caught.value) in (RaceError, DeadlockError)
    return f"{type(caught.value).__name__}: {caught.value}"


def rank_of(data: Data, op: str, *coord: int) -> int:
    return next(int(t["rank"]) for t in data["tiles"] if t["op"] == op and t["coord"] == list(coord))


def part_of(data: Data, op: str, *coord: int, index: int = 0) -> Data:
    one: Data = data["tiles"][rank_of(data, op, *coord)]["ctas"][index]
    return one


def no_waits(part: Data, tensor: str) -> None:
    """The part no longer waits for what it reads of a tensor."""
    before = [w for r in part["reads"] for w in r["waits"]]
    for r in part["reads"]:
        r["waits"] = [] if r["tensor"] == tensor else r["waits"]
    assert before != [w for r in part["reads"] for w in r["waits"]]


# --- races --------------------------------------------------------------------------------------------------


def test_a_read_before_the_write_names_the_tile_and_the_element() -> None:
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    no_waits(part_of(data, "down", 0, 0), "h")
    words = said(subject, data, held=rank_of(data, "up", 0, 1))
    assert words.startswith(
        "RaceError: down(0, 0) reads h[[0, 4], [0, 4]] before all of it is written: element (0, "
    )


@pytest.mark.parametrize("strategy", SPREAD)
def test_a_read_after_the_write_with_nothing_between_is_a_race_all_the_same(strategy: str) -> None:
    """The values are right in this interleaving; what orders them is not there."""
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    no_waits(part_of(data, "down", 1, 1), "h")
    words = said(subject, data, strategy, held=rank_of(data, "down", 1, 1))
    assert words.startswith(
        "RaceError: down(1, 1) reads h[[4, 6], [0, 4]]: nothing orders it after the write of element (4, 0)"
    )


def test_a_wait_behind_its_read() -> None:
    subject = subjects()["mlp by tile"]
    data = subject.fresh()
    reads = part_of(data, "down", 1, 0)["reads"]
    moved, reads[0]["waits"] = reads[0]["waits"], []
    reads[1]["waits"] = moved
    assert said(subject, data, held=moved[0][0]).startswith("RaceError: down(1, 0) reads h")


def test_a_partial_count_does_not_say_which_tiles_posted() -> None:
    """Whichever of the posters comes last, the waiter goes on without it."""
    subject = subjects()["mlp by chunk"]
    data = subject.fresh()
    wait = next(
        w for r in part_of(data, "down", 0, 0)["reads"] for w in r["waits"] if data["semaphores"][w[0]] == 2
    )
    wait[1] = 1
    for poster in posters(data, wait[0]):
        op, coord = data["tiles"][poster]["op"], data["tiles"][poster]["coord"]
        assert op == "up"
        words = said(subject, data, held=poster)
        assert (
            words.startswith("RaceError: down(0, 0) reads h")
            and f"element (0, {3 * coord[1]}) is missing" in words
        )


def test_a_part_of_a_gang_that_leaves_waiting_to_the_other() -> None:
    subject = subjects()["clusters"]
    data = subject.fresh()
    no_waits(part_of(data, "down", 1, 0, index=1), "h")
    assert said(subject, data).startswith(
        "RaceError: down(1, 0) reads h[[5, 10], [4, 7]]: nothing orders it after the write of element "
    )


def test_a_forgotten_halo() -> None:
    subject = subjects()["convs"]
    data = subject.fresh()
    part = part_of(data, "two", 0, 1, 0, 0)
    wanted = posters(data, part["reads"][0]["waits"][0][0])[0]
    part["reads"][0]["waits"].pop(0)
    assert said(subject, data, held=wanted).startswith(
        "RaceError: two(0, 1, 0, 0) reads one[[0, 1], [1, 4], [0, 4], [0, 2]] before "
    )


def test_two_writers() -> None:
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    part_of(data, "down", 1, 1)["writes"][0]["box"][0][0] -= 1
    for held, words in (
        (rank_of(data, "down", 1, 1), "down(1, 1) writes down[[3, 6], [3, 5]]"),
        (rank_of(data, "down", 0, 1), "down(0, 1) writes "),
    ):
        assert said(subject, data, held=held).startswith(f"RaceError: {words}")
    assert "nothing orders it after another write of element (3, 3)" in said(subject, data)


# --- states -------------------------------------------------------------------------------------------------


def unordered_cache() -> tuple[Subject, Data, int, int]:
    """A head of attention that does not wait for the append to its keys: also the ranks of both."""
    subject = subjects()["decode"]
    data = subject.fresh()
    no_waits(part_of(data, "attn", 0, 1, 0), "k_cache")
    return subject, data, rank_of(data, "attn", 0, 1, 0), rank_of(data, "k_append", 0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_cache_read_before_its_append(strategy: str) -> None:
    """Write after read: the old row is a value too, so that only the append can tell."""
    subject, data, _, append = unordered_cache()
    words = said(subject, data, strategy, held=append)
    assert (
        words
        == "RaceError: k_append(0, 0) writes k_cache[[0, 4], [0, 2]]: nothing orders it after the read by"
        " attn(0, 1, 0)"
    )


@pytest.mark.parametrize("strategy", SPREAD)
def test_a_cache_read_after_its_append_with_nothing_between(strategy: str) -> None:
    subject, data, attention, _ = unordered_cache()
    words = said(subject, data, strategy, held=attention)
    assert words.startswith(
        "RaceError: attn(0, 1, 0) reads k_cache[[0, 4], [0, 2]]: nothing orders it after the write of element"
        " (3, 0)"
    )


def test_rows_of_a_cache_that_nobody_writes_need_no_order() -> None:
    """The append writes one row at its position; a read of the rows before is no race, ordered or not."""
    subject, data, attention, append = unordered_cache()
    for r in part_of(data, "attn", 0, 1, 0)["reads"]:
        if r["tensor"] == "k_cache":
            r["box"][0] = [0, 3]
    for held in (attention, append):
        run(subject, data, held=held)


# --- deadlocks and counters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workers", [1, 3, 0])
def test_a_missing_post_names_who_waits(strategy: str, workers: int) -> None:
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    part_of(data, "up", 1, 0)["posts"].clear()
    words = said(subject, data, strategy, workers=workers)
    assert (
        words.startswith("DeadlockError: no SM can go on: down(")
        and "waits for semaphore 1: 1 of 2 posts" in words
    )
    assert issubclass(DeadlockError, HangError)


def test_a_wait_for_more_than_comes() -> None:
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    part_of(data, "down", 1, 1)["reads"][0]["waits"][0][1] += 1
    assert "down(1, 1) waits for semaphore 1: 2 of 3 posts" in said(subject, data)


def test_a_consumer_before_its_producer_stops_one_sm() -> None:
    """With an SM for each tile it runs; with one it cannot."""
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    tiles, a, b = data["tiles"], rank_of(data, "up", 0, 1), rank_of(data, "down", 0, 0)
    tiles[a], tiles[b] = tiles[b], tiles[a]
    tiles[a]["rank"], tiles[b]["rank"] = a, b
    run(subject, data)
    assert "down(0, 0) waits for semaphore 0: 1 of 2 posts" in said(subject, data, workers=1)


def test_static_lists_that_wait_for_themselves() -> None:
    subject = subjects()["mlp static"]
    data = subject.fresh()
    own = data["scheduling"][0]
    own[0], own[-1] = own[-1], own[0]
    last = data["tiles"][own[0]]
    assert f"{last['op']}{tuple(last['coord'])} waits for semaphore " in said(subject, data)


def test_an_extra_post_spoils_the_next_run() -> None:
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    part_of(data, "up", 1, 1)["posts"][0][1] = 2
    words = said(subject, data, workers=1)
    assert words == "RaceError: semaphore 1 ends at 3, its target is 2: the next run would start wrong"


def test_a_workspace_is_free_again_after_an_error() -> None:
    """The next call of the same kernel ends in the same error, and a right plan beside it runs."""
    subject = subjects()["mlp by row"]
    data = subject.fresh()
    part_of(data, "up", 1, 0)["posts"].clear()
    kernel = Kernel(subject.plan, None, Holding(subject.plan, "random", 0, data, None), 3)
    messages = []
    for _ in range(2):
        with pytest.raises(DeadlockError) as caught:
            kernel(*subject.arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    run(subject, subject.data)
