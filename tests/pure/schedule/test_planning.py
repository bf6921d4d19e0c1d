"""What planning costs, told without a clock (benchmarks/planning.py has the times): what it imports, what it
simulates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.schedule import planner

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COLD = """
import sys
import tilegen as tg
from tilegen.frontend.loader import load_program
tiles = {{"up": (128, 256, 64), "down": (128, 256, 64)}}
made = tg.plan(load_program({path!r}, {{"M": 2048}}), "h200", tiles=tiles)
assert "torch" not in sys.modules, "planning imports torch"
print(made.order.count)
"""


def test_planning_imports_no_torch() -> None:
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
