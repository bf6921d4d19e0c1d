"""What planning costs, told without a clock (benchmarks/planning.py has the times): what it imports and
reads, what it simulates and how often it asks the cost model."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.graph import cost_model
from tilegen.ops.base import OpInstance, TileOp
from tilegen.schedule import planner
from tilegen.targets.sm90 import heuristics

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COLD = """
import sys
import tilegen as tg
from tilegen.frontend.loader import load_program
tiles = {{"up": (128, 256, 64), "down": (128, 256, 64)}}
made = tg.plan(load_program({path!r}, {{"M": 2048}}), "h200", tiles=tiles)
texts = "tilegen.targets.sm90.emit", "tilegen.targets.sm80.emit", "tilegen.targets.cpu.emit"
for name in ("torch", "jinja2", "tilegen.proof.checker", *texts):
    assert name not in sys.modules, f"planning imports {{name}}"
from tilegen.graph import residual
assert not residual._data.cache_info().currsize, "ops that share a launch go by the formulas alone"
print(made.order.count)
"""


def test_planning_imports_and_reads_no_more_than_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLD.format(path=str(EXAMPLES / "gpt3_mlp.py"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2048 // 128 * (6144 // 256 + 12288 // 256)


@pytest.mark.parametrize(("name", "most"), [("gpt3_mlp", 40), ("llama_layer", 80), ("resnet38", 200)])
def test_few_plans_are_simulated(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are judged on a producer and its consumers, so that their number grows with the edges, not
    with their combinations."""
    count, usual = [0], planner.simulate

    def counted(*given: Any, **named: Any) -> Any:
        count[0] += 1
        return usual(*given, **named)

    monkeypatch.setattr(planner, "simulate", counted)
    tg.plan(load_program(str(EXAMPLES / f"{name}.py"), {}), "h200")
    assert 0 < count[0] <= most


@pytest.mark.parametrize("name", ["gpt3_mlp", "llama_layer", "resnet38"])
def test_the_time_of_a_product_as_it_is_cut_is_asked_of_the_model_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many plans are simulated."""
    counts: Counter[tuple[str, TileOp]] = Counter()

    def counted(usual: Any) -> Any:
        def of(b: OpInstance, machine: Any) -> Any:
            counts[b.op.name, b.op] += 1
            return usual(b, machine)

        return of

    for word in ("linear_time", "conv_time"):
        monkeypatch.setattr(cost_model, word, counted(getattr(cost_model, word)))
    tg.plan(load_program(str(EXAMPLES / f"{name}.py"), {}), "h200")
    assert counts and set(counts.values()) == {1}


def test_boxes_of_a_convolution_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sizes of clusters."""
    counts: Counter[tuple[str, int, int]] = Counter()
    usual = heuristics._fewest_tiles

    def counted(b: OpInstance, rows: int, depth: int) -> Any:
        counts[b.op.name, rows, depth] += 1
        return usual(b, rows, depth)

    monkeypatch.setattr(heuristics, "_fewest_tiles", counted)
    tg.plan(load_program(str(EXAMPLES / "resnet38.py"), {"stage": 2}), "h200")
    assert counts and set(counts.values()) == {1}
