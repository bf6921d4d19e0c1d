"""Lines do not get longer: those too long today are counted in tests/line_lengths.json, and become fewer."""

import json
from pathlib import Path

import pytest

from tests.line_lengths import KNOWN, counts, too_long


def test_no_file_gets_more_lines_that_are_too_long():
    known = json.loads(KNOWN.read_text())
    more = {
        name: f"{n} lines too long, {known.get(name, 0)} before"
        for name, n in counts().items()
        if n > known.get(name, 0)
    }
    assert not more


@pytest.mark.parametrize(
    ("name", "length", "long"),
    [("a.py", 110, 0), ("a.py", 111, 1), ("a.md", 111, 1), ("a.j2", 120, 0), ("a.j2", 121, 1)],
)
def test_what_is_too_long(tmp_path: Path, name, length, long):
    (tmp_path / name).write_text("x" * length + "\n| x\n")
    assert too_long(tmp_path / name) == long
    (tmp_path / name).write_text("| " + "x" * length)
    assert too_long(tmp_path / name) == (0 if name == "a.md" else 1)
