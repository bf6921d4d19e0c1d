"""Tables of models under torch.compile and of decoding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from benchmarks.compiled_tables import of_batches, of_generated, of_gradients, of_models, of_small
from benchmarks.small import error


def row(model: str, backend: str, us: list[float], **more: Any) -> dict[str, Any]:
    both = {"error": 0.01, "seconds": 10.0, "regions": 1, "left": [], "calls": [2 * n for n in us]}
    return {"model": model, "batch": 1, "backend": backend, "us": us, **both, **more}


ROWS = [
    row("fast", "eager", [500.0, 500.0], error=0.02),
    row("fast", "inductor", [300.0, 330.0]),
    row("fast", "tilegen", [200.0, 220.0], seconds=20.0),
    row("slow", "inductor", [90.0, 90.0]),
    row("slow", "tilegen", [100.0, 100.0], regions=0, seconds=5.0),
]


def test_a_line_a_model_and_how_they_stand_together() -> None:
    text = of_models({"rows": ROWS, "notes": ["third: ended: for want of its package\nand more"]})
    mean = "geometric mean 1.16, least 0.90, 1 below 0.98"
    assert f"2 models: {mean}; of best: {mean}. tilegen takes 1.00 times" in " ".join(text.split())
    times = "| fast | 500 | 315 | – | 210 | 1.50 | 1.50 | 1000 | 630 | 420 |"
    assert f"{times} 2.0e-02 | 1.0e-02 | 1.0e-02 | 1 | 10 | 20 |" in text
    assert "| slow | – | 90 | – | 100 | **0.90** | **0.90** |" in text
    assert text.endswith("- third: ended: for want of its package")


def test_a_line_a_side_of_decoding() -> None:
    made = {"backend": "tilegen", "batch": 8, "seconds": 40.0, "alike": 0.5, "rate": [100.0, 300.0, 200.0]}
    assert "| 8 | tilegen | 200 | 0.500 | 40 s |" in of_generated({"rows": [made]})


def test_the_best_of_the_others_is_told_apart_from_inductor() -> None:
    text = of_models({"rows": [*ROWS, row("slow", "inductor-flash", [80.0, 80.0])]})
    assert "of best: geometric mean 1.10, least 0.80" in text
    assert "| slow | – | 90 | 80 | 100 | **0.90** | **0.80** |" in text


def test_gradients_beside_eagers() -> None:
    errors = {"eager": 4e-7, "error": 5e-7, "eager_of_worst": 1e-6, "of_worst": 2e-6}
    text = of_gradients({"rows": [{"model": "net", "parameters": 9, "regions": 3, **errors}]})
    assert "| net | 9 | 3 | 4.0e-07 | 5.0e-07 | 1.0e-06 | 2.0e-06 |" in text


def test_graphs_of_a_batch_that_moves() -> None:
    row = {"model": "net", "graphs_inductor": 1, "graphs": 2, "regions": 3}
    text = of_batches({"rows": [{**row, "error_inductor": 1e-7, "error": 2e-7}]})
    assert "| net | 1 | 2 | 3 | 1.0e-07 | 2.0e-07 |" in text


def test_a_model_that_is_wrong_says_so() -> None:
    row = {"model": "net", "graphs": 1, "regions": 1, "operators": 9, "eager": 0.0, "error": 1e-7}
    rows = [{**row, "right": True, "left": "a word"}, {**row, "regions": 3, "right": False, "left": ""}]
    text = of_small({"rows": rows, "notes": ["mamba: transformers has no such"]})
    assert text.startswith("2 models: 1 right, 1 with one region for each graph.")
    assert "| net | 1 | 1 | 9 | 0.0e+00 | 1.0e-07 | a word |" in text
    assert "| net | 1 | 3 | 9 | 0.0e+00 | 1.0e-07 | **wrong** |" in text and "- mamba: " in text


@pytest.mark.parametrize("found, wanted", [([1.0, 2.0], 0.0), ([1.0, 2.5], 0.5 / 5**0.5), ([1.0], math.inf)])
def test_the_error_of_results(found: list[float], wanted: float) -> None:
    """Without end where whole numbers or shapes are others."""
    exact = [torch.tensor([1.0, 2.0]), torch.tensor([3, 4])]
    assert error([torch.tensor(found), torch.tensor([3, 4])], exact) == pytest.approx(wanted)
    assert error([exact[0], torch.tensor([3, 5])], exact) == math.inf
