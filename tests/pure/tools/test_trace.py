"""Traces: what is read from a kernel's notes, what a simulated launch looks like, what is drawn, exported and
added up from both."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.gemms import Case, both, fan, mlp
from tilegen.cli import main
from tilegen.schedule.plan import Plan
from tilegen.schedule.simulate import simulate
from tilegen.targets.sm90.kernel import NOTE_WORDS, NOTES
from tilegen.tools.svg import svg
from tilegen.tools.trace import EVENTS, RANK, TileTrace, Trace
from tilegen.tools.trace_export import awaited, chrome, last_posters, lost, lost_text

MLP = str(Path(__file__).resolve().parents[3] / "examples" / "gpt3_mlp.py")
WORD = 1 << 32
ROUNDED = 1e-9  # µs: what sums of floats differ by
SMALL = Case(
    "",
    mlp,
    {"M": 256},
    both("up", "down", (64, 96, 64), (64, 128, 64), policies={"h": "row"}, order="op_major"),
)


def plan_of(cluster: Any = 1) -> Plan:
    return Case("", mlp, {"M": 256}, {**SMALL.options, "cluster": {"up": cluster, "down": cluster}}).plan(8)


def notes_of(trace: Trace, mhz: list[float], clock: int = 0, ns: int = 0) -> tuple[Any, int]:
    """The words that a kernel with these times would have written, and the turns that they have room for."""
    ctas, turns = len(trace.span), 1 + max(t.turn for t in trace.tiles)
    notes = np.zeros((ctas * (turns + 1), NOTE_WORDS), dtype=np.int64)
    for t in trace.tiles:
        words = notes[t.cta * turns + t.turn]
        words[RANK] = t.rank + 1
        for n, event in enumerate(EVENTS):
            since = t.times[event] - trace.span[t.cta][0]
            words[n] = 0 if math.isnan(since) else max(1, (round(since * mhz[t.cta]) + clock + t.cta) % WORD)
    for cta, (start, end) in enumerate(trace.span):
        ticks = round((end - start) * mhz[cta])
        notes[ctas * turns + cta, :4] = [
            ns + round(1000 * start),
            clock + cta,
            ns + round(1000 * end),
            clock + cta + ticks,
        ]
    return (notes % WORD).astype(np.uint32).view(np.int32), turns


def made(plan: Plan, times: list[list[tuple[int, dict[str, float]]]]) -> Trace:
    """A trace with the given (rank, events) of each CTA."""
    names = {r: op for op, ranks in plan.ranks.items() for r in ranks.tolist()}
    tiles = [
        TileTrace(rank, names[rank], (rank,), cta, turn, dict.fromkeys(EVENTS, math.nan) | events)
        for cta, ran in enumerate(times)
        for turn, (rank, events) in enumerate(ran)
    ]
    return Trace(plan, tuple(tiles), ((0.0, 100.0),) * len(times))


# ---- reading -----------------------------------------------------------------------------------------------


def test_events_are_the_kernels_notes() -> None:
    assert NOTES[: len(EVENTS)] == tuple(f"TG_{e.upper()}" for e in EVENTS) and NOTES[RANK] == "TG_RANK"


@pytest.mark.parametrize(
    "clock, ns",
    [(0, 0), (WORD - 3000, 5), (7, WORD - 400)],
    ids=["", "clock starts again", "timer starts again"],
)
@pytest.mark.parametrize("cluster", [1, 2])
def test_notes_are_read_back(cluster: int, clock: int, ns: int) -> None:
    before = Trace.simulated(plan_of(cluster))
    mhz = [1500.0 + 10 * cta for cta in range(len(before.span))]
    notes, turns = notes_of(before, mhz, clock, ns)
    after = Trace.read(before.plan, notes, len(before.span), turns)
    assert [(t.rank, t.name, t.cta, t.turn) for t in after.tiles] == [
        (t.rank, t.name, t.cta, t.turn) for t in before.tiles
    ]
    for a, b in zip(after.tiles, before.tiles, strict=True):
        for event in EVENTS:
            assert math.isnan(a.times[event]) == math.isnan(b.times[event])
            assert math.isnan(a.times[event]) or a.times[event] == pytest.approx(b.times[event], abs=0.01)
    assert after.clocks == pytest.approx(mhz, rel=1e-3)
    assert np.allclose(after.span, before.span, atol=0.01)


def test_text_has_clocks_and_events() -> None:
    before = Trace.simulated(plan_of())
    notes, turns = notes_of(before, [1700.0] * 7 + [1900.0])
    text = Trace.read(before.plan, notes, len(before.span), turns).text()
    assert "MHz of each CTA's SM, 1725 on average:\n1700 1700 1700 1700 1700 1700 1700 1900" in text
    lines = [line.split()[:2] for line in text.splitlines()]
    assert (
        ["up", "posted"] in lines
        and ["down", "finished"] in lines
        and ["down", "posted"] not in lines
        and ["up", "ahead"] not in lines
    )


def test_ctas_that_ran_nothing() -> None:
    """More SMs than tiles: their rows are empty."""
    plan = Case("", mlp, {"M": 1}, both("up", "down", (64, 192, 64), (64, 256, 64))).plan(8)
    before = Trace.simulated(plan)
    notes, turns = notes_of(before, [1000.0] * 8)
    after = Trace.read(plan, notes, 8, turns)
    assert len(after.tiles) == plan.order.count == 4 and len(after.span) == 8
    ET.fromstring(svg([("few", after)]))


# ---- the simulator's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [1, 2, "2:m"])
def test_simulated(cluster: Any) -> None:
    rows = Case("", mlp, {"M": 256}, both("up", "down", (256, 64, 64), (256, 64, 64), cluster, cluster))
    plan = rows.plan(8) if cluster == "2:m" else plan_of(cluster)
    trace, timeline = Trace.simulated(plan), simulate(plan)
    assert len(trace.tiles) == plan.cluster * plan.order.count and len(trace.span) == 8
    assert trace.makespan == timeline.makespan and trace.busy == pytest.approx(timeline.busy)
    assert [(t.cta, t.turn) for t in trace.tiles] == sorted((t.cta, t.turn) for t in trace.tiles)
    for before, t, ready in zip(trace.before, trace.tiles, trace.ready, strict=True):
        assert (before is None) == (t.turn == 0)
        assert ready <= t.times["arrived"] + ROUNDED and t.times["arrived"] <= t.end


# ---- what edges cost ---------------------------------------------------------------------------------------


def two_rows() -> Plan:
    """Two tiles of `up` (ranks 0, 1) in one row, two of `down` (2, 3), on two SMs: both wait for both."""
    tiles = both("up", "down", (64, 64, 64), (64, 64, 64), policies={"h": "row"}, order="op_major")
    return Case("", mlp, {"M": 64, "H": 128, "I": 128}, tiles).plan(2)


def late() -> Trace:
    up = {"waited": 1.0, "loaded": 4.0, "arrived": 2.0, "multiplied": 9.0, "finished": 10.0}
    down = {"waited": 31.0, "loaded": 35.0, "arrived": 32.0, "multiplied": 38.0, "finished": 40.0}
    return made(
        two_rows(),
        [[(0, up | {"posted": 12.0}), (2, down)], [(1, up | {"finished": 20.0, "posted": 30.0}), (3, down)]],
    )


def test_last_poster_and_what_waits_for_it() -> None:
    trace = late()
    assert {n: t.rank for n, t in last_posters(trace).items()} == {0: 1}
    waits = awaited(trace)
    assert sorted(waits) == [(2, 0), (3, 0)]
    assert [(w.edge, w.semaphore, w.share, w.posted) for w in waits[2, 0]] == [
        ("up->down", 0, 0.0, 30.0)
    ]


def test_time_lost_on_an_edge() -> None:
    """down on CTA 0 could begin at 10, on CTA 1 at 20; the last post is at 30."""
    (one,) = lost(late())
    assert (one.edge, one.tiles, one.sum_us, one.max_us, one.worst) == (
        "up->down",
        2,
        30.0,
        20.0,
        "down(2) for up(1)",
    )
    assert lost_text(late()).splitlines()[1].split()[:4] == ["up->down", "2", "30.0", "20.00"]


def test_waits_of_the_epilogue_cost_only_what_the_main_loop_does_not_cover() -> None:
    plan = Case("", fan, {"M": 64}, {"order": "op_major"}).plan(4)
    trace = Trace.simulated(plan)
    shares = {(w.edge, w.share) for ws in awaited(trace).values() for w in ws}
    assert ("v->o", 1.0) in shares and ("k->o", 0.0) in shares
    assert {r.edge for r in lost(trace)} == {e.name for e in plan.edges}


def test_posts_that_were_not_noted() -> None:
    trace = made(two_rows(), [[(0, {}), (2, {})], [(1, {}), (3, {})]])
    assert last_posters(trace) == {} and awaited(trace) == {} and lost(trace)[0].tiles == 0
    assert [e for e in chrome(trace)["traceEvents"] if e["ph"] == "X"] == []


# ---- exports -----------------------------------------------------------------------------------------------


def test_chrome() -> None:
    events = chrome(late())["traceEvents"]
    slices = {(e["pid"], e["name"]): e for e in events if e["ph"] == "X"}
    wait = slices[0, "wait down"]
    assert (wait["ts"], wait["dur"]) == (4.0, 27.0)  # from the last load before
    assert wait["args"] == {
        "tile": "down(2)",
        "rank": 2,
        "for": "up->down: semaphore 0, last posted by up(1)",
        "posted": 30.0,
    }
    assert (slices[1, "store up"]["ts"], slices[1, "store up"]["dur"]) == (9.0, 21.0)
    assert {e["cat"] for e in slices.values()} == {"wait", "load", "maths", "store"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["SM 0", "SM 1"]
    for track in {(e["pid"], e["tid"]) for e in slices.values()}:  # slices of a track follow each other
        spans = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in slices.values() if (e["pid"], e["tid"]) == track
        )
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_measured_above_simulated() -> None:
    trace = late()
    root = ET.fromstring(svg([("measured", trace), ("simulated", Trace.simulated(trace.plan))]))
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 8
    assert titles[1] == "down(2): 10.0 to 40.0 µs, waiting 22.0; up->down: semaphore 0, last posted by up(1)"


def test_tiles_of_one_cta_in_a_cluster_say_what_they_waited_for() -> None:
    """Only `up` is shared by the two CTAs of a cluster; `down` runs on either and waits the same."""
    plan = Case(
        "", mlp, {"M": 256}, {**SMALL.options, "cluster": {"up": 2, "down": 1}, "scheduling": "lists"}
    ).plan(8)
    trace = Trace.simulated(plan)
    assert {t.cta % 2 for t in trace.tiles if t.op == "down"} == {0, 1}
    root = ET.fromstring(svg([("simulated", trace)]))
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert all("last posted by up(" in t for t in titles if t.startswith("down("))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "t.json", tmp_path / "t.svg"
    given = [
        "trace",
        MLP,
        "-s",
        "M=512",
        "--machine",
        "h200",
        "--simulate",
        "-o",
        str(out),
        "--svg",
        str(picture),
    ]
    assert main(given) == 0
    assert "up->down" in capsys.readouterr().out
    assert {e["cat"] for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"} >= {
        "wait",
        "maths",
    }
    ET.parse(picture)
    assert main([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["how"] == "simulated" and said["edges"]["up->down"]["sum_us"] > 0 and 0 < said["busy"] <= 1
