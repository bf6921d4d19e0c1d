"""Charts: a bar and a value per contender, labels that do not overlap, losses that are seen."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.pure.tools.pictures import SVG, check_card, check_layout, parsed, texts
from tilegen.bench.chart import chart, main
from tilegen.bench.names import CONTENDERS
from tilegen.bench.rows import Row

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def row(variant: str, us: float, m: int = 1, error: float = 3e-3, program: str = "mlp") -> Row:
    return Row(program, {"M": m, "H": 64}, variant, us, 0.01, 9, error, 1.5, 2.5)


WON = [row("eager", 120), row("graph", 100), row("tilegen-barrier", 90), row("tilegen", 80)]
LOST = [row("eager", 220, 16), row("graph", 90, 16), row("tilegen-barrier", 95, 16), row("tilegen", 100, 16)]


def words(root: Any) -> set[str]:
    return {t.text for t in texts(root)}


def ratios(root: Any) -> dict[str, str]:
    return {t.text: t.get("fill") for t in root.iter(f"{SVG}text") if t.get("class") == "ratio" and t.text}


def bars(root: Any) -> list[Any]:
    return [r for r in root.iter(f"{SVG}rect") if r.get("class") == "bar"]


def test_a_bar_and_a_value_per_contender() -> None:
    root = parsed(chart([*WON, *LOST]))
    titles = [t.text or "" for t in root.iter(f"{SVG}title")]
    assert len(bars(root)) == len(titles) == 8
    assert titles[3].startswith("tilegen, M = 1: 80.0 µs, speed 1.25")
    assert {"mlp", "M = 1", "M = 16", "80.0 µs", "220.0 µs", "eager", "tilegen-barrier"} <= words(root)


def test_length_is_speed_and_the_dashed_line_is_1() -> None:
    root = parsed(chart([*WON, *LOST]))
    lengths = [float(b.get("width")) for b in bars(root)]
    unit = lengths[1]  # graph, the best peer
    speeds = [100 / 120, 1, 100 / 90, 1.25, 90 / 220, 1, 90 / 95, 0.9]
    assert [n / unit for n in lengths] == pytest.approx(speeds, abs=0.01)
    lines = [float(e.get("x1")) for e in root.iter(f"{SVG}line") if e.get("class") == "one"]
    assert lines == pytest.approx([float(bars(root)[n].get("x")) + unit for n in (1, 5)], abs=0.2)


def test_a_loss_is_seen_without_colour_too() -> None:
    found = ratios(parsed(chart([*WON, *LOST])))
    assert found == {"1.25×": "#0b4f7d", "0.90×, slower": "#c00000"}
    assert list(ratios(parsed(chart([row("graph", 100), row("tilegen", 100.2)])))) == ["0.998×, slower"]


def test_a_cell_without_peers_is_named() -> None:
    root = parsed(chart([*WON, row("tilegen", 5, program="alone")]))
    assert any(t.startswith("Not drawn, since no peer was measured: alone (M = 1)") for t in words(root))


def test_special_characters_are_escaped() -> None:
    root = parsed(chart([row(v, 50, program='a<b & "c"') for v in ("graph", "tilegen", "mine<&")]))
    assert {'a<b & "c"', "mine<&"} <= words(root)


def test_one_colour_a_contender_in_every_chart() -> None:
    colours = [c.colour for c in CONTENDERS.values()]
    assert len(set(colours)) == len(colours)
    for rows in (WON, LOST, [*WON, row("mine", 50)]):
        root = parsed(chart(rows))
        for title, bar in zip(root.iter(f"{SVG}title"), bars(root), strict=True):
            name = title.text.split(",")[0]
            assert name not in CONTENDERS or bar.get("fill") == CONTENDERS[name].colour


def test_the_legend_says_what_a_contender_is() -> None:
    assert {"graph: torch in a CUDA graph", "tilegen: as tg.compile gives it"} <= words(parsed(chart(WON)))


@pytest.mark.parametrize("seed", range(20))
def test_no_two_labels_overlap(seed: int) -> None:
    rng = random.Random(seed)
    variants = rng.sample([*CONTENDERS, "a-contender-of-my-own"], rng.randint(2, 12)) + ["graph"]
    rows = [
        row(v, 10 ** rng.uniform(0, 5), m, rng.choice([1e-3, math.nan]), program)
        for program in ("mlp", "a program of a very long name that a user may give")
        for m in rng.sample(range(1, 10**6), rng.randint(1, 9))
        for v in dict.fromkeys(variants)
        if rng.random() < 0.9
    ]
    check_layout(parsed(chart(rows)))


def test_long_labels_wrap() -> None:
    sizes = [{f"size_{k}": n * 1000 + k for k in range(12)} for n in (1, 2)]
    rows = [Row("mine", s, v, 9.0, 0.0, 9, 0.0, 1.0, 1.0) for s in sizes for v in ("graph", "tilegen")]
    check_layout(parsed(chart(rows)))


@pytest.mark.parametrize("file", sorted(f.name for f in RESULTS.glob("*.json")))
def test_charts_of_the_committed_results_can_be_read(file: str, tmp_path: Path) -> None:
    rows = json.loads((RESULTS / file).read_text()).get("rows", [])
    if rows and {"workload", "variant", "error"} <= set(rows[0]):
        main([str(RESULTS / file), str(tmp_path / "c.svg")])
        root = parsed((tmp_path / "c.svg").read_text())
        check_layout(root)
        check_card(root)
        assert not any("stage=0" in t or "stage = 0" in t or "block = 0" in t for t in words(root))
        peers = {"eager", "graph", "cublaslt", "cudnn", "inductor"}
        cells = {json.dumps([r["workload"], r["sizes"]]) for r in rows if r["variant"] in peers}
        drawn = [r for r in rows if json.dumps([r["workload"], r["sizes"]]) in cells]
        assert len(bars(root)) == len(drawn)


def test_further_fields_of_a_row_do_no_harm(tmp_path: Path) -> None:
    rows = [{**asdict(r), "rounds_us": [1.0, 2.0], "in_l2": True} for r in WON]
    (tmp_path / "r.json").write_text(json.dumps({"rows": rows}))
    main([str(tmp_path / "r.json"), str(tmp_path / "r.svg")])
    assert (tmp_path / "r.svg").read_text() == chart(WON)


def test_nothing_to_draw() -> None:
    check_card(parsed(chart([])))


def test_cells_of_a_group_stand_in_their_order_down_the_columns() -> None:
    rows = [row(v, 50, m) for m in range(1, 8) for v in ("graph", "tilegen")]
    places = {t.text: (t.left, t.top) for t in texts(parsed(chart(rows))) if t.text.startswith("M = ")}
    assert [m for m, _ in sorted(places.items(), key=lambda p: p[1])] == [f"M = {m}" for m in range(1, 8)]
    assert all(a != b for a, b in itertools.combinations(places.values(), 2))
