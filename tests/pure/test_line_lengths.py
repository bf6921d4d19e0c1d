"""No line is too long."""

from pathlib import Path

import pytest

from tests.line_lengths import all_too_long, too_long


def test_no_line_is_too_long():
    assert not list(all_too_long())


def test_quoted_code_may_be_as_long_as_a_templates(tmp_path: Path):
    (tmp_path / "a.md").write_text("\n".join(["```", "x" * 120, "x" * 121, "```", "x" * 120]))
    assert too_long(tmp_path / "a.md") == [3, 5]


@pytest.mark.parametrize(
    ("name", "length", "long"),
    [("a.py", 110, []), ("a.py", 111, [1]), ("a.md", 111, [1]), ("a.j2", 120, []), ("a.j2", 121, [1])],
)
def test_what_is_too_long(tmp_path: Path, name, length, long):
    (tmp_path / name).write_text("x" * length + "\n| x\n")
    assert too_long(tmp_path / name) == long
    (tmp_path / name).write_text("| " + "x" * length)
    assert too_long(tmp_path / name) == ([] if name == "a.md" else [1])
