"""Every mutant that counts is caught, and nothing that is harmless raises an alarm in a run. `python -m
tests.mutants` prints the table."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.mutant_code import CodeMutant, code_mutants, edited
from tests.mutant_layers import harmless, interpreter_objects, ordered, remembered_work, sample
from tests.mutant_plans import Subject, subjects
from tests.mutant_table import Row, Rows, table, through_code, through_plan, through_weakened
from tests.mutants import mutants, waits_of
from tests.oracles import elements
from tests.shares import share
from tilegen.proof.checker import check
from tilegen.targets.cpu.emit import generate

FULL = os.environ.get("TILEGEN_FULL") == "1"
OPERATORS = {
    "dropped wait", "wait target -1", "wait target +1", "wait for another semaphore",
    "wait moved to the next read", "missing post",
    "extra post", "post to another semaphore", "semaphore target -1", "semaphore target +1",
    "semaphore split too finely", "swapped ranks",
    "swapped in a static list",
}  # fmt: skip
BUILT = ("mlp by row",)


@pytest.fixture(autouse=True, scope="module")
def _remembered() -> Iterator[None]:
    with remembered_work():
        yield


def of(name: str) -> Subject:
    return subjects()[name]


def nothing_wrong(rows: Rows) -> None:
    assert not [w for row in rows.values() for w in row.wrong], table(rows)
    assert all(row.caught["proof"] == row.tried["proof"] for row in rows.values()), table(rows)


@pytest.mark.parametrize("name", subjects())
def test_no_mutation_is_right(name: str) -> None:
    subject = of(name)
    data = subject.fresh()
    assert check(data).ok and elements.examine(data).ok and ordered(data)
    for strategy, seed, workers in (("random", 0, 0), ("reverse", 0, 2), ("starve", 0, 1)):
        assert not interpreter_objects(subject, data, strategy, seed, workers)


@pytest.mark.parametrize(
    "name", share(list(subjects()), 1, without=("split sum", "convs", "attention", "mlp by chunk"))
)
def test_plan_mutants(name: str) -> None:
    """All mutants of a plan through oracle and proof; through the interpreter some of each operator."""
    subject, rows = of(name), Rows(Row)
    by_operator = defaultdict(list)
    for m in mutants(subject):
        by_operator[m.operator].append(m)
    assert all(
        m.data(subject) != subject.data for found in by_operator.values() for m in sample(found, 3, name)
    )
    for found in by_operator.values():
        chosen = found if FULL else sample(found, 4, name)
        through_plan(subject, chosen, rows)
        through_plan(subject, [m for m in found if m not in chosen], rows, interpret=False)
    nothing_wrong(rows)
    assert sum(row.counting for row in rows.values()) > sum(row.all for row in rows.values()) // 3


def test_every_operator_counts_somewhere() -> None:
    """No operator is idle: of each some mutants count, and of the harmless ones there are some for each
    reason."""
    seen, reasons = set(), set()
    for name in ("mlp by row", "mlp static"):
        subject = of(name)
        for m in mutants(subject):
            why = harmless(m.data(subject))
            reasons.add(why)
            seen |= {m.operator} if not why else set()
    assert seen == OPERATORS
    assert reasons == {"", "nothing", "ordered", "static"}


@pytest.mark.parametrize("name", subjects() if FULL else BUILT)
def test_code_mutants(name: str) -> None:
    """The generated code under ThreadSanitizer, and plainly in full runs: no mutant that a run can see
    survives."""
    subject, rows = of(name), Rows(Row)
    quick = {
        "dropped wait",
        "wait for another semaphore",
        "wait moved to the next read",
        "semaphore split too finely",
    }
    counting = through_plan(subject, mutants(subject), rows, interpret=False)
    through_code(
        subject, [m for m in counting if FULL or m.operator in quick], rows, 4 if FULL else 2, plain=FULL
    )
    nothing_wrong(rows)
    for operator in quick & set(rows):
        row = rows[operator]  # a cluster's parts run in turn on one thread, where the others' waits help
        assert row.tried["tsan"] == 0 or row.caught["tsan"] > 0 or subject.plan.cluster > 1, table(rows)
    assert rows["post before the write"].caught["tsan"] == rows["post before the write"].all > 0


@pytest.mark.parametrize("name", subjects() if FULL else ("mlp by row",))
def test_weakened_memory_orders(name: str) -> None:
    """x86 gives the right bits all the same; ThreadSanitizer sees both."""
    rows = Rows(Row)
    through_weakened(of(name), rows)
    assert {operator: row.caught["tsan"] for operator, row in rows.items()} == {
        "weakened release": 1,
        "weakened acquire": 1,
    }


def test_an_edit_that_does_not_apply_is_refused() -> None:
    subject = of("mlp by row")
    source = generate(subject.plan)
    assert edited(source, True) != source
    with pytest.raises(AssertionError):
        edited(source.replace("tg_reset(g);", ""), True)


@pytest.mark.parametrize("name", subjects())
def test_the_code_has_every_switch_that_mutants_set(name: str) -> None:
    subject = of(name)
    known = set(re.findall(r'tg_is\("(\w+)"\)', edited(generate(subject.plan), True)))
    assert {m.switches["kind"] for m in (*mutants(subject), *code_mutants(subject))} <= known


def test_code_mutants_are_those_that_a_plan_cannot_state() -> None:
    for subject in subjects().values():
        found: list[CodeMutant] = list(code_mutants(subject))
        assert {"post before the write", "missing reset"} <= {c.operator for c in found}
        assert all(c.why for c in found)


def test_waits_are_found_in_the_code() -> None:
    """Each wait of the expanded plan is the same one as in the table that the code is made from (asserted
    while walking)."""
    for subject in subjects().values():
        assert len(list(waits_of(subject))) == len(subject.plan.wait_table.rank)
