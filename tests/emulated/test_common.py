"""Programs as most models have them, small, on the emulator of both GPU targets: classes of any number, heads
of any size, tokens of any number, images of any channels."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tests.emulated.kernels import emulated
from tests.gpu.gemms import Case, biased
from tests.gpu.language import multiplied
from tests.gpu.ops import alone, heads_alone, masked, patches, pools, rotated, soft, unaligned
from tests.shares import share


@tg.spec
def normed_conv(B=2, HW=7, C=24, dtype="bfloat16"):
    """A convolution, a batch norm and an activation."""
    x, w = tg.input("x", (B, HW, HW, C), dtype), tg.weight("w", (C, 3, 3, C), dtype)
    vectors = (tg.weight(name, (C,), dtype) for name in ("mean", "var", "gain", "bias"))
    return tg.relu(tg.batch_norm(tg.conv2d(x, w, padding=1, name="c"), *vectors), name="y")


CONVOLUTIONS: tuple[dict[str, Any], ...] = (
    {"C": 3, "N": 64, "size": 7, "stride": 2, "padding": 3, "HW": 19},
    {"C": 1, "N": 32, "HW": 14},
    {"C": 24, "N": 40},
    {"C": 32, "N": 16},
    {"C": 64, "N": 10},
    {"C": 320, "N": 72, "B": 1},
    {"dilation": 2, "padding": 2},
    {"stride": 2},
    {"stride": 3},
    {"size": 1, "padding": 0},
    {"size": 5, "padding": 2},
    *({"C": 3, "N": 72, "size": n, "stride": n, "padding": 0, "HW": 3 * n, "B": 1} for n in (14, 16)),
    {"C": 24, "size": 11, "stride": 4, "padding": 2, "HW": 25},
    {"B": 9, "HW": 7, "C": 72, "N": 72},
)
CASES = [
    *(Case(f"{n} classes", biased, {"M": 5, "N": n, "K": 24}) for n in (2, 10, 16, 1000, 50257)),
    *(
        Case(f"attention, heads of {d}", heads_alone, {"D": d, "S": 37, "heads": 2, "causal": False, "B": 1})
        for d in (32, 40, 64, 72, 80, 96, 128, 192, 256)
    ),
    *(
        Case(f"attention, {s} tokens, causal: {causal}", heads_alone, {"S": s, "heads": 2, "causal": causal})
        for s in (1, 77, 197)
        for causal in (False, True)
    ),
    *(
        Case(f"attention, {s} tokens over {k}", masked, {"S": s, "K": k, "heads": 2, "B": 1})
        for s, k in ((1, 500), (77, 200))
    ),
    *(
        Case(f"norms of {n}", unaligned, {"M": 2, "N": n})
        for n in (768, 1023, 4096, 8192, 12288, 16384, 20480)
    ),
    *(Case(f"softmax of {n}", soft, {"M": 3, "N": n}) for n in (10, 197, 1000, 4096, 32000)),
    *(Case(f"maths of {n} columns", alone, {"M": 5, "N": n}) for n in (10, 1000, 4096)),
    *(
        Case(f"convolution {' '.join(f'{k}={v}' for k, v in sizes.items())}", patches, sizes)
        for sizes in CONVOLUTIONS
    ),
    *(Case(f"pools of {c} channels", pools, {"C": c, "dtype": "bfloat16"}) for c in (3, 20, 64, 512)),
    *(
        Case(f"matmul {ways}, {m} x {n}", multiplied, {"ways": ways, "M": m, "N": n, "K": 64})
        for ways in ("nt", "tt", "nn", "tn")
        for m, n in ((128, 128), (100, 77), (197, 197))
    ),
    *(Case(f"rope, heads of {d}", rotated, {"S": 12, "D": d}) for d in (64, 80)),
    Case("batch norm", normed_conv, {}),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", share(CASES, 5))
def test_right(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""
