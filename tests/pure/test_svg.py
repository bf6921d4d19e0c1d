"""Timelines as SVG: well-formed, a bar per tile, waiting shown."""

import xml.etree.ElementTree as ET
from pathlib import Path

from tilegen.cli import main

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_per_tile(tmp_path: Path) -> None:
    file = tmp_path / "t.svg"
    sizes = ["-s", "M=640", "-s", "H=2048", "-s", "I=1024", "--tile", "up=128x256", "--tile", "down=128x256"]
    assert (
        main(["plan", str(ROOT / "examples" / "gpt3_mlp.py"), *sizes, "--machine", "16", "--policy", "h=kernel", "--svg", str(file)]) == 0
    )
    root = ET.parse(file).getroot()
    titles = [t.text or "" for t in root.iter(f"{SVG}title")]
    assert len(titles) == 20 + 40 and sum(t.startswith("up(") for t in titles) == 20
    assert any("waiting" in t for t in titles)


def test_the_picture_is_up_to_date(tmp_path: Path) -> None:
    """docs/tiles.svg is what docs/picture.py draws: tile sync ends earlier than the barrier."""
    text = (ROOT / "docs" / "tiles.svg").read_text()
    assert (
        "kernel boundary (one semaphore): 113 µs, 70% busy" in text and "tile sync (one semaphore per row block): 83 µs, 96% busy" in text
    )
