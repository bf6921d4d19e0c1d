"""The model of a plan on its machine: bounds that hold for every plan, and one computed by hand."""

from pathlib import Path

import numpy as np
import pytest

import tilegen as tg
from tilegen.arch.machine import Machine, cpu
from tilegen.frontend.loader import load_program
from tilegen.graph.cost_model import tile_us
from tilegen.schedule.simulate import simulate, workers

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = {
    "gpt3_mlp": {"M": 40, "H": 64, "I": 48},
    "llama_mlp": {"M": 40, "H": 64, "I": 48},
    "gpt3_attention": {"S": 24, "H": 32, "heads": 2, "D": 16},
    "llama_layer": {"S": 4, "S_max": 16, "H": 32, "heads": 4, "kv_heads": 2, "D": 8, "I": 24},
    "resnet38": {"HW": 32, "C": 8, "classes": 10},
    "resnet50": {"HW": 32, "C": 8, "classes": 10},
}
MLP = {"tiles": {"up": (8, 16, 16), "down": (8, 16, 16)}}
PLANS = [
    *((name, sizes, on, {}) for name, sizes in SMALL.items() for on in ("cpu:3", "h200")),
    ("gpt3_mlp", SMALL["gpt3_mlp"], "cpu:3", {**MLP, "order": "banded:2"}),
    ("gpt3_mlp", SMALL["gpt3_mlp"], "cpu:3", {**MLP, "scheduling": "lists"}),
    ("gpt3_mlp", SMALL["gpt3_mlp"], "6", {**MLP, "cluster": {"up": 2}, "split_k": {"down": 3}}),
]


def planned(name, sizes, on, options):
    return tg.plan(load_program(str(EXAMPLES / f"{name}.py"), sizes), on, target="interpret", **options)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row[0]} {row[2]} {' '.join(row[3])}")
def test_bounds(row):
    made = planned(*row)
    t = simulate(made)
    duration = t.end - t.start
    work = np.zeros(made.order.count)
    for b in made.bounds:
        work[made.ranks[b.op.name]] = tile_us(b, made.machine)
    assert (t.waited >= -1e-9).all() and (duration - t.waited >= work - 1e-9).all()
    # work over workers, and the longest tile
    assert t.makespan >= work.sum() / workers(made) - 1e-6
    assert t.makespan >= work.max() and 0 < t.busy <= 1 + 1e-9
    assert t.makespan >= critical_path(made, work) - 1e-6
    # a worker does one tile at a time
    for sm in np.unique(t.sm):
        mine = np.flatnonzero(t.sm == sm)
        assert (t.start[mine][1:] >= t.end[mine][:-1] - 1e-9).all()
    assert t.sm.max() < workers(made)
    if made.scheduling != "dynamic":
        assert all((t.sm[list(ranks)] == sm).all() for sm, ranks in enumerate(made.scheduling))


def critical_path(made, work):
    """The longest chain in which a tile cannot end before the work after its wait is done; walked over the
    expanded plan."""
    from tilegen.schedule.expand import expanded

    ready = np.zeros(len(made.targets))
    finish = np.zeros(made.order.count)
    steps = {b.op.name: b for b in made.bounds}
    table = made.wait_table
    for tile in expanded(made)["tiles"]:
        rank, b = tile["rank"], steps[tile["op"]]
        count = max(
            1,
            int(
                np.asarray(
                    b.steps.subs(dict(zip(b.coords, tile["coord"], strict=True)))
                    if hasattr(b.steps, "subs")
                    else b.steps
                )
            ),
        )
        finish[rank] = work[rank]
        for n in np.flatnonzero(table.rank == rank):
            before = min(max(table.step[n] / count, 0.0), 1.0)
            finish[rank] = max(finish[rank], ready[table.semaphore[n]] + (1 - before) * work[rank])
        for part in tile["ctas"]:
            for semaphore, _ in part["posts"]:
                ready[semaphore] = max(ready[semaphore], finish[rank])
    return finish.max()


@pytest.mark.parametrize("on", ["cpu:2", "cpu:5", "h200", "6"])
@pytest.mark.parametrize("order", ["op_major", "banded:2", "banded:4"])
@pytest.mark.parametrize("name", ["gpt3_mlp", "llama_mlp"])
def test_a_barrier_is_never_faster(name, order, on):
    """In the same order and with waits that cost nothing, one semaphore for all is never faster than the
    consumer classes."""
    first = "up" if name == "gpt3_mlp" else "gate_up"
    tiles = {first: (8, 16, 16), "down": (8, 16, 16)}
    free = Machine(
        **{
            **tg.plan(
                load_program(str(EXAMPLES / f"{name}.py"), SMALL[name]), on, target="interpret"
            ).machine.to_json(),
            "wait_us": 0.0,
        }
    )
    times = {}
    for policy in ("kernel", "class", "tile"):
        try:
            made = planned(
                name, SMALL[name], free, {"tiles": tiles, "order": order, "policies": {"h": policy}}
            )
        except tg.PlanError as error:
            # in bands a barrier cannot be met at all
            assert policy == "kernel" and "higher rank" in str(error)
            assert order != "op_major"
            times[policy] = float("inf")
            continue
        times[policy] = simulate(made).makespan
    assert times["tile"] <= times["class"] + 1e-9 and times["class"] <= times["kernel"] + 1e-9


@tg.spec
def two():
    """up: 4 tiles of 8 x 8, down: 2 tiles of 8 x 16 with two steps of 8."""
    h = tg.linear(tg.input("x", (16, 8), "float32"), tg.weight("w", (16, 8), "float32"), name="up")
    return tg.linear(h, tg.weight("u", (16, 16), "float32"), name="down")


def by_hand(workers, **options):
    # 1 GFLOP/s and bytes for nothing: a tile of `up` takes 2·8·8·8 = 1024 FLOP / (1e9 / workers), one of
    # `down` 4096 FLOP
    machine = Machine("slow", "cpu", workers, 1e9, 1e9, 1e18, 1e18, tile_us=1.0, handoff_us=0.5, wait_us=0.25)
    tiles = {"up": (8, 8, 8), "down": (8, 16, 8)}
    return simulate(tg.plan(two(), machine, tiles=tiles, order="op_major", **options))


def test_two_ops_by_hand():
    """One worker runs all in a row and waits for the hand-off alone."""
    a, b = 1 + 1.024, 1 + 4.096
    t = by_hand(1, policies={"up": "kernel"})
    assert t.start.tolist() == pytest.approx([0, a, 2 * a, 3 * a, 4 * a, 4 * a + 0.5 + b])
    assert t.makespan == pytest.approx(4 * a + 0.5 + 2 * b) and t.waited.tolist() == pytest.approx(
        [0, 0, 0, 0, 0.5, 0]
    )


def test_two_ops_on_two_workers_by_hand():
    """Row by row: the second row's tiles run beside each other, the first consumer waits for its own row
    only."""
    a, b = 1 + 2 * 1.024, 1 + 2 * 4.096
    t = by_hand(2, policies={"up": "row"})
    assert t.start.tolist() == pytest.approx([0, 0, a, a, 2 * a, 2 * a])
    # row 0 was posted at a, long before
    assert t.end.tolist() == pytest.approx([a, a, 2 * a, 2 * a, 2 * a + b, 2 * a + 0.5 + b])
    assert t.waited.tolist() == pytest.approx([0, 0, 0, 0, 0, 0.5])


def test_waits_inside_a_tile_by_hand():
    """Tile by tile: the second step's wait holds back half of the work only, and costs a look at one more
    semaphore."""
    a, b = 1 + 2 * 1.024, 1 + 2 * 4.096 + 0.25
    t = by_hand(2, policies={"up": "tile"})
    assert t.end.tolist()[4:] == pytest.approx([2 * a + b, 2 * a + 0.5 + b])
    assert t.by_op()[1][:3] == ("down", 2, 1.0)


def test_the_text_names_every_op():
    text = simulate(planned("gpt3_mlp", SMALL["gpt3_mlp"], "cpu:3", MLP)).text()
    assert all(word in text for word in ("up", "down", "makespan", "3 workers", "% busy"))
    assert "132 SMs" in simulate(planned("gpt3_mlp", SMALL["gpt3_mlp"], "h200", {})).text()


def test_more_workers_are_no_slower():
    """With the same rate per worker."""
    times = [
        simulate(
            planned(
                "gpt3_mlp", SMALL["gpt3_mlp"], cpu(n), {**MLP, "order": "op_major", "policies": {"h": "row"}}
            )
        ).makespan
        for n in (1, 2, 4, 8)
    ]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]
