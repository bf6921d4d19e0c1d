"""Random programs: every plan passes the proof, the element-wise oracle, its JSON and a run. A sample;
tests/full.py draws hundreds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.everywhere import DTYPES, WORDS, drawn_programs
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


def test_every_word_is_drawn() -> None:
    programs = drawn_programs(500, 1)
    said = sum((p.words for p in programs), Counter[str]())
    assert [word for word in WORDS if not said[word]] == []
    assert {p.dtype for p in programs} == set(DTYPES)
    sizes = {n for p in programs for t in p.program.tensors for n in t.shape}
    assert {1, 17, 72} <= sizes


def test_the_same_seed_gives_the_same_program() -> None:
    a, b = draw_case(5), draw_case(5)
    assert a.program == b.program and a.options == b.options


def test_the_first_of_a_seed_are_the_same_however_many_are_drawn() -> None:
    assert drawn_programs(4, 7) == drawn_programs(9, 7)[:4]
