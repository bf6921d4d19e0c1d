"""What tests ask of a picture: its texts, where they stand, whether any two overlap."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

SVG = "{http://www.w3.org/2000/svg}"
ANCHOR = {"start": 0.0, "middle": 0.5, "end": 1.0}
EM = 0.52  # mean width of a character over the font size


@dataclass(frozen=True)
class Text:
    text: str
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: Text) -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not beside and self.top < other.bottom and other.top < self.bottom


def texts(root: Any) -> list[Text]:
    """All texts of a picture that is not turned or scaled; widths are estimated from font sizes."""
    assert not any(e.get("transform") for e in root.iter())
    found = []
    for e in root.iter(f"{SVG}text"):
        if e.text:
            size = float(e.get("font-size", root.get("font-size")))
            x, y = float(e.get("x")), float(e.get("y"))
            width = EM * size * len(e.text)
            left = x - ANCHOR[e.get("text-anchor", "start")] * width
            found.append(Text(e.text, left, left + width, y - 0.75 * size, y + 0.2 * size))
    return found


def check_layout(root: Any) -> None:
    """No two texts overlap, and all lie on the card."""
    found = texts(root)
    assert [(a.text, b.text) for a, b in itertools.combinations(found, 2) if a.overlaps(b)] == []
    width, height = float(root.get("width")), float(root.get("height"))
    assert [t.text for t in found if t.left < 0 or t.right > width or t.top < 0 or t.bottom > height] == []


def check_card(root: Any) -> None:
    """Dark text on an opaque white card: readable on any page."""
    card = root.find(f"{SVG}rect")
    assert card.get("fill") == "#ffffff" and card.get("opacity") is None
    assert float(card.get("width")) >= float(root.get("width")) - 1 and root.get("fill") == "#222222"


def parsed(text: str) -> Any:
    return ET.fromstring(text)
