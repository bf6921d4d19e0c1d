"""The histogram of a random draw."""

from __future__ import annotations

import random

from benchmarks.histogram import EDGES, histogram


def test_every_cell_has_a_mark_in_the_range_of_its_ratio() -> None:
    drawn = random.Random(0)
    ratios = [*EDGES[1:-1], *(drawn.uniform(0.4, 3.0) for _ in range(50))]
    rows = [line.strip("| ").split(" | ") for line in histogram(ratios).splitlines()[2:]]
    assert sum(int(count) for _, count, _ in rows) == len(ratios)
    assert all(marks == "▪" * int(count) for _, count, marks in rows)


def test_losses_are_bold_and_an_edge_belongs_to_the_range_above() -> None:
    lines = histogram([0.5, 0.92, 0.979, 0.98, 1.0, 2.0, 7.5]).splitlines()[2:]
    assert lines == [
        "| **below 0.7** | 1 | ▪ |",
        "| **0.92 to 0.98** | 2 | ▪▪ |",
        "| 0.98 to 1.02 | 2 | ▪▪ |",
        "| 2 and more | 2 | ▪▪ |",
    ]
