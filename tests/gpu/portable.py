"""Programs of every kind of op for the kernels of sm_80 and later, run on the emulator and on a GPU."""

from __future__ import annotations

from tests.gpu.gemms import Case, gated, gemm, viewed
from tests.gpu.int8 import INT8
from tests.gpu.language import LANGUAGE
from tests.gpu.ops import (
    CONVOLUTIONS,
    MASKS,
    OPS,
    PATCHES,
    THREADS,
    WINDOWS,
    attended,
    cached,
    heads_alone,
    pair,
    viewed_pixels,
)

LAYERS = [c for c in OPS if c.name.startswith(("gpt_layer B=2", "llama_layer B=2"))]
CAUSAL = Case("causal", attended, {"D": 40, "S": 150, "B": 1, "causal": True})
STEEP = Case(
    "scores far above those before",
    heads_alone,
    {"S": 300, "B": 1, "heads": 2, "causal": False, "scale": 1.0},
)
# a warp has 32 rows
TWICE = [
    Case(
        f"heads of {d}, two rows of a lane twice, {n} queries",
        heads_alone,
        {"D": d, "S": n, "B": 1, "heads": 2, "causal": False},
        {"tiles": {"attn": (256, 64, 1)}},
    )
    for d, n in ((64, 256), (128, 256), (72, 300))
]
ATTENTIONS = [
    CAUSAL,
    STEEP,
    Case("heads of 24, all keys", attended, {"D": 24, "S": 67, "causal": False}),
    *TWICE,
    Case("heads of 200", attended, {"D": 200, "S": 77, "B": 1, "heads": 1, "kv_heads": 1}),
    Case("caches", cached, {"S": 5, "D": 64, "roped": True}),
    Case("caches, one token, heads of 72", cached, {"S": 1, "D": 72, "roped": True}),
    *(c for c in (*WINDOWS, *MASKS) if "split_kv" not in c.options),
]
# whose warps share sums over K
PANELS = Case(
    "panels, edges in all of them",
    gemm,
    {"M": 17, "N": 104, "K": 1032},
    {"tiles": {"y": (64, 24, 64)}},
)
PIXELS = Case(
    "panels of pixels",
    pair,
    {"HW": 7, "C": 264},
    {"tiles": {n: (1, 7, 7, 64, 264) for n in ("first", "second")}},
)
SHARED = [
    PANELS,
    Case(
        "panels, pairs of groups",
        gated,
        {"M": 5, "H": 1032, "I": 1000},
        {"tiles": {"gate_up": (64, 32, 64), "down": (64, 16, 64)}, "policies": {"*": "tile"}},
    ),
    PIXELS,
]
# an operand of an epilogue whose pairs of columns are not aligned
ODD = [
    Case("rows from an odd column on", viewed, {"M": 40, "N": 104, "K": 56}),
    Case("rows from an odd column on, float32", viewed, {"M": 17, "N": 40, "K": 72, "dtype": "float32"}),
    Case("pixels from an odd channel on", viewed_pixels, {}),
]
# convolutions as linears over all pixels, one behind the other in a launch
IN_ROWS = [
    Case(
        f"pixels in rows, {what}",
        pair,
        sizes,
        {"tiles": {"first": first, "second": second}},
    )
    for what, sizes, first, second in (
        ("odd images", {"B": 2, "HW": 9, "C": 16, "N": 24}, (48, 24, 16), (32, 24, 24)),
        ("stride 2", {"HW": 14, "C": 40, "N": 32, "stride": 2}, (48, 32, 40), (16, 32, 32)),
        ("dilated", {"B": 3, "HW": 12, "C": 24, "dilation": 2, "dtype": "bfloat16"}, *2 * ((80, 8, 24),)),
        ("a filter of five, as many rows as panels", {"HW": 11, "C": 72, "size": 5}, *2 * ((64, 72, 72),)),
        ("shared sums", {"B": 2, "HW": 28, "C": 128}, (48, 128, 64), (48, 64, 128)),
    )
]
SMALL = [c for c in CONVOLUTIONS if c not in PATCHES and c.program.sizes and dict(c.program.sizes)["HW"] < 15]
CASES = [*THREADS, *LANGUAGE, *INT8, *SMALL, *IN_ROWS]
