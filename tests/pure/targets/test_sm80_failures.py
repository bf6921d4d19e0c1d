"""What the portable kernel has no form for is refused with a PlanError that names it."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu.plans import EXAMPLES
from tilegen import api
from tilegen.errors import PlanError, TargetError
from tilegen.frontend.loader import load_program
from tilegen.runtime.driver import missing


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
        tg.plan(product(**sizes), "h200", target="sm_80", **options)


def test_kinds() -> None:
    with pytest.raises(PlanError, match="on sm_80: no template for attention yet"):
        tg.plan(load_program(str(EXAMPLES / "gpt3_attention.py"), {"S": 1000}), "a100")


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_no_gpu() -> None:
    with pytest.raises(TargetError, match="target sm_80: .*tilegen generate"):
        api.compile(product(), "sm_80")
