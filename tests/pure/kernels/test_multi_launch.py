"""The streams lowering: the plan of each launch, what passes between them, the certificate of the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.gpu.gemms import CASES, Case, chain, fan, mlp
from tilegen.options import Options
from tilegen.runtime.verify import verify
from tilegen.runtime.verify_launches import certify_launches
from tilegen.schedule.launches import launch_plans, whole_plan
from tilegen.schedule.plan import Plan
from tilegen.targets.select import place
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.library import HopperLibrary

NAMES = {c.name: c for c in CASES}


def options_of(case: Case) -> Options:
    return Options.of(**{k: v for k, v in case.options.items() if k != "policies"})


def launched(case: Case, on: str = "h200", target: str = "auto") -> tuple[Plan, tuple[Plan, ...]]:
    whole = whole_plan(case.program, place(on, target), options_of(case))
    return whole, launch_plans(whole, place(on, target), options_of(case))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_launch_is_proved_and_has_a_hopper_kernel(case: Case) -> None:
    whole, plans = launched(case)
    for p in plans:
        assert verify(p).ok and p.targets == () and len(p.graph.ops) == 1 and p.lowering == "multi_launch"
        source = generate(p, frozenset(n for n, t in p.graph.tensors.items() if t.role == "weight"))
        assert "griddepcontrol.wait" in source.text and "griddepcontrol.launch_dependents" in source.text
    assert [p.graph.ops[0].name for p in plans] == [op.name for op in whole.graph.ops]
    assert all(
        case.options.get("tiles", {}).get(p.graph.ops[0].name, p.graph.ops[0].tile) == p.graph.ops[0].tile
        for p in plans
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_arguments_are_there_when_a_launch_needs_them(case: Case) -> None:
    """Each launch reads arguments of the program and results of launches before it; all outputs are made,
    each tensor once."""
    whole, plans = launched(case)
    made: list[str] = []
    for p in plans:
        assert set(p.arguments) <= {*whole.arguments, *made}
        roles = {name: t.role for name, t in p.graph.tensors.items()}
        assert all(
            roles[n] == (whole.graph.tensors[n].role if n in whole.arguments else "input")
            for n in p.arguments
        )
        assert (
            len(p.outputs) == 1
            and roles[p.outputs[0]] == "output"
            and set(roles) == {*p.arguments, *p.outputs}
        )
        made += p.outputs
    assert len(set(made)) == len(made) and set(whole.outputs) <= set(made)
    inner = {name for name, t in whole.graph.tensors.items() if t.role in ("intermediate", "partial")}
    assert set(made) == inner | set(whole.outputs)


def test_a_split_sum_is_a_launch_for_each_share() -> None:
    whole, plans = launched(NAMES["split sum"])
    assert [p.program for p in plans] == ["mlp_up_k0", "mlp_up_k1", "mlp_up", "mlp_down"]
    assert (
        plans[2].arguments == ("x", "w1", "up_partial0", "up_partial1")
        and plans[0].graph.tensors["up_partial0"].dtype == "float32"
    )
    assert (
        whole.graph.tensors["up_partial0"].role == "partial"
        and math.prod(whole.graph.tensors["up_partial0"].shape) == 129 * 384
    )


def test_clusters_may_differ_from_launch_to_launch() -> None:
    """One kernel for both would be refused."""
    options = Options.of(tiles={"up": (128, 64, 64), "down": (128, 128, 64)}, cluster={"up": 1, "down": 2})
    up, down = launch_plans(whole_plan(mlp(M=256), place("h200"), options), place("h200"), options)
    assert (up.cluster, down.cluster) == (1, 2) and generate(up).cluster == 1 and generate(down).cluster == 2


def test_each_op_is_cut_as_is_best_for_it_alone() -> None:
    options = Options.of(tiles={"up": (128, 64, 64)})
    up, down = whole_plan(mlp(M=256), place("h200"), options).graph.ops
    assert up.tile == (128, 64, 64) and (down.tile, down.cluster) == (
        whole_plan(mlp(M=256), place("h200"), Options()).graph.op("down").tile,
        down.cluster,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("auto", "op_major:8"),
        ("banded:2", "op_major:8"),
        ("op_major", "op_major"),
        ("op_major:3", "op_major:3"),
    ],
)
def test_order_and_placement(given: str, expected: str) -> None:
    options = Options.of(order=given, scheduling="static", tiles={"up": (128, 32, 64)})
    plans = launch_plans(whole_plan(mlp(M=2000), place("h200"), options), place("h200"), options)
    assert all(p.order.name == expected and isinstance(p.scheduling, tuple) and verify(p).ok for p in plans)


def test_fan_out_and_fan_in() -> None:
    whole = whole_plan(fan(), place("h200"), Options())
    plans = launch_plans(whole, place("h200"), Options())
    assert [(p.arguments, p.outputs) for p in plans] == [
        (("x", "wq"), ("q",)),
        (("x", "wk", "q"), ("qk",)),
        (("x", "wv"), ("v",)),
        (("qk", "wo", "v"), ("y",)),
    ]


@pytest.mark.parametrize("programmatic", [False, True])
def test_certificate(programmatic: bool) -> None:
    whole = whole_plan(chain(), place("h200"), Options())
    plans = launch_plans(whole, place("h200"), Options())
    proof = certify_launches(whole, [verify(p) for p in plans], plans, programmatic)
    assert proof.ok and [c.name for c in proof.checks] == [
        "chain_first",
        "chain_second",
        "chain_third",
        "chain_fourth",
        "sums over K",
        "values",
        "kernel boundaries",
    ]
    text = proof.checks[-1].statement
    assert text.startswith("4 launches on one stream") and ("griddepcontrol.wait" in text) == programmatic
    assert text.endswith("a: first -> second; b: second -> third; c: third -> fourth; b: second -> fourth")
    assert "proved" in proof.text()


def test_the_whole_plan_can_be_written() -> None:
    whole = whole_plan(mlp(), place("h200"), Options())
    data = whole.to_json()
    assert (
        data["lowering"] == "multi_launch"
        and data["semaphores"] == []
        and whole.waits == ()
        and Plan.from_json(data).digest == whole.digest
    )


class Launched(Exception):
    """Carries what a launcher was asked for."""


class Recorder:
    def launcher(self, *given: Any, **named: Any) -> Any:
        raise Launched(*given[4:], *named.values())


@pytest.mark.parametrize("library", [HopperLibrary, PortableLibrary])
def test_how_it_is_launched(library: Any) -> None:
    """A launch of one op waits for nothing inside, so its static lists need not all be resident; programmatic
    is the caller's word. A chain's lists must be, unless it runs alone: then its launches are
    programmatic."""
    options = Options.of(scheduling="static", tiles={"up": (128, 64, 64), "down": (128, 64, 64)})
    whole = launch_plans(whole_plan(mlp(), place("h200"), options), place("h200"), options)[0]
    chained = NAMES["mlp, M = 17, static"].plan()
    assert asked(library, whole, False) == (False, library is HopperLibrary)
    assert asked(library, whole, False, False) == (False, False)
    assert asked(library, chained, False) == (True, False) and asked(library, chained, True) == (
        False,
        library is HopperLibrary,
    )
    if library is HopperLibrary:
        assert asked(library, whole, False, True) == (False, True)
        assert asked(library, NAMES["mlp, M = 1000, tile policy"].plan(), False)[1] is False


def asked(library: Any, p: Plan, *given: Any) -> tuple[bool, bool]:
    """(cooperative, programmatic)"""
    made = library.__new__(library)
    made.plan, made.architecture = p, "sm_90"
    made.generated = generate(p)
    made.__dict__["_module"] = Recorder()
    with pytest.raises(Launched) as found:
        made.launcher(*given)
    cooperative, programmatic = (*found.value.args, False)[:2]
    return cooperative, programmatic
