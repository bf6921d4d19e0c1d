"""The Hopper kernel's barriers under any order of its roles (tests/oracles/roles.py): one slow warpgroup,
loader or CTA, few steps a tile, tiles mixed."""

from __future__ import annotations

import random

import pytest

from tests.gpu.gemms import CASES, Case, both, gated, mlp
from tests.gpu.ops import OPS, attended
from tests.oracles.roles import ProtocolError, run
from tilegen.targets.sm90.layout import Layout

SEEDS = range(12)
NAMES = {c.name: c for c in CASES}
LONG = Case(
    "long",
    mlp,
    {"M": 64, "H": 4096, "I": 2048},
    both("up", "down", (64, 96, 64), (64, 192, 64), 2, "2:n", scheduling="static"),
)

PAIRS = Case(
    "pairs beside attention",
    attended,
    {},
    {"tiles": {"qkv": (64, 64, 64), "attn": (64, 128)}, "cluster": {"qkv": 2}},
)


def tiles(case: Case, seed: int) -> list[str]:
    """What a CTA may be given: any of the ops, in any order."""
    choose = random.Random(seed)
    names = [op.name for op in case.plan().graph.ops]
    return [choose.choice(names) for _ in range(choose.randint(0, 9))]


@pytest.mark.parametrize("case", [*CASES, LONG], ids=lambda c: c.name)
def test_any_order(case: Case) -> None:
    for seed in SEEDS:
        run(case.plan(), tiles(case, seed), seed)


@pytest.mark.parametrize("case", [*OPS, PAIRS], ids=lambda c: c.name)
def test_all_kinds_of_ops(case: Case) -> None:
    for seed in SEEDS[:3]:
        run(case.plan(), tiles(case, seed), seed)


def test_a_stage_given_back_before_all_warps_have_seen_it_is_found() -> None:
    """The loader may bring the next one there, and a slow warp then waits for a phase that is past."""
    case = next(c for c in OPS if c.name == "300 tokens, 40 queries, 48 keys")
    with pytest.raises(ProtocolError, match="waits for phase|nobody can go on"):
        for seed in range(60):
            run(case.plan(), ["attn"] * 8, seed, early=True)


@pytest.mark.parametrize("name", ["fan", "chain of four", "mlp, M = 1", "split sum"])
def test_results_told_too_early_are_found(name: str) -> None:
    """A warpgroup that is a tile ahead would be counted for the other one, and a tile posted before it is
    stored: seen on a GPU as wrong bits."""
    with pytest.raises(ProtocolError, match=r"STORED_AT|posted with \d math warps"):
        for seed in range(40):
            run(NAMES[name].plan(), tiles(NAMES[name], seed), seed, early=True)


def test_uneven_shares_beside_a_multicast_are_found() -> None:
    """What is refused for sm_90a: the rings of a pair drift apart, and what both load lands in different
    stages."""
    case = Case(
        "", gated, {"M": 64, "H": 320}, both("gate_up", "down", (64, 48, 64), (64, 128, 64), 2, "2:n")
    )
    with pytest.raises(ProtocolError, match="land in phase|overwritten|nobody can go on|counts for phase"):
        for seed in range(20):
            run(case.plan(target="interpret"), ["gate_up", "down", "gate_up", "down", "down", "down"], seed)


@pytest.mark.parametrize(
    "at, arrivals",
    [
        ("TG_EMPTY_AT", 1),
        ("TG_FULL_AT", 1),
        ("TG_QUEUE_READ_AT", 9),
        ("TG_FILLED_AT", 3),
        ("TG_SUMS_READ_AT", 3),
    ],
)
def test_wrong_counts_are_found(at: str, arrivals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Layout.barriers
    monkeypatch.setattr(
        Layout,
        "barriers",
        lambda self, coupled: [
            {**b, "arrivals": arrivals} if b["at"] == at else b for b in usual(self, coupled)
        ],
    )
    case = NAMES["gated, steps shared, 128 rows"]
    with pytest.raises(ProtocolError):
        for seed in range(20):
            run(case.plan(), tiles(case, seed), seed)
