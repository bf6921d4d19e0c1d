"""Programs of all families at drawn sizes, cut as the planner cuts them. Generated everywhere, run on a
GPU."""

from __future__ import annotations

import random
from typing import Any

import tilegen as tg
from benchmarks.families import bert_layer, lora
from tests.gpu.gemms import Case, chain, fan, gated, gemm, mlp
from tests.gpu.ops import attended, blocks, cached, example, pair

DTYPE = "bfloat16"


@tg.spec
def bottleneck(M=64, H=1024, R=64, dtype=DTYPE):
    """y = x + gelu(x aᵀ + α) bᵀ"""
    x = tg.input("x", (M, H), dtype)
    a, alpha, b = (
        tg.weight("a", (R, H), dtype),
        tg.weight("alpha", (R,), dtype),
        tg.weight("b", (H, R), dtype),
    )
    return tg.add(tg.linear(tg.gelu(tg.linear(x, a, alpha, name="down")), b, name="up"), x, name="y")


@tg.spec
def patches(B=2, HW=224, C=3, N=1024, size=14, dtype=DTYPE):
    """The patch embedding of a vision transformer: a convolution whose stride is its window."""
    x, w, bias = (
        tg.input("x", (B, HW, HW, C), dtype),
        tg.weight("w", (N, size, size, C), dtype),
        tg.weight("bias", (N,), dtype),
    )
    return tg.conv2d(x, w, bias, stride=size, name="patches")


def drawn(seed: int, count: int, small: bool = True) -> list[Case]:
    """`count` cases by turns of every family, sizes from a seed. small: as a GPU test wants them."""
    r = random.Random(seed)
    cases = []
    for n in range(count):
        spec, sizes = _FAMILIES[n % len(_FAMILIES)](r, 1 if small else 4)
        cases.append(
            Case(
                f"{spec.name if hasattr(spec, 'name') else 'layer'}"
                f" {' '.join(f'{k}={v}' for k, v in sizes.items())}",
                spec,
                sizes,
            )
        )
    return cases


def _rows(r: random.Random) -> int:
    return r.choice((1, r.randint(2, 64), r.randint(65, 400), r.randint(401, 1500)))


def _layer(**sizes: Any) -> Any:
    return example("llama_layer", **sizes)


_FAMILIES = (
    lambda r, n: (lora, {"M": _rows(r), "H": n * r.choice((512, 1024)), "R": r.choice((8, 16, 64, 128))}),
    lambda r, n: (
        mlp,
        {"M": _rows(r), "H": n * r.choice((256, 520, 1024)), "I": n * r.choice((384, 776, 2048))},
    ),
    lambda r, n: (gated, {"M": _rows(r), "H": n * r.choice((256, 512)), "I": n * r.choice((344, 688))}),
    lambda r, n: (
        attended,
        {
            "B": r.choice((1, 3)),
            "S": r.randint(1, 300),
            "heads": 4,
            "kv_heads": 2,
            "D": r.choice((64, 128)),
            "H": n * 256,
        },
    ),
    lambda r, n: (bottleneck, {"M": _rows(r), "H": n * r.choice((512, 768)), "R": r.choice((24, 64, 256))}),
    lambda r, n: (
        pair,
        {"B": r.choice((1, 2, 5)), "HW": r.choice((7, 12, 20, 30)), "C": r.choice((64, 96, 128))},
    ),
    lambda r, n: (fan, {"M": _rows(r), "H": n * r.choice((256, 512)), "I": n * r.choice((384, 640))}),
    lambda r, n: (
        cached,
        {
            "B": r.choice((1, 4, 9)),
            "S": r.choice((1, 3)),
            "S_max": r.randint(100, 700),
            "D": r.choice((64, 128)),
            "roped": True,
        },
    ),
    lambda r, n: (chain, {"M": _rows(r), "H": n * r.choice((256, 512))}),
    lambda r, n: (
        blocks,
        {"B": r.choice((1, 3)), "HW": r.choice((9, 14)), "C": r.choice((64, 128)), "count": 2},
    ),
    lambda r, n: (gemm, {"M": _rows(r), "N": n * r.choice((264, 1000)), "K": n * r.choice((512, 1032))}),
    lambda r, n: (
        _layer,
        {
            "B": r.choice((1, 3)),
            "S": r.choice((1, 20)),
            "S_max": 300,
            "H": n * 256,
            "heads": 4,
            "kv_heads": 2,
            "D": 64,
            "I": n * 512,
        },
    ),
    lambda r, n: (
        bert_layer,
        {"B": r.choice((1, 4)), "S": r.randint(5, 130), "H": n * 256, "heads": n * 4, "I": n * 1024},
    ),
    lambda r, n: (patches, {"B": 1, "HW": 112, "N": 256, "size": r.choice((14, 16, 8))}),
)
