"""What the tests on a GPU compile are programs: a case that no spec says is seen where there is no GPU."""

from __future__ import annotations

from tests.gpu import gemms, language, ops, portable, test_widths
from tests.gpu.gemms import Case
from tilegen.errors import SpecError


def refused() -> list[str]:
    lists = [v for module in (gemms, language, ops, portable, test_widths) for v in vars(module).values()]
    found = []
    for case in (c for cases in lists if isinstance(cases, list) for c in cases if isinstance(c, Case)):
        try:
            assert case.program.calls
        except SpecError as error:
            found.append(f"{case.name}: {error}")
    return found


def test_every_case_is_a_program() -> None:
    assert not refused()
