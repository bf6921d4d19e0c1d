"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def shown(value: float | None) -> str:
    """Bold where it is a loss."""
    return "–" if value is None else f"**{value:.2f}**" if value < 1 else f"{value:.2f}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others, of numbers, to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
