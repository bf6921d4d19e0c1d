"""Plans of many shapes for a GPU's SMs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.schedule.plan import Plan

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def planned(example: str, sizes: dict[str, Any], **options: Any) -> Callable[[], Plan]:
    return lambda: tg.plan(load_program(str(EXAMPLES / f"{example}.py"), sizes), "h200", **options)


PLANS: dict[str, Callable[[], Plan]] = {
    "mlp row": planned("gpt3_mlp", {"M": 1000}, policies={"h": "row"}),
    "mlp tile": planned("gpt3_mlp", {"M": 512}, policies={"h": "tile"}),
    "mlp kernel": planned("gpt3_mlp", {"M": 17}, policies={"h": "kernel"}),
    "mlp chunks, bands, static": planned(
        "gpt3_mlp", {"M": 2048}, policies={"h": "chunk:4"}, order="banded:4", scheduling="lists"
    ),
    "llama split sum": planned("llama_mlp", {"M": 256}, split_k={"gate_up": 3}),
    "llama clusters": planned("llama_mlp", {"M": 64}, cluster={"gate_up": 2, "down": 2}),
    "attention classes": planned("gpt3_attention", {"S": 1000}, policies={"qkv": "class", "attn": "step"}),
    "llama layer decode": planned("llama_layer", {}),
    "resnet stage": planned("resnet38", {"stage": 2, "B": 8}, policies={"*": "class"}),
    "vgg": planned("vgg19", {}),
}
