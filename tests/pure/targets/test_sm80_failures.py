"""What the portable kernel has no form for is refused with a PlanError that names it."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tilegen import api
from tilegen.errors import PlanError, TargetError
from tilegen.runtime.driver import missing


@tg.spec
def product(M=64, N=64, K=64, dtype="bfloat16"):
    return tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="y")


@tg.spec
def heads(D=64, S=100, dtype="bfloat16"):
    q, k, v = (tg.input(name, (1, S, 2 * D), dtype) for name in "qkv")
    return tg.attention(q, k, v, heads=2, name="y")


@tg.spec
def cached(S=3, D=64, dtype="bfloat16"):
    q, pos = tg.input("q", (1, S, 2 * D), dtype), tg.input("pos", (1,), "int32")
    k, v = (tg.state(name, (1, 512, 1, D), dtype) for name in "kv")
    return tg.attention(q, k, v, heads=2, kv_heads=1, at=pos, name="y")


@pytest.mark.parametrize(
    "program, options, words",
    [
        (lambda: product(), {"tiles": {"y": (64, 20, 64)}}, "tile columns are 20"),
        (lambda: heads(D=20), {}, "heads have 20 columns, expected a multiple of 8 up to 256"),
        (lambda: heads(D=264), {}, "heads have 264 columns, expected a multiple of 8 up to 256"),
        (lambda: heads(dtype="float32"), {}, "bfloat16 and float16 here, 'q' is float32"),
        (lambda: cached(), {"split_kv": {"y": 2}}, "no template for shares of the keys"),
        (lambda: product(M=tg.dim("M", max=64)), {}, "no form for a size that moves"),
    ],
)
def test_forms(program: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        tg.generate(program(), target="sm_80", on="a100", **options)


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_no_gpu() -> None:
    with pytest.raises(TargetError, match="target sm_80: .*tilegen generate"):
        api.compile(product(), "sm_80")
