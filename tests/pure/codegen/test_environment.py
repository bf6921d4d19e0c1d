"""Templates: found in their folders and nowhere else, read anew when they change; texts written when they are
asked for."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from tilegen.codegen import environment
from tilegen.codegen.environment import Source, render, source_of


def test_nothing_outside_the_folders() -> None:
    assert source_of("schedule.j2") is not None and source_of("no_such.j2") is None
    with pytest.raises(jinja2.TemplateNotFound):
        source_of("../setup.py")


def test_a_changed_template_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "roots", lambda: [tmp_path])
    for text in ("one {{ n }}", "two {{ n }}"):
        (tmp_path / "t.j2").write_text(text)
        assert render("t.j2", n=1) == text.replace("{{ n }}", "1")


def test_a_text_is_written_once_and_late() -> None:
    written: list[int] = []
    source = Source(lambda: f"text {written.append(1) or len(written)}")  # type: ignore[func-returns-value]
    assert not written and source.text == source.text == "text 1"
