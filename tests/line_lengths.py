"""Lines that are too long: over 110 characters, 120 in templates and in code that Markdown quotes.

`python -m tests.line_lengths` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {".py": 110, ".md": 110, ".j2": 120, ".hpp": 120, ".cpp": 120}
QUOTED = 120
FOLDERS = ("tilegen", "templates", "tests", "examples", "benchmarks", "docs")


def too_long(path: Path) -> list[int]:
    """The lines of a file that are too long. Rows of a Markdown table cannot be broken."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found, quoted, markdown = [], False, path.suffix == ".md"
    for n, line in enumerate(lines, 1):
        quoted ^= markdown and line.startswith("```")
        table = markdown and line.startswith("|")
        if len(line) > (QUOTED if quoted else LIMITS[path.suffix]) and not table:
            found.append(n)
    return found


def all_too_long() -> Iterator[str]:
    """file:line of each."""
    paths = [*ROOT.glob("*"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
    for path in sorted(p for p in paths if p.suffix in LIMITS and p.is_file()):
        yield from (f"{path.relative_to(ROOT)}:{line}" for line in too_long(path))


if __name__ == "__main__":
    print("\n".join(all_too_long()))
