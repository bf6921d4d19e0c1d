"""What the pictures share: widths of text, wrapped lines and legends, ticks of an axis, distinct colours."""

from __future__ import annotations

import colorsys
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

EM = 0.55  # estimated width of a character over the font size; Helvetica and Arial have 0.5 on average
# colours that the colour-blind can tell apart
SAFE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89f00", "#6a4c93")
LIGHTNESS = (0.42, 0.58, 0.74)
GOLDEN = 0.382  # of the circle: neighbours in a list lie far apart in hue
LINE = 18.0  # from one line of a legend to the next


@dataclass(frozen=True)
class Swatch:
    """What a colour stands for. fill: a colour, or url(#…) of a pattern."""

    text: str
    fill: str


@dataclass(frozen=True)
class Entry:
    """A swatch at its place. y: the middle of its line."""

    x: float
    y: float
    swatch: Swatch


def text_width(text: str, size: float) -> float:
    """Estimated pixels of a text at a font size."""
    return EM * size * len(text)


def wrapped(text: str, width: float, size: float) -> tuple[str, ...]:
    """The text in lines that are at most `width` pixels wide."""
    return tuple(textwrap.wrap(text, max(1, int(width / (EM * size)))))


def legend(swatches: Sequence[Swatch], x: float, y: float, width: float, size: float) -> tuple[Entry, ...]:
    """The swatches side by side from (x, y); those that do not fit into `width` go on in the next line."""
    entries, at = [], x
    for swatch in swatches:
        wide = 16 + text_width(swatch.text, size) + 16
        if at > x and at + wide - 16 > x + width:
            at, y = x, y + LINE
        entries.append(Entry(at, y, swatch))
        at += wide
    return tuple(entries)


def ticks(end: float, most: int = 10) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 · 10ⁿ from 0 to the first that is not below `end`; at most about `most`."""
    if not end > 0:
        return (0.0,)
    exponent = math.floor(math.log10(end / most))
    step = next(s for s in (10.0**exponent * m for m in (1, 2, 5, 10, 20)) if end / s <= most)
    return tuple(round(step * n, 9) for n in range(math.ceil(round(end / step, 6)) + 1))


def palette(count: int) -> tuple[str, ...]:
    """`count` colours, no two alike: the safe ones while they suffice, else hues spread over the circle."""
    if count <= len(SAFE):
        return SAFE[:count]
    stride = next(s for s in range(round(GOLDEN * count), count + 1) if math.gcd(s, count) == 1)
    hues = [n * stride % count / count for n in range(count)]
    return tuple(_hex(hue, LIGHTNESS[n % len(LIGHTNESS)]) for n, hue in enumerate(hues))


def _hex(hue: float, lightness: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(hue, lightness, 0.65))
