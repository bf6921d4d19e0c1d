"""The cost model knows which rows a CTA's threads share, as the kernel does."""

from __future__ import annotations

import pytest

import tilegen as tg
from tilegen.arch.machine import machine
from tilegen.graph import cost_model
from tilegen.graph.cost_model import tile_us
from tilegen.ops.base import OpInstance
from tilegen.options import Options
from tilegen.schedule.launches import launches_of
from tilegen.targets import select
from tilegen.targets.sm90.ops import hopper_op

PLACE = select.place(machine("h200"), "sm_90a")


@tg.spec
def narrow(M: int, N: int, first: int = 0, pitch: int = 0) -> tuple[tg.Value, ...]:
    """Whole rows, and some of a wider tensor."""
    x = tg.input("x", (M, pitch or N), "bfloat16")
    seen = x[:, first : first + N]
    w, bias = tg.weight("w", (N,), "bfloat16"), tg.weight("b", (N,), "bfloat16")
    return (
        tg.rms_norm(seen, w, name="rms"),
        tg.layer_norm(seen, w, bias, name="layer"),
        tg.softmax(seen, name="soft"),
    )


SIZES = [
    {"M": m, "N": n}
    for m in (1, 17, 132, 1056, 8192, 65536)
    for n in (8, 64, 72, 77, 128, 256, 264, 512, 768)
] + [{"M": 8192, "N": 128, "first": 4, "pitch": 200}, {"M": 8192, "N": 128, "first": 8, "pitch": 200}]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_have_the_threads_that_their_kernel_gives_them(sizes: dict[str, int]) -> None:
    for plan in launches_of(narrow(**sizes), PLACE, Options()).each:
        (b,) = plan.bounds
        threads = hopper_op(plan, b).held.threads  # type: ignore[union-attr]
        assert cost_model._threads_of_row(b) == threads, b.op.name


def of(M: int, N: int, name: str) -> OpInstance:
    plans = launches_of(narrow(M=M, N=N), PLACE, Options()).each
    return next(b for plan in plans for b in plan.bounds if b.op.name == name)


@pytest.mark.parametrize("name, share", [("rms", 0.375), ("layer", 0.375), ("soft", 0.625)])
def test_a_tile_of_rows_that_few_threads_share_costs_less_to_begin(name: str, share: float) -> None:
    h200 = PLACE.machine
    few, wide = of(65536, 128, name), of(65536, 1024, name)
    for b, of_fixed in ((few, share), (wide, 1.0), (of(1, 128, name), 1.0)):
        moved = tile_us(b, h200) - h200.tile_us * of_fixed
        bytes = 2 * 2 * min(b.tile[0], b.out[0]) * b.out[1]  # in and out; a norm's vectors besides
        least = 1e6 * bytes / (h200.memory / h200.sms)
        assert least <= moved * 1.0001 + 1e-9 and moved <= 1.3 * least + 0.05
