"""What the portable kernel has no form for is refused with a PlanError that names it."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu.plans import PLANS
from tilegen import api
from tilegen.errors import PlanError, TargetError
from tilegen.runtime.driver import missing
from tilegen.targets.sm80.emit import generate


@tg.spec
def product(M=64, N=64, K=64, dtype="bfloat16"):
    return tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="y")


@pytest.mark.parametrize(
    "sizes, options, words",
    [
        ({"dtype": "float32"}, {}, "bfloat16 and float16 here, 'x' is float32"),
        ({"K": 60}, {}, "'x' has rows of 60.*pad to 64"),
        ({"N": 60}, {}, "result columns are 60"),
        ({}, {"tiles": {"y": (64, 20, 64)}}, "tile columns are 20"),
    ],
)
def test_shapes(sizes: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        generate(tg.plan(product(**sizes), "h200", **options), "sm_80")


def test_kinds() -> None:
    with pytest.raises(PlanError, match="on sm_80: no template for attention yet"):
        generate(PLANS["attention classes"](), "sm_80")


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_no_gpu() -> None:
    with pytest.raises(TargetError, match="target sm_80: .*tilegen generate"):
        api.compile(product(), "sm_80")
