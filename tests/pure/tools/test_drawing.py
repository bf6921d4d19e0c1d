"""Ticks cover the axis, colours differ, legends wrap."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tilegen.tools.drawing import SAFE, Swatch, legend, palette, text_width, ticks, wrapped


@given(st.floats(1e-3, 1e7))
def test_ticks_cover_the_axis_and_are_few_round_numbers(end: float) -> None:
    found = ticks(end)
    assert found[0] == 0 and found[-1] >= end * (1 - 1e-6) and 2 <= len(found) <= 12
    assert len(found) < 3 or found[-2] < end
    steps = {round((b - a) / found[1], 6) for a, b in itertools.pairwise(found)}
    assert steps == {1.0} and f"{found[1]:.0e}"[0] in "125"


def test_ticks_of_nothing() -> None:
    assert ticks(0.0) == (0.0,)


@given(st.integers(0, 400))
def test_no_two_colours_are_alike(count: int) -> None:
    assert len(set(palette(count))) == count


@given(st.integers(9, 60))
def test_neighbours_differ_clearly(count: int) -> None:
    for a, b in itertools.pairwise(palette(count)):
        channels = zip(bytes.fromhex(a[1:]), bytes.fromhex(b[1:]), strict=True)
        assert sum(abs(x - y) for x, y in channels) > 100


def test_few_colours_are_safe_for_the_colour_blind() -> None:
    assert palette(8) == SAFE


@given(st.lists(st.text("abc ", min_size=1, max_size=30), min_size=1, max_size=40))
def test_a_legend_wraps(words: list[str]) -> None:
    entries = legend([Swatch(w, "#000000") for w in words], 10, 20, 300, 12)
    assert [e.swatch.text for e in entries] == words
    ends = [e.x + 16 + text_width(e.swatch.text, 12) for e in entries]
    assert all(end <= 310 or e.x == 10 for e, end in zip(entries, ends, strict=True))
    for (a, end), b in zip(zip(entries, ends, strict=True), entries[1:], strict=False):
        assert (b.y == a.y and b.x > end) or (b.y > a.y and b.x == 10)


@given(st.text("ab ", max_size=200))
def test_lines_keep_all_words(text: str) -> None:
    lines = wrapped(text, 100, 12)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(text_width(line, 12) <= 100 for line in lines)
