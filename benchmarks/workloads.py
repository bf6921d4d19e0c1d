"""What is measured: tasks by group, each a program with its sizes, named so that a task can be handed to
another process as JSON."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tilegen as tg
from benchmarks import families
from benchmarks.families import EXAMPLES, Drawn, between
from benchmarks.lost import LOST
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program

GROUPS = (
    *("chains", "gemms", "graphs", "convolutions", "attention", "cached", "decode", "prefill", "cusync"),
    *("float8", "portable", "widths", "lost", "random", "shapes", "host"),
)
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CONSTANT = 2.0**-7
SEED, DRAWN = 20261122, 48


@dataclass(frozen=True)
class Task:
    """One cell of a table. constant: the value of all arguments where they are not random."""

    group: str
    workload: str
    sizes: dict[str, Any] = field(default_factory=dict)
    constant: float | None = None

    @property
    def program(self) -> Program:
        return (
            SPECS[self.workload](**self.sizes)
            if self.workload in SPECS
            else example(self.workload, **self.sizes)
        )

    @property
    def extra(self) -> dict[str, str]:
        """What tells it from a task of the same program and sizes."""
        return (
            {"inputs": "constant" if self.constant is not None else "random"}
            if self.group == "cusync"
            else {}
        )

    def __str__(self) -> str:
        return " ".join(
            [self.group, self.workload, *(f"{k}={v}" for k, v in {**self.sizes, **self.extra}.items())]
        )


def example(name: str, **sizes: Any) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), sizes)


def tag(device: str) -> str:
    """NVIDIA H200 → h200, NVIDIA H100 80GB HBM3 → h100"""
    words = device.lower().replace("-", " ").split()
    name = [w for w in words if not re.fullmatch(r"nvidia|geforce|\d+gb|hbm\w+|sxm\d", w)]
    return "-".join(name) or "unknown"


# --- specs beside the examples ------------------------------------------------------------------------------


@tg.spec
def gemm(M=512, N=6144, K=12288, dtype="bfloat16"):
    """y = x wᵀ"""
    return tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="gemm")


@tg.spec
def one_linear(M=64, N=4096, K=4096, dtype="bfloat16"):
    """y = gelu(x wᵀ + b)"""
    x, w, b = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), tg.weight("b", (N,), dtype)
    return tg.gelu(tg.linear(x, w, b, name="y"), approximate="tanh", name="g")


@tg.spec
def added_linear(M=64, N=4096, K=4096, dtype="bfloat16"):
    """y = x wᵀ + b + r"""
    x, w, b = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), tg.weight("b", (N,), dtype)
    return tg.add(tg.linear(x, w, b, name="y"), tg.input("r", (M, N), dtype), name="z")


@tg.spec
def scaled_gemm(M=64, N=4096, K=4096, dtype="float8_e4m3fn"):
    """y = x wᵀ, scaled by numbers of rows and of columns"""
    rows, columns = tg.input("rows", (M, 1), "float32"), tg.weight("columns", (N,), "float32")
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype)
    return tg.linear(x, w, scale_x=rows, scale_w=columns, name="y")


@tg.spec
def one_attention(B=1, S=512, T=512, heads=16, kv_heads=16, D=64, causal=False, dtype="bfloat16"):
    """S queries of each sequence over T keys."""
    q = tg.input("q", (B, S, heads * D), dtype)
    k, v = (tg.input(name, (B, T, kv_heads * D), dtype) for name in "kv")
    return tg.attention(q, k, v, heads=heads, kv_heads=kv_heads, causal=causal, name="attn")


@tg.spec
def one_norm(M=512, H=1024, kind="rms_norm", dtype="bfloat16"):
    x, g = tg.input("x", (M, H), dtype), tg.weight("g", (H,), dtype)
    if kind == "rms_norm":
        return tg.rms_norm(x, g, name="norm")
    return tg.layer_norm(x, g, tg.weight("c", (H,), dtype), name="norm")


@tg.spec
def one_softmax(M=64, N=1024, dtype="bfloat16"):
    return tg.softmax(tg.input("x", (M, N), dtype), name="softmax")


@tg.spec
def mlp3(M=64, A=1024, B=4096, C=4096, D=1024, dtype="bfloat16"):
    """Three linears with bias, ReLU between them."""
    x = tg.input("x", (M, A), dtype)
    for n, (i, o) in enumerate(((A, B), (B, C), (C, D))):
        w, b = tg.weight(f"w{n}", (o, i), dtype), tg.weight(f"b{n}", (o,), dtype)
        x = tg.linear(x, w, b, name=f"l{n}")
        if n < 2:
            x = tg.relu(x, name=f"r{n}")
    return x


@tg.spec
def four_gemms(M=16, H=4096, dtype="bfloat16"):
    """y = x w0ᵀ w1ᵀ w2ᵀ w3ᵀ"""
    y = tg.input("x", (M, H), dtype)
    for n in range(4):
        y = tg.linear(y, tg.weight(f"w{n}", (H, H), dtype), name=f"y{n}")
    return y


@tg.spec
def fan(M=16, H=4096, dtype="bfloat16"):
    """One activation into three weights, then a fan-in: y = (x wqᵀ + silu(x wkᵀ)) woᵀ + x wvᵀ. Neither side
    merges the three weights."""
    x = tg.input("x", (M, H), dtype)
    wq, wk, wv, wo = (tg.weight(name, (H, H), dtype) for name in ("wq", "wk", "wv", "wo"))
    q, v = tg.linear(x, wq, name="q"), tg.linear(x, wv, name="v")
    qk = tg.add(tg.silu(tg.linear(x, wk, name="k")), q, name="qk")
    return tg.add(tg.linear(qk, wo, name="o"), v, name="y")


@tg.spec
def conv_pair(B=1, HW=56, C=64, dtype="float16"):
    """Two 3x3 convolutions with bias and ReLU: a pair of ResNet-38's, without its residual."""
    x = tg.input("x", (B, HW, HW, C), dtype)
    for n in (1, 2):
        w, b = tg.weight(f"w{n}", (C, 3, 3, C), dtype), tg.weight(f"b{n}", (C,), dtype)
        x = tg.relu(tg.conv2d(x, w, b, padding=1, name=f"conv{n}"), name=f"y{n}")
    return x


@tg.spec
def cached_attention(B=1, cached=1024, H=12288, heads=12, D=128, rope=False, dtype="bfloat16"):
    """An attention block of one new token in each of B sequences, behind `cached` ones: QKV projection,
    caches, attention, output projection."""
    x, pos = tg.input("x", (B, 1, H), dtype), tg.input("pos", (1,), "int32")
    wqkv, wo = tg.weight("wqkv", (3 * heads * D, H), dtype), tg.weight("wo", (H, heads * D), dtype)
    caches = [tg.state(f"{n}_cache", (B, cached + 64, heads, D), dtype) for n in "kv"]
    q, k, v = tg.linear(x, wqkv, name="qkv").chunk(3)
    if rope:
        q, k = tg.rope(q, heads=heads, at=pos, name="q_rope"), tg.rope(k, heads=heads, at=pos, name="k_rope")
    keys, values = (
        tg.append(cache, new, at=pos, name=f"{n}_append")
        for cache, new, n in zip(caches, (k, v), "kv", strict=True)
    )
    return tg.linear(tg.attention(q, keys, values, heads=heads, at=pos, name="attn"), wo, name="out")


OWN = (
    gemm,
    one_linear,
    added_linear,
    scaled_gemm,
    one_attention,
    one_norm,
    one_softmax,
    mlp3,
    four_gemms,
    fan,
    conv_pair,
    cached_attention,
)
SPECS = {**{s.name: s for s in OWN}, **families.SPECS}
# of eight
SHARDS = {"gpt3": {"H": 12288, "heads": 12, "rope": False}, "llama": {"H": 8192, "heads": 8, "rope": True}}
GEMMS = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (64, 12288, 6144),
    (16, 5504, 8192),
    (512, 6144, 12288),
    (512, 12288, 6144),
)

F8 = "float8_e4m3fn"
FEW, MANY = (1, 16, 64), (256, 512, 1024, 4096)  # rows of a product
# one launch of what Hopper's own instructions are not needed for
PORTABLE: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        ("one_attention", {"B": 4, "S": 1024, "T": 1024, "D": d, "causal": causal})
        for d in (64, 128)
        for causal in (False, True)
    ),
    *(("conv_pair", {"B": 8, "HW": hw, "C": c}) for hw, c in ((56, 64), (28, 128), (14, 256), (7, 512))),
    *(("llama_layer", {"B": b, "S": 1}) for b in (1, 16)),
    *(("gpt3_mlp", {"M": m}) for m in (16, 64, 512)),
)

# programs whose rows are no whole 16-byte units, or whose heads no sixteens, each beside the nearest that are
WIDTHS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    *(("gemm", {"M": m, "K": 768, "N": 50257}, {"N": 50264}) for m in (1, 64, 512)),
    *(("one_linear", {"M": 512, "K": k, "N": n}, {"N": n + 1}) for n, k in ((1023, 1024), (4095, 4096))),
    ("one_linear", {"M": 64, "K": 2048, "N": 10}, {"N": 16}),
    ("one_linear", {"M": 512, "K": 1023, "N": 1024}, {"K": 1024}),
    ("one_linear", {"M": 300, "K": 77, "N": 300}, {"K": 80}),
    ("one_linear", {"M": 2048, "K": 4095, "N": 4096}, {"K": 4096}),
    ("one_linear", {"M": 16, "K": 1023, "N": 1024}, {"K": 1024}),
    ("one_linear", {"M": 4096, "K": 4096, "N": 4094}, {"N": 4096}),
    ("gpt_layer", {"B": 8, "S": 197, "H": 768, "heads": 12, "I": 3072}, {"S": 200}),
    ("one_attention", {"B": 4, "S": 197, "T": 197, "D": 64}, {"S": 200, "T": 200}),
    *(("one_attention", {"B": 4, "S": 1024, "T": 1024, "D": d}, {"D": d + 8}) for d in (40, 72, 104)),
    *(("one_norm", {"M": 4096, "H": 1023, "kind": kind}, {"H": 1024}) for kind in ("rms_norm", "layer_norm")),
    *(("one_softmax", {"M": m, "N": n}, {"N": n + 1}) for m, n in ((8192, 1023), (2048, 4095))),
    ("one_softmax", {"M": 256, "N": 50257}, {"N": 50264}),
)


# --- groups -------------------------------------------------------------------------------------------------


def tasks(group: str, seed: int = SEED, count: int = DRAWN) -> list[Task]:
    """The cells of a group, those likeliest to matter first: a time limit loses the last ones. seed, count:
    of the random shapes."""
    if group == "random":
        return drawn(group, FEW_FAMILIES, seed, count)
    if group == "shapes":
        return drawn(group, (*FEW_FAMILIES, *families.FAMILIES), seed, count)
    return [Task(group, name, sizes) for name, sizes in _named(group)] if group != "cusync" else _cusync()


def _named(group: str) -> list[tuple[str, dict[str, Any]]]:
    match group:
        case "chains":
            return [(name, {"M": m}) for m in ROWS for name in ("gpt3_mlp", "llama_mlp")]
        case "gemms":
            return [("gemm", {"M": m, "N": n, "K": k}) for m, n, k in GEMMS]
        case "graphs":
            return [(name, {"M": m}) for name in ("four_gemms", "fan") for m in (16, 256)]
        case "convolutions":
            return [
                *_pairs(),
                *_stages(),
                *_vgg(),
                *((net, {"B": b}) for net in ("resnet38", "vgg19") for b in (1, 8)),
            ]
        case "attention":
            return [
                (f"{model}_attention", {"S": s}) for model in ("gpt3", "llama") for s in (512, 1024, 2048)
            ]
        case "cached":
            return [
                ("cached_attention", {"B": b, "cached": n, **shard})
                for shard in SHARDS.values()
                for n in (1024, 4096)
                for b in (1, 8)
            ]
        case "decode":
            return [("llama_layer", {"B": b, "S": 1}) for b in (1, 8, 32)]
        case "float8":
            sizes = [{"M": m, "N": n, "K": 4096} for n in (4096, 14336) for m in (*FEW, *MANY)]
            beside = [("gemm", s) for s in sizes if s["M"] in FEW]  # the same in two bytes
            return [
                *(("gemm", {**s, "dtype": F8}) for s in sizes),
                *beside,
                *(("scaled_gemm", s) for s in sizes),
            ]
        case "portable":
            return list(PORTABLE)
        case "widths":
            cells = {str(t): (t.workload, t.sizes) for pair in width_pairs() for t in pair}
            return list(cells.values())  # once each, though an aligned one may be beside two
        case "lost":
            return list(LOST)
        case "prefill":
            behind = [("llama_layer", {"S": s, "S_max": s + 64}) for s in (512, 777, 2048)]
            return [*behind, ("llama_layer", {"S": 777, "S_max": 777}), ("gpt_layer", {"S": 512})]
    raise ValueError(group)


def width_pairs() -> list[tuple[Task, Task]]:
    """Each width that is no multiple of anything, and its aligned neighbour."""
    return [
        (Task("widths", name, odd), Task("widths", name, {**odd, **aligned})) for name, odd, aligned in WIDTHS
    ]


def _pairs() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("conv_pair", {"B": b, "HW": hw, "C": c})
        for b in (1, 8, 32)
        for hw, c in ((56, 64), (28, 128), (14, 256), (7, 512))
    ]


def _stages() -> list[tuple[str, dict[str, Any]]]:
    return [("resnet38", {"stage": stage, "B": b}) for b in (1, 8, 32) for stage in (1, 2, 3, 4)]


def _vgg() -> list[tuple[str, dict[str, Any]]]:
    return [("vgg19", {"block": block, "B": b}) for b in (1, 8, 32) for block in (1, 2, 3, 4, 5)]


def _cusync() -> list[Task]:
    """cuSync's MLP shapes on random inputs and on constant ones, as it ran on: they take less power, so
    clocks stay higher."""
    wide = {"gpt3_mlp": {}, "llama_mlp": {"I": 2816}}
    return [
        Task("cusync", name, {"M": m, "dtype": "float16", **more}, value)
        for name, more in wide.items()
        for m in (512, 1024, 1792, 2048)
        for value in (None, CONSTANT)
    ]


# --- shapes that nobody tuned -------------------------------------------------------------------------------


def drawn(group: str, of: Sequence[Callable[[random.Random], Drawn]], seed: int, count: int) -> list[Task]:
    """`count` cells in turn of each family, sizes drawn at random: the first n are the same for every
    count."""
    r = random.Random(seed)
    found: dict[str, Task] = {}
    for n in range(100 * count):
        if len(found) == count:
            break
        name, sizes = of[n % len(of)](r)
        task = Task(group, name, sizes)
        found.setdefault(str(task), task)
    return list(found.values())


def _any_mlp(r: random.Random) -> tuple[str, dict[str, Any]]:
    h = r.choice([768, 1024, 2048, 3072, 4096, 5120, 8192])
    return "gpt3_mlp", {"M": between(r, 1, 4096), "H": h, "I": r.choice([h // 2, h, 2 * h, 4 * h])}


def _any_gated(r: random.Random) -> tuple[str, dict[str, Any]]:
    sizes: Sequence[tuple[int, int]] = [
        (2048, 5632),
        (4096, 11008),
        (4096, 14336),
        (5120, 13824),
        (8192, 3584),
        (3584, 18944),
        (1536, 8960),
        (2560, 9728),
    ]
    h, i = r.choice(sizes)
    return "llama_mlp", {"M": between(r, 1, 2048), "H": h, "I": i}


def _any_linear(r: random.Random) -> tuple[str, dict[str, Any]]:
    n, k = r.choice([768, 1536, 2304, 4096, 6144, 11008, 32000]), r.choice([768, 1024, 4096, 8192])
    return "one_linear", {"M": between(r, 1, 4096), "N": n, "K": k}


def _any_mlp3(r: random.Random) -> tuple[str, dict[str, Any]]:
    return "mlp3", {
        "M": between(r, 1, 4096),
        **{name: r.choice([256, 512, 1024, 2048, 4096]) for name in "ABCD"},
    }


def _any_attention(r: random.Random) -> tuple[str, dict[str, Any]]:
    heads, d = r.choice([8, 12, 16, 32]), r.choice([64, 128])
    return "gpt3_attention", {
        "B": r.choice([1, 1, 2, 4]),
        "S": between(r, 32, 3000),
        "H": heads * d,
        "heads": heads,
        "D": d,
    }


def _any_pair(r: random.Random) -> tuple[str, dict[str, Any]]:
    c = r.choice([32, 64, 96, 128, 192, 256, 384, 512])
    return "conv_pair", {
        "B": r.choice([1, 2, 4, 16]),
        "HW": r.choice([7, 12, 14, 20, 28, 40, 56, 75]),
        "C": c,
    }


def _any_layer(r: random.Random) -> tuple[str, dict[str, Any]]:
    if r.random() < 0.4:
        h, heads, i = r.choice([(768, 12, 3072), (1024, 16, 4096), (2048, 16, 8192)])
        b, s = r.choice([(1, 128), (8, 128), (1, 512), (4, 300), (16, 64)])
        return "gpt_layer", {"B": b, "S": s, "H": h, "heads": heads, "I": i}
    shapes = [
        (2048, 32, 8, 64, 8192),
        (4096, 32, 8, 128, 14336),
        (3072, 24, 8, 128, 8192),
        (3584, 28, 4, 128, 18944),
        (5120, 40, 8, 128, 17408),
    ]
    h, heads, kv, d, i = r.choice(shapes)
    b, s = r.choice([(1, 1), (2, 1), (6, 1), (24, 1), (48, 1), (1, 333), (1, 1500), (2, 200)])
    return "llama_layer", {
        "B": b,
        "S": s,
        "S_max": max(s, 700) + 1,
        "H": h,
        "heads": heads,
        "kv_heads": kv,
        "D": d,
        "I": i,
    }


FEW_FAMILIES: tuple[Callable[[random.Random], Drawn], ...] = (
    _any_mlp, _any_gated, _any_linear, _any_mlp, _any_attention, _any_pair, _any_mlp3, _any_layer,
)  # fmt: skip
