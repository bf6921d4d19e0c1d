"""Generated CUDA on the emulator, text unchanged: right results under every adversary, no access without its
order, semaphores at rest."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated
from tests.gpu.gemms import HOPPER, Case, block, both, chain, fan, gated, gemm, mlp
from tests.gpu.ops import OPS
from tests.shares import share
from tilegen.errors import PlanError

SMALL = {"H": 256, "I": 200}
PORTABLE = [
    Case("one gemm, ragged", gemm, {"M": 17, "N": 104, "K": 520}, {"tiles": {"y": (64, 96, 64)}}),
    Case("128 x 176, odd eights", gemm, {"M": 130, "N": 200, "K": 136}, {"tiles": {"y": (128, 176, 64)}}),
    Case(
        "blocks in a tile, split sum",
        mlp,
        {"M": 200, **SMALL},
        both("up", "down", (256, 384, 64), (256, 384, 64), split_k={"up": 2}),
    ),
    Case(
        "odd steps, narrow tiles",
        mlp,
        {"M": 30, **SMALL},
        both("up", "down", (80, 56, 48), (16, 8, 16), policies={"h": "tile"}),
    ),
    Case(
        "static, steps shared",
        mlp,
        {"M": 17, **SMALL},
        both("up", "down", (64, 32, 64), (64, 64, 64), 2, 2, scheduling="lists"),
    ),
    Case(
        "tile policy, clusters",
        mlp,
        {"M": 17, **SMALL},
        both("up", "down", (64, 32, 64), (64, 64, 64), 2, 2, policies={"h": "tile"}),
    ),
    Case(
        "gated, rows shared",
        gated,
        {"M": 140, **SMALL},
        both("gate_up", "down", (256, 96, 64), (256, 128, 64), "2:m", "2:n"),
    ),
    Case(
        "block, float16",
        block,
        {"M": 33, "I": 256, "dtype": "float16"},
        both("up", "down", (64, 96, 64), (64, 64, 64), 2, 2),
    ),
    Case("chain of four", chain, {"M": 40}),
    Case("fan", fan, {"M": 70}, {"tiles": dict.fromkeys(("q", "k", "v", "o"), (128, 64, 64))}),
]


LARGE = (
    "one gemm, 256",
    "one gemm, rows",
    "one gemm, columns",
    "one gemm, steps",
    "mlp, M = 1000",
    "norm fused, wide",
    "norms, M = 1",
    "13 x 13",
    "57 x 57",
    "7 x 7 x 512",
    "blocks, 13",
    "blocks, 57",
    "resnet38",
    "vgg19",
    "stride 2",
    "caches, 37",
    "3 channels",
    "pairs that share",
    "blocks, pairs",
    "blocks, wide",
)


SLOW = [case.name for case in (*HOPPER, *OPS) if case.name.startswith(LARGE)]


@pytest.mark.parametrize("case", [*share(HOPPER, 3, 1, SLOW), *share(OPS, 3, 1, SLOW)])
def test_every_kernel_is_right_under_every_adversary(case: Case) -> None:
    try:
        case.plan(case.sms)
    except PlanError:
        pytest.skip("no plan for so few SMs")
    assert emulated(case, range(3)) == ""


@pytest.mark.parametrize("case", PORTABLE, ids=lambda c: c.name)
def test_every_portable_kernel_is_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(3), target="sm_80", sms=3) == ""


FOLLOWING = (
    "mlp, M = 17, static",
    "mlp, M = 1",
    "chain of four",
    "one token",
    "caches",
    "new rows forwarded",
    "blocks",
)


@pytest.mark.parametrize(
    "name, programmatic",
    [
        pytest.param(name, programmatic, marks=[pytest.mark.full] if n % 3 and not programmatic else [])
        for n, name in enumerate(FOLLOWING)
        for programmatic in (False, True)
    ],
)
def test_launches_follow_each_other_without_the_host(name: str, programmatic: bool) -> None:
    case = next(c for c in (*HOPPER, *OPS) if c.name == name)
    assert emulated(case, range(2, 6), launches=2, programmatic=programmatic) == ""


@pytest.mark.full
@pytest.mark.parametrize("case", [c for c in (*HOPPER, *OPS) if c.name not in SLOW], ids=lambda c: c.name)
def test_no_false_alarm_in_500_runs(case: Case) -> None:
    assert emulated(case, range(500)) == ""
