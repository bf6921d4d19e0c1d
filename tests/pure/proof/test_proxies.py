"""What a certificate says of memory order is what the text does: through the proxies that the target
declares, by the instructions that its rows name."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu import gemms, ops
from tests.gpu.families import drawn
from tests.shares import share
from tilegen.proof import memory_order
from tilegen.proof.checker import check
from tilegen.proof.memory_order import ASYNC, GENERIC, Row
from tilegen.schedule.expand import expanded
from tilegen.targets.base import known, unproved

SEED = 20261123
CASES = {c.name: c for c in (*drawn(SEED, 30), *gemms.HOPPER, *ops.OPS)}
every = pytest.mark.parametrize("name", share(list(CASES), 3, 1))
BULK = "cp.async.bulk"


def rows(certificate: Any) -> list[Row]:
    """The rows of the table that a certificate cites."""
    statement = certificate.checks[-1].statement
    return [r for table in memory_order._TABLES.values() for r in table if str(r) in statement]


def named_in(certificate: Any) -> set[str]:
    return {i for row in rows(certificate) for i in row.instructions}


def made(case: Any, target: str, machine: str) -> tuple[Any, Any, str]:
    """Plan, certificate, text."""
    plan = tg.plan(case.spec(**case.sizes), machine, target=target, **case.options)
    return plan, check(expanded(plan)), known()[target].emit(plan).text


@every
def test_the_proof_and_the_hopper_target_agree(name: str) -> None:
    """Through which proxy each op reads and writes: the target's word, the table of the proof, worked out
    apart."""
    case = CASES[name]
    plan = tg.plan(case.spec(**case.sizes), "h200", **case.options)
    target = known()[plan.target]
    said = target.proxies(plan.graph, plan.machine)
    assert len(said) == len(plan.graph.ops) and all(
        plan.proxies_of(op) == proxies for op, proxies in said.items()
    )
    found = check(expanded(plan)).checks[-1]
    assert found.ok, found.statement


@pytest.mark.parametrize(
    "target, machine",
    [
        ("sm_90a", "h200"),
        ("sm_80", "a100"),
        pytest.param("sm_80", "h200", marks=pytest.mark.full),
        ("cpu", "cpu:16"),
        pytest.param("cpu", "h200", marks=pytest.mark.full),
    ],
)
def test_a_certificates_instructions_stand_in_the_text(target: str, machine: str) -> None:
    """And bulk copies in no text of a plan that declares none: of no plan for a GPU without them."""
    cited = set()
    stored_for_threads = gemms.Case("norms", ops.norms, {"M": 2048, "N": 1024})
    for case in (*drawn(SEED, 14), *gemms.CASES, stored_for_threads):
        try:
            plan, certificate, text = made(case, target, machine)
        except tg.PlanError as error:
            assert target == "sm_80" and "has no form for" in str(error)
            continue
        cited |= {(r.writer, r.reader) for r in rows(certificate)}
        missing = {i for i in named_in(certificate) if i not in text}
        assert certificate.ok and not missing, (case.name, missing)
        assert (BULK in text) == bool(plan.proxies) and (target == "sm_90a" or not plan.proxies)
    assert cited == (
        {(GENERIC, GENERIC)}
        if target != "sm_90a"
        else {(w, r) for w in (GENERIC, ASYNC) for r in (GENERIC, ASYNC)}
    )


def test_ops_that_store_by_tma_have_the_instruction_in_their_own_code() -> None:
    """The store that a certificate tells of is called for that op, and for no other."""
    for case in (*drawn(SEED, 14), *gemms.HOPPER):
        plan, _, text = made(case, "sm_90a", "h200")
        for op in plan.graph.ops:
            code = _code_of(text, op.name)
            staged = "tg_store_staged<Op" in code or "tg_store_turned_staged<Op" in code
            assert staged == plan.proxies_of(op.name).writes, (case.name, op.name)


def _code_of(text: str, op: str) -> str:
    """The struct of an op, and its case in the math warps' loop."""
    math = text[text.index("TG_FN void tg_mma_tiles(") :]
    start = math.find(f"using Op = tg_op_{op};")
    return math[start : math.find("\n      case ", start)] if start >= 0 else ""


def test_the_interpreter_and_the_cpu_declare_nothing() -> None:
    plan = tg.plan(CASES["mlp, M = 1000, tile policy"].program, "h200")
    graph, machine = plan.graph, plan.machine
    assert not known()["cpu"].proxies(graph, machine) and not known()["interpret"].proxies(graph, machine)
    assert unproved(graph, machine).proxies_of(graph.ops[0].name).writes is False
