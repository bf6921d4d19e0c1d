"""One table of cases serves many tests: in a quick run each takes its share of it, in a full run all.

The tests that compile a kernel of the same table take different shares, so that each case is built by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def share(cases: Sequence[Any], one_in: int, first: int = 0, without: Collection[str] = ()) -> list[Any]:
    """Parameters for parametrize: all cases, by name; those out of the share, or named, are marked full."""
    names = [getattr(case, "name", "") or str(case) for case in cases]
    return [
        pytest.param(
            case, id=name, marks=[] if n % one_in == first and name not in without else [pytest.mark.full]
        )
        for n, (case, name) in enumerate(zip(cases, names, strict=True))
    ]
