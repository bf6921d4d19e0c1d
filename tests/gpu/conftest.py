"""What tests of generated kernels on a GPU set."""

from __future__ import annotations

import pytest


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that hangs ends after a second."""
    monkeypatch.setenv("TILEGEN_TIMEOUT_MS", "1000")


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in outputs and intermediates before each launch."""
    monkeypatch.setenv("TILEGEN_POISON", "1")
