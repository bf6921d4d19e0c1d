"""The examples at sizes for the emulator: odd, and small enough for seconds."""

from __future__ import annotations

from typing import Any

from tests.gpu.ops import example
from tilegen.frontend.program import Program

HEADS = {"H": 256, "heads": 4, "kv_heads": 2, "D": 64}
EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("gpt3_mlp", {"M": 33, "H": 272, "I": 200}),
    ("llama_mlp", {"M": 17, "H": 264, "I": 200}),
    ("gpt3_attention", {"S": 77, "H": 256, "heads": 2, "D": 64}),
    ("llama_attention", {"B": 2, "S": 45, **HEADS}),
    ("gpt_layer", {"S": 33, "H": 256, "heads": 4, "I": 328}),
    ("llama_layer", {"B": 3, "S": 1, "S_max": 50, "I": 328, **HEADS}),
    ("llama_layer", {"B": 1, "S": 19, "S_max": 50, "I": 328, **HEADS}),
    ("resnet38", {"HW": 33, "C": 16, "classes": 24}),
    ("resnet50", {"HW": 72, "C": 16, "stage": 2}),
    ("vgg19", {"HW": 32, "C": 16, "hidden": 72, "classes": 24}),
    ("bert_layer", {"B": 2, "S": 29, "H": 128, "heads": 2, "I": 200}),
    ("vit_layer", {"B": 1, "S": 50, "H": 128, "heads": 2, "I": 200}),
    ("lora", {"M": 37, "H": 136, "R": 4}),
    ("moe_dense", {"M": 21, "H": 136, "I": 72, "experts": 3}),
    ("unet_block", {"HW": 9, "C": 40, "N": 24, "T": 50, "groups": 4}),
]
NETS = ("resnet38", "vgg19")  # whole: ten seconds of compiling


def titled(name: str, sizes: dict[str, Any]) -> str:
    return f"{name}, {' '.join(f'{k}={n}' for k, n in sizes.items())}"


def program_of(name: str, sizes: dict[str, Any], dtype: str) -> Program:
    return example(name, dtype=dtype, **sizes)
