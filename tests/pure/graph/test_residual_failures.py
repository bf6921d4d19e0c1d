"""Trees that were grown on other things than products tell today."""

from __future__ import annotations

import pytest

from tilegen.arch.machine import H200
from tilegen.graph import residual
from tilegen.graph.residual import LinearTraits, names_of, trees_of


def test_trees_that_saw_other_things_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = {"h200": {"LinearTraits": {"seen": ["height", "width"], "trees": [0.1]}}}
    monkeypatch.setattr(residual, "_data", lambda: stale)
    with pytest.raises(ValueError, match=r"residuals.json was grown on \['height', 'width'\], expected"):
        trees_of(H200, LinearTraits)
    stale["h200"]["LinearTraits"]["seen"] = names_of(LinearTraits)
    assert trees_of(H200, LinearTraits) == [0.1]
