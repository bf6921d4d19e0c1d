"""Where CTAs take lists of tiles by their SM, and what such a launch has."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.gpu.gemms import Case, added, gemm, mlp
from tilegen.runtime.launch import LINE
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.launch import hopper_launch

SMS = 132
TILE = (80, 64, 64)
SMALL = {"tiles": {"y": TILE}}
LONG = {"M": 638, "N": 1024, "K": 4096}


def planned(program: Any = gemm, sizes: dict[str, int] = LONG, **options: Any) -> Plan:
    case = Case("", program, sizes, options or SMALL)
    return tg.plan(case.program, "h200", target="sm_90a", **case.options)


def taken(plan: Plan) -> int:
    """Lists that CTAs take by their SM."""
    return generate(plan).lists


@pytest.mark.parametrize(
    "why, plan",
    [
        ("lone tiles that load much", planned),
        ("they are added to", lambda: planned(added)),
        ("two rows of tiles", lambda: planned(sizes={"M": 160, "N": 4096, "K": 4096})),
        ("several tiles of an SM", lambda: planned(sizes={**LONG, "M": 320, "N": 8192})),
        ("several of a short sum", lambda: planned(sizes={"M": 320, "N": 65536, "K": 512})),
        (
            "a long sum of larger tiles",
            lambda: planned(sizes={**LONG, "N": 4096}, tiles={"y": (160, 128, 64)}),
        ),
    ],
)
def test_tiles_that_load_much_for_long_go_by_gpc(why: str, plan: Any) -> None:
    made = plan()
    assert taken(made) == SMS and made.order.name == "op_major:4", why


@pytest.mark.parametrize(
    "why, plan",
    [
        ("a short sum", lambda: planned(sizes={**LONG, "K": 1024})),
        (
            "tiles that load little for what they multiply",
            lambda: planned(sizes={**LONG, "N": 8192}, tiles={"y": (128, 256, 64)}),
        ),
        ("few tiles", lambda: planned(sizes={**LONG, "N": 512})),
        ("a row of tiles", lambda: planned(sizes={"M": 8, "N": 8192, "K": 4096}, tiles={"y": (64, 64, 64)})),
        ("several tiles, soon done", lambda: planned(sizes={"M": 320, "N": 4096, "K": 1024})),
        ("several tiles in two blocks of rows", lambda: planned(sizes={**LONG, "N": 4096})),
        ("clusters", lambda: planned(tiles={"y": (160, 64, 64)}, cluster={"y": "2:m"})),
        ("ranks that are drawn", lambda: planned(**SMALL, scheduling="dynamic")),
        (
            "two ops",
            lambda: planned(mlp, {"M": 638, "H": 4096, "I": 1024}, tiles=dict.fromkeys(("up", "down"), TILE)),
        ),
    ],
)
def test_other_tiles_go_by_the_number_of_their_cta(why: str, plan: Any) -> None:
    made = plan()
    assert taken(made) == 0, why
    assert "tg_take_list" not in generate(made).text


def test_its_launch_has_a_cta_for_each_sm_and_two_words_for_each_cta() -> None:
    plan = planned(sizes={**LONG, "M": 560})  # 112 tiles
    source = generate(plan)
    launch = hopper_launch(plan, source)
    assert (launch.grid, launch.lists) == (SMS, SMS)
    assert launch.counter_words == 3 * LINE + 2 * SMS
    assert plan.order.count == 112


def test_a_launch_may_follow_early_only_when_all_ctas_have_a_list() -> None:
    text = generate(planned()).text
    assert text.count("tg_dependents();") == 1
    assert text.index("list = tg_take_list(") < text.index("tg_dependents();")
