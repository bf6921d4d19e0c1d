"""A few of the programs and pairs that `python -m tests.full` draws by the thousand."""

from __future__ import annotations

import pytest

from tests.full import one_pair, one_program


@pytest.mark.parametrize("number", range(5))
def test_a_drawn_program_is_proved_by_all_checkers(number: int) -> None:
    counts, wrong = one_program(number)
    assert not wrong and counts["programs: ops"]


@pytest.mark.parametrize("number", range(5))
def test_a_drawn_pair_agrees_with_the_oracle(number: int) -> None:
    _, wrong = one_pair(number)
    assert not wrong
