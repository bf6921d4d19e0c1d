"""Programs that lost to the best of their peers on 2026-11-22, when nobody had tuned for them, the worst
first, and those that were named beside them: what the group `lost` measures."""

from __future__ import annotations

from typing import Any

LOST: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one_linear", {"M": 139, "N": 6144, "K": 8192}),
    ("one_linear", {"M": 267, "N": 2304, "K": 4096}),
    ("gpt3_mlp", {"M": 262, "H": 3072, "I": 6144}),
    ("gpt3_mlp", {"M": 153, "H": 3072, "I": 6144}),
    ("gpt3_mlp", {"M": 435, "H": 4096, "I": 4096}),
    ("gpt3_mlp", {"M": 380, "H": 8192, "I": 16384}),
    ("gpt3_mlp", {"M": 1056, "H": 1024, "I": 4096}),
    ("gpt3_mlp", {"M": 594, "H": 3072, "I": 3072}),
    ("gpt3_mlp", {"M": 617, "H": 3072, "I": 3072}),
    ("one_linear", {"M": 340, "N": 768, "K": 4096}),
    ("llama_mlp", {"M": 141, "H": 1536, "I": 8960}),
    ("gpt3_mlp", {"M": 207, "H": 8192, "I": 8192}),
    ("gpt3_mlp", {"M": 144, "H": 1024, "I": 4096}),
    ("gpt3_mlp", {"M": 342, "H": 8192, "I": 32768}),
    ("one_linear", {"M": 362, "N": 768, "K": 4096}),
    ("gpt3_mlp", {"M": 541, "H": 768, "I": 3072}),
    ("one_linear", {"M": 177, "N": 2304, "K": 4096}),
    ("conv_pair", {"B": 1, "HW": 75, "C": 512}),
    ("llama_mlp", {"M": 751, "H": 3584, "I": 18944}),
    ("gpt3_mlp", {"M": 1887, "H": 2048, "I": 8192}),
    ("gpt3_attention", {"B": 1, "S": 2585, "H": 2048, "heads": 16, "D": 128}),
    ("one_linear", {"M": 3, "N": 768, "K": 1024}),
    ("gpt3_mlp", {"M": 183, "H": 4096, "I": 4096}),
    ("gpt3_attention", {"B": 4, "S": 167, "H": 4096, "heads": 32, "D": 128}),
    ("gpt3_attention", {"B": 4, "S": 292, "H": 4096, "heads": 32, "D": 128}),
    ("one_linear", {"M": 372, "N": 11008, "K": 1024}),
    ("one_linear", {"M": 1139, "N": 768, "K": 768}),
    ("llama_mlp", {"M": 1146, "H": 4096, "I": 14336}),
    ("one_linear", {"M": 2002, "N": 2304, "K": 1024}),
    ("llama_mlp", {"M": 314, "H": 2048, "I": 5632}),
    ("gpt3_attention", {"B": 1, "S": 1811, "H": 2048, "heads": 32, "D": 64}),
    ("llama_mlp", {"M": 393, "H": 2048, "I": 5632}),
    ("gpt3_attention", {"B": 4, "S": 2988, "H": 1536, "heads": 12, "D": 128}),
    ("gpt3_mlp", {"M": 127, "H": 4096, "I": 8192}),
    ("one_linear", {"M": 372, "N": 32000, "K": 768}),
    ("one_linear", {"M": 928, "N": 6144, "K": 1024}),
    ("one_linear", {"M": 747, "N": 4096, "K": 4096}),
    ("gpt_layer", {"B": 16, "S": 64, "H": 2048, "heads": 16, "I": 8192}),
    ("gpt3_attention", {"B": 1, "S": 2631, "H": 2048, "heads": 32, "D": 64}),
    ("gpt3_mlp", {"M": 1065, "H": 5120, "I": 2560}),
    # named since: a prefill of few rows, a head, two linears
    (
        "llama_layer",
        {"S": 150, "S_max": 151, "H": 2048, "heads": 16, "kv_heads": 2, "D": 128, "I": 11008},
    ),
    ("one_linear", {"M": 200, "N": 32000, "K": 2048}),
    ("gpt3_mlp", {"M": 592, "H": 2304, "I": 9216}),
    ("gpt3_mlp", {"M": 683, "H": 2304, "I": 9216}),
)
