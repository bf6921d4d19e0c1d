"""The streams lowering asked for wrongly, and launches in a wrong order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilegen as tg
from tests.gpu.gemms import chain, mlp
from tilegen.errors import PlanError, ProofError, TargetError
from tilegen.kernels.launches import compile_multi_launch
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options
from tilegen.runtime.verify import verify
from tilegen.runtime.verify_launches import certify_launches
from tilegen.schedule.launches import launch_plans, whole_plan
from tilegen.targets.select import place
from tilegen.targets.sm80.library import PortableLibrary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": {"h": "row"}}, "no semaphores; kernel boundaries order them"),
        ({"tiles": {"side": (64, 64, 64)}}, "'side': no such op; the ops are down, up"),
        ({"cluster": {"side": 2}}, "'side': no such op"),
        ({"split_k": {"up": 99}}, "do not split into 99 splits"),
        ({"tiles": {"up": (0, 1)}}, "positive sizes"),
        ({"order": "spiral"}, "unknown order 'spiral'"),
        ({"scheduling": "magic"}, "unknown scheduling 'magic'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    asked = Options.of(**options)
    with pytest.raises(PlanError, match=message):
        launch_plans(whole_plan(mlp(), place("h200"), asked), place("h200"), asked)


def test_what_is_no_program() -> None:
    with pytest.raises(PlanError, match="given Spec"):
        whole_plan(mlp, place("h200"), Options())  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="sizes are left open"):
        whole_plan(mlp(M=tg.symbol("M")), place("h200"), Options())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lowering": "magic"}, "unknown lowering 'magic'; expected one of auto, persistent, multi_launch"),
        ({"lowering": "multi_launch"}, "launches on a GPU, the target is cpu"),
        ({"programmatic": True}, "programmatic=True is for lowering='multi_launch'"),
    ],
)
def test_targets_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        tg.compile(mlp(), "cpu", **given)


def test_the_portable_kernel_does_not_wait_for_the_launch_before() -> None:
    options = Options.of(tiles={"up": (64, 64, 64), "down": (64, 64, 64)})
    library = PortableLibrary(
        launch_plans(whole_plan(mlp(), place("h200", "sm_80"), options), place("h200", "sm_80"), options)[0],
        architecture="sm_80",
    )
    assert "griddepcontrol" not in library.source
    with pytest.raises(TargetError, match="that for sm_80 does not"):
        library.launcher(False, True)


def test_a_launch_before_what_it_reads_is_refused() -> None:
    whole = whole_plan(chain(), place("h200"), Options())
    a, b, c, d = whole.graph.ops
    wrong = replace(whole, graph=replace(whole.graph, ops=(a, c, b, d)))
    with pytest.raises(ProofError, match=r"launch 1 \(third\) reads 'b', which launch 2 \(second\) writes"):
        certify_launches(wrong, [], launch_plans(wrong, place("h200"), Options()), False)


def test_a_sum_over_k_with_a_launch_missing_is_refused() -> None:
    """mlp: up is the sum of three launches."""
    asked = Options.of(split_k={"up": 3})
    whole = whole_plan(mlp(), place("h200"), asked)
    plans = launch_plans(whole, place("h200"), asked)
    proofs = [verify(p) for p in plans]
    assert certify_launches(whole, proofs, plans, False).ok
    part, *others = whole.graph.ops
    assert isinstance(part.attributes, LinearAttributes) and part.attributes.k_range is not None
    first, end = part.attributes.k_range
    short = replace(part, attributes=replace(part.attributes, k_range=(first, end - 64)))
    wrong = replace(whole, graph=replace(whole.graph, ops=(short, *others)))
    with pytest.raises(ProofError, match=r"the sum of up over k < \d+: up_k1 adds k from"):
        certify_launches(wrong, proofs, plans, False)


def test_the_checker_refuses_the_whole_as_one_launch() -> None:
    """Without kernel boundaries nothing orders its ops."""
    with pytest.raises(ProofError, match="without a full wait"):
        verify(whole_plan(mlp(), place("h200"), Options()))


def test_a_plan_that_does_not_compile() -> None:
    def refuses(_: Any) -> Any:
        raise PlanError("no template for it")

    with pytest.raises(PlanError, match="no template"):
        compile_multi_launch(mlp(), place("h200"), Options(), refuses)
