"""Lines that are too long: over 110 characters, 120 in templates. `python -m tests.line_lengths` counts."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests" / "line_lengths.json"
LIMITS = {".py": 110, ".md": 110, ".j2": 120}
FOLDERS = ("tilegen", "templates", "tests", "examples", "benchmarks", "docs")


def too_long(path: Path) -> int:
    """How many lines of a file are too long. Rows of a Markdown table cannot be broken."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return sum(
        len(line) > LIMITS[path.suffix] and not (path.suffix == ".md" and line.startswith("|"))
        for line in lines
    )


def counts() -> dict[str, int]:
    """file -> its lines that are too long, where there are any."""
    paths = [*ROOT.glob("*"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
    found = {
        str(p.relative_to(ROOT)): too_long(p) for p in sorted(paths) if p.suffix in LIMITS and p.is_file()
    }
    return {name: n for name, n in found.items() if n}


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(counts(), indent=0) + "\n")
