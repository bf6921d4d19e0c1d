"""Timelines as SVG: a bar per tile, a time axis, a colour per op, where it is from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import tilegen as tg
from docs import picture
from tests.pure.tools.pictures import SVG, check_card, check_layout, parsed, texts
from tilegen.cli import main
from tilegen.frontend.loader import load_program
from tilegen.schedule.plan import Plan
from tilegen.tools.svg import svg
from tilegen.tools.trace import Trace

ROOT = Path(__file__).resolve().parents[3]


@tg.spec
def many(M=128, H=64, ops=12):
    x = tg.input("x", (M, H), "bfloat16")
    for n in range(ops):
        x = tg.linear(x, tg.weight(f"w{n}", (H, H), "bfloat16"), name=f"op{n}")
    return x


@lru_cache
def mlp(machine: str, policy: str = "row") -> Plan:
    program = load_program(str(ROOT / "examples" / "gpt3_mlp.py"), {"M": 640, "H": 2048, "I": 1024})
    return tg.plan(program, machine, tiles={"up": (128, 256), "down": (128, 256)}, policies={"h": policy})


@lru_cache
def chain(ops: int, machine: str = "8") -> Plan:
    return tg.plan(many(ops=ops), machine)


def drawn(*traces: Trace, notes: Any = ()) -> Any:
    return parsed(svg([(f"panel {n}", t) for n, t in enumerate(traces)], notes))


def of_class(root: Any, name: str) -> list[Any]:
    return [t for t in root.iter(f"{SVG}text") if t.get("class") == name]


def test_a_bar_per_tile(tmp_path: Path) -> None:
    file = tmp_path / "t.svg"
    sizes = ["-s", "M=640", "-s", "H=2048", "-s", "I=1024", "--tile", "up=128x256", "--tile", "down=128x256"]
    spec = str(ROOT / "examples" / "gpt3_mlp.py")
    assert main(["plan", spec, *sizes, "--machine", "16", "--policy", "h=kernel", "--svg", str(file)]) == 0
    titles = [t.text or "" for t in parsed(file.read_text()).iter(f"{SVG}title")]
    assert len(titles) == 20 + 40 and sum(t.startswith("up(") for t in titles) == 20
    assert any("waiting" in t for t in titles)


@pytest.mark.parametrize("machine", ["1", "16", "45", "h200", "cpu:3"])
def test_the_time_axis_covers_the_makespan_and_nothing_overlaps(machine: str) -> None:
    trace = Trace.simulated(mlp(machine))
    root = drawn(trace, trace)
    ticks = of_class(root, "tick")
    times = [float((t.text or "").removesuffix(" µs")) for t in ticks]
    assert all((t.text or "").endswith(" µs") for t in ticks)
    assert times[0] == 0 and max(times) >= trace.makespan and times == [*times[: len(times) // 2]] * 2
    check_layout(root)
    check_card(root)


def test_bars_and_ticks_share_a_scale() -> None:
    trace = Trace.simulated(mlp("16"))
    root = drawn(trace)
    ticks = {float((t.text or "").removesuffix(" µs")): float(t.get("x")) for t in of_class(root, "tick")}
    per_us = (ticks[max(ticks)] - ticks[0]) / max(ticks)
    rects = [g.find(f"{SVG}rect") for g in root.iter(f"{SVG}g")]
    ends = [float(r.get("x")) + float(r.get("width")) for r in rects]
    assert max(ends) == pytest.approx(ticks[0] + per_us * trace.makespan, abs=0.2)


@pytest.mark.parametrize(("machine", "first"), [("16", "SM 0"), ("h200", "SM 0–7"), ("cpu:3", "thread 0")])
def test_rows_have_labels_alone_or_in_groups(machine: str, first: str) -> None:
    labels = [t.text or "" for t in of_class(drawn(Trace.simulated(mlp(machine))), "row")]
    assert labels[0] == first
    covered = [tuple(int(n) for n in label.split(" ")[1].split("–")) for label in labels]
    assert all(b[0] == a[-1] + 1 for a, b in zip(covered, covered[1:], strict=False))


@pytest.mark.parametrize("ops", [3, 8, 9, 30])
def test_every_op_has_its_own_colour_and_stands_in_the_legend(ops: int) -> None:
    root = drawn(Trace.simulated(chain(ops)))
    colours: dict[str, set[str]] = {}
    for g in root.iter(f"{SVG}g"):
        op = g.find(f"{SVG}title").text.split("(")[0]
        colours.setdefault(op, set()).add(g.find(f"{SVG}rect").get("fill"))
    names = {f"op{n}" for n in range(ops)}
    assert set(colours) == names and all(len(c) == 1 for c in colours.values())
    assert len({c for found in colours.values() for c in found}) == ops
    assert names | {"waiting for a semaphore", "idle"} <= {t.text for t in texts(root)}
    check_layout(root)


def test_it_says_simulated_or_measured_and_of_which_plan() -> None:
    plan = mlp("16")
    trace = Trace.simulated(plan)
    said = " ".join(t.text for t in texts(drawn(trace)))
    assert "Simulated by tilegen's cost model, not measured: gpt3_mlp (M = 640, H = 2048, I = 1024)" in said
    assert "on 16 SMs (machine h200:16)" in said and plan.digest[:12] in said and "up 128×256" in said
    measured = replace(trace, clocks=(1980.0,) * 16)
    said = " ".join(t.text for t in texts(drawn(measured)))
    assert "Measured inside the kernel: gpt3_mlp" in said and "Simulated" not in said


def test_special_characters_are_escaped() -> None:
    root = parsed(svg([('a<b & "c"', Trace.simulated(mlp("16")))], ["x < y & z"]))
    found = {t.text for t in texts(root)}
    assert "x < y & z" in found and any(t.startswith('a<b & "c": ') for t in found)


def test_long_notes_wrap() -> None:
    check_layout(drawn(Trace.simulated(mlp("16")), notes=["words and words " * 40, "more"]))


# ---- docs/tiles.svg --------------------------------------------------------------------------------


def test_the_picture_is_up_to_date() -> None:
    """docs/tiles.svg is what docs/picture.py draws: tile sync ends before the barrier, in a simulation."""
    text = (ROOT / "docs" / "tiles.svg").read_text()
    assert text == picture.picture()
    said = {t.text for t in texts(parsed(text))}
    us = [
        int(found[1])
        for what in ("kernel boundary (one semaphore)", "tile sync (one semaphore per row block)")
        for t in said
        if (found := re.fullmatch(re.escape(what) + r": (\d+) µs, \d+% busy", t))
    ]
    assert len(us) == 2 and us[1] < 0.8 * us[0]
    assert sum(t.startswith("Simulated by tilegen's cost model, not measured") for t in said) == 1
    check_layout(parsed(text))
    check_card(parsed(text))


def rows(m: int, **us: float) -> list[dict[str, Any]]:
    sizes = {"M": m, "H": 2048, "I": 1024, "dtype": "bfloat16"}
    times = {k.replace("_", "-"): v for k, v in us.items()}
    return [{"workload": "gpt3_mlp", "sizes": sizes, "variant": v, "us": t} for v, t in times.items()]


def write(folder: Path, name: str, date: str, found: list[Any]) -> None:
    data = {"date": date, "commit": "abc1234", "device": "NVIDIA H200", "rows": found}
    (folder / name).write_text(json.dumps(data))


def notes(folder: Path) -> list[str]:
    program = load_program(str(ROOT / "examples" / "gpt3_mlp.py"), {"M": 640, "H": 2048, "I": 1024})
    return picture.notes(program, folder)


def test_without_a_measurement_the_picture_says_so(tmp_path: Path) -> None:
    assert notes(tmp_path) == ["At these sizes: not measured."]
    write(tmp_path, "a.json", "2026-01-01", rows(640, tilegen=5.0))  # no barrier beside it
    assert notes(tmp_path) == ["At these sizes: not measured."]


def test_the_nearest_measurement_is_named_as_such(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "2026-01-01", rows(64, tilegen=5.0, tilegen_barrier=6.0))
    write(tmp_path, "b.json", "2026-01-01", rows(512, tilegen=7.0, tilegen_barrier=8.0))
    assert notes(tmp_path) == [
        "At these sizes: not measured.",
        "Measured at the nearest sizes: M = 512, H = 2048, I = 1024, dtype = bfloat16 on NVIDIA H200: "
        "one barrier 8.0 µs, tile sync 7.0 µs (benchmarks/results/b.json, commit abc1234).",
    ]


def test_the_newest_measurement_of_the_same_sizes_is_told_for_one_launch(tmp_path: Path) -> None:
    both = {"tilegen_barrier": 8.0, "tilegen_persistent": 9.0}
    write(tmp_path, "a.json", "2026-01-02", rows(640, tilegen=7.0, **both))
    write(tmp_path, "b.json", "2026-01-01", rows(640, tilegen=1.0, tilegen_barrier=2.0))
    (said,) = notes(tmp_path)
    assert said.startswith("Measured at these sizes: M = 640") and "a.json" in said
    assert "one barrier 8.0 µs, tile sync 9.0 µs" in said
