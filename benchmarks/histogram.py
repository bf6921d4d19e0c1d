"""How many cells of a random draw have which ratio, as a Markdown table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

EDGES = (0.0, 0.7, 0.8, 0.92, 0.98, 1.02, 1.1, 1.25, 1.5, 2.0, math.inf)


def histogram(ratios: Sequence[float]) -> str:
    """A line for each range that has cells, a mark for each cell; losses bold.

    ratios: of the best peer's time to tilegen's; each range holds its lower edge.
    """
    lines = ["| best peer / tilegen | cells | |", "|---|---:|---|"]
    for low, high in pairwise(EDGES):
        if count := sum(low <= r < high for r in ratios):
            label = _label(low, high)
            lines.append(f"| {f'**{label}**' if high <= 1 else label} | {count} | {'▪' * count} |")
    return "\n".join(lines)


def _label(low: float, high: float) -> str:
    if not low:
        return f"below {high:g}"
    return f"{low:g} and more" if high == math.inf else f"{low:g} to {high:g}"
