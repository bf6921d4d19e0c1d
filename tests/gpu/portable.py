"""Programs of every kind of op for the kernels of sm_80 and later, run on the emulator and on a GPU."""

from __future__ import annotations

from tests.gpu.gemms import Case
from tests.gpu.language import LANGUAGE
from tests.gpu.ops import CONVOLUTIONS, MASKS, OPS, PATCHES, THREADS, WINDOWS, attended, cached

LAYERS = [c for c in OPS if c.name.startswith(("gpt_layer B=2", "llama_layer B=2"))]
CAUSAL = Case("causal", attended, {"D": 40, "S": 150, "B": 1, "causal": True})
ATTENTIONS = [
    CAUSAL,
    Case("heads of 24, all keys", attended, {"D": 24, "S": 67, "causal": False}),
    Case(
        "all keys, two rows of a lane twice",
        attended,
        {"D": 64, "S": 256, "B": 1, "causal": False},
        {"tiles": {"attn": (256, 64, 1)}},
    ),
    Case("heads of 200", attended, {"D": 200, "S": 77, "B": 1, "heads": 1, "kv_heads": 1}),
    Case("caches", cached, {"S": 5, "D": 64, "roped": True}),
    Case("caches, one token, heads of 72", cached, {"S": 1, "D": 72, "roped": True}),
    *(c for c in (*WINDOWS, *MASKS) if "split_kv" not in c.options),
]
SMALL = [c for c in CONVOLUTIONS if c not in PATCHES and c.program.sizes and dict(c.program.sizes)["HW"] < 15]
CASES = [*THREADS, *LANGUAGE, *SMALL]
