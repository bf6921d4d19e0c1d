"""Programs as people have them, drawn at random: what the group `shapes` measures.

    drawn(seed, count)   count cells in turn of each family; the first n are the same for every count

Sizes are those of published models and any number of rows, tokens or images; nobody tuned for them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilegen as tg
from tilegen.frontend.loader import load_spec

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
Drawn = tuple[str, dict[str, Any]]  # a program's name, its sizes
DTYPE = "bfloat16"


# --- specs --------------------------------------------------------------------------------------------------


bert_layer, vit_layer, lora = (
    load_spec(str(EXAMPLES / f"{name}.py")) for name in ("bert_layer", "vit_layer", "lora")
)


def _linear(name: str, n: int, k: int, dtype: str) -> tuple[tg.Value, tg.Value]:
    return tg.weight(f"w{name}", (n, k), dtype), tg.weight(f"b{name}", (n,), dtype)


@tg.spec
def cross_attention(B=2, S=64, T=512, H=1024, heads=16, dtype=DTYPE):
    """y = attention(x wqᵀ, c wkvᵀ) woᵀ + x: queries of one sequence, keys and values of another."""
    x, c = tg.input("x", (B, S, H), dtype), tg.input("c", (B, T, H), dtype)
    q = tg.linear(x, tg.weight("wq", (H, H), dtype), name="q")
    k, v = tg.linear(c, tg.weight("wkv", (2 * H, H), dtype), name="kv").chunk(2)
    a = tg.attention(q, k, v, heads=heads, name="attn")
    return tg.add(tg.linear(a, tg.weight("wo", (H, H), dtype), name="out"), x, name="y")


@tg.spec
def resnet50_block(B=1, HW=56, C=64, dtype="float16"):
    """A bottleneck of ResNet-50: 1x1 to C channels, 3x3, 1x1 to 4·C, and the residual."""
    x = tg.input("x", (B, HW, HW, 4 * C), dtype)
    y = x
    for n, (outs, ins, size) in enumerate(((C, 4 * C, 1), (C, C, 3), (4 * C, C, 1))):
        w, b = tg.weight(f"w{n}", (outs, size, size, ins), dtype), tg.weight(f"b{n}", (outs,), dtype)
        y = tg.conv2d(y, w, b, padding=size // 2, name=f"conv{n}")
        y = tg.relu(y, name=f"y{n}") if n < 2 else tg.relu(tg.add(y, x, name="r"), name="y")
    return y


@tg.spec
def one_conv(B=1, HW=56, C=64, N=128, size=3, stride=1, dtype="float16"):
    """y = relu(conv(x, w) + b), of a stride, or of one pixel."""
    x = tg.input("x", (B, HW, HW, C), dtype)
    w, b = tg.weight("w", (N, size, size, C), dtype), tg.weight("b", (N,), dtype)
    return tg.relu(tg.conv2d(x, w, b, padding=size // 2, stride=stride, name="conv"), name="y")


@tg.spec
def head(M=8, H=4096, V=32000, dtype=DTYPE):
    """A vocabulary head behind the last norm: y = rms_norm(x, g) wᵀ"""
    n = tg.rms_norm(tg.input("x", (M, H), dtype), tg.weight("g", (H,), dtype), name="n")
    return tg.linear(n, tg.weight("w", (V, H), dtype), name="logits")


@tg.spec
def narrow(M=64, H=512, I=1024, layers=8, dtype=DTYPE):
    """Layers of two linears each, with biases and a residual, as narrow as those of a recommender."""
    x = tg.input("x", (M, H), dtype)
    for n in range(layers):
        w1, b1, w2, b2 = _linear(f"u{n}", I, H, dtype) + _linear(f"d{n}", H, I, dtype)
        h = tg.relu(tg.linear(x, w1, b1, name=f"up{n}"), name=f"h{n}")
        x = tg.add(tg.linear(h, w2, b2, name=f"down{n}"), x, name=f"x{n}")
    return x


SPECS = {
    s.name: s
    for s in (bert_layer, vit_layer, cross_attention, lora, resnet50_block, one_conv, head, narrow)
}


# --- drawn --------------------------------------------------------------------------------------------------


def between(r: random.Random, least: int, most: int) -> int:
    """Even in its logarithm."""
    return round(math.exp(r.uniform(math.log(least), math.log(most))))


ENCODERS = [(384, 6, 1536), (768, 12, 3072), (1024, 16, 4096), (1280, 16, 5120)]
DECODERS = [
    (2048, 32, 8, 64, 8192),
    (4096, 32, 8, 128, 14336),
    (3072, 24, 8, 128, 8192),
    (3584, 28, 4, 128, 18944),
    (5120, 40, 8, 128, 17408),
]


def _encoder(r: random.Random) -> Drawn:
    h, heads, i = r.choice(ENCODERS)
    sizes = {"B": r.choice([1, 2, 8, 32]), "S": between(r, 16, 512), "H": h, "heads": heads, "I": i}
    return r.choice(["bert_layer", "vit_layer"]), sizes


def _cross(r: random.Random) -> Drawn:
    h, heads, _ = r.choice(ENCODERS)
    rows = {"S": between(r, 1, 512), "T": between(r, 16, 1500)}
    return "cross_attention", {"B": r.choice([1, 2, 4]), **rows, "H": h, "heads": heads}


def _lora(r: random.Random) -> Drawn:
    sizes = {"H": r.choice([1024, 2048, 4096]), "R": r.choice([8, 16, 32, 64, 128])}
    return "lora", {"M": between(r, 1, 2048), **sizes}


def _block(r: random.Random) -> Drawn:
    hw, c = r.choice([(56, 64), (28, 128), (14, 256), (7, 512)])
    return "resnet50_block", {"B": r.choice([1, 2, 8, 32]), "HW": hw, "C": c}


def _conv(r: random.Random) -> Drawn:
    size, stride = r.choice([(1, 1), (1, 2), (3, 2), (3, 1)])
    wide = {"C": r.choice([32, 64, 128, 256, 512]), "N": r.choice([64, 128, 256, 512])}
    where = {"B": r.choice([1, 4, 16]), "HW": r.choice([7, 14, 20, 28, 40, 56, 75])}
    return "one_conv", {**where, **wide, "size": size, "stride": stride}


def _decode(r: random.Random) -> Drawn:
    h, heads, kv, d, i = r.choice(DECODERS)
    cached = between(r, 128, 8192)
    sizes = {"S": 1, "S_max": cached + 64, "H": h, "heads": heads, "kv_heads": kv, "D": d, "I": i}
    return "llama_layer", {"B": between(r, 1, 64), **sizes}


def _head(r: random.Random) -> Drawn:
    sizes = {"H": r.choice([1024, 2048, 4096]), "V": r.choice([32000, 50264, 128256])}
    return "head", {"M": between(r, 1, 512), **sizes}


def _narrow(r: random.Random) -> Drawn:
    wide = {"H": r.choice([128, 256, 512]), "I": r.choice([256, 512, 1024])}
    return "narrow", {"M": between(r, 1, 4096), **wide}


FAMILIES: tuple[Callable[[random.Random], Drawn], ...] = (
    _encoder, _decode, _conv, _lora, _head, _block, _narrow, _cross,
)  # fmt: skip
