"""Random programs: every plan passes the proof, the element-wise oracle, its JSON and a run. A sample;
tests/full.py draws hundreds."""

from __future__ import annotations

import pytest

from tests.oracles.programs import planned, wrong_in, wrong_in_json, wrong_in_lattice, wrong_in_numbers
from tests.random_programs import draw_case
from tilegen.targets.interpret.interpreter import STRATEGIES


@pytest.mark.parametrize("number", range(28))
def test_random_program(number: int) -> None:
    case = draw_case(number)
    plan, _ = planned(case)
    assert not wrong_in(plan)
    assert not wrong_in_json(plan)
    assert not wrong_in_numbers(case, plan, STRATEGIES[number % len(STRATEGIES)], number)
    if number % 4 == 0:
        assert wrong_in_lattice(plan)[0] == ""


def test_the_same_seed_gives_the_same_program() -> None:
    a, b = draw_case(5), draw_case(5)
    assert a.program == b.program and a.options == b.options
