"""Programs of every kind of op for the GPU kernels, at odd sizes and in several tiles. Compiled everywhere,
run on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tilegen as tg
from benchmarks.families import resnet50_block
from tests.gpu.float8 import FLOAT8
from tests.gpu.gemms import Case
from tests.gpu.int8 import INT8
from tests.gpu.language import LANGUAGE
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


# --- ops that threads compute -------------------------------------------------------------------------------


@tg.spec
def soft(M=40, N=512, scale=0.7, causal=False, batch=1, dtype="bfloat16"):
    """A product first, so that softmax has to wait for rows of it."""
    x, w = tg.input("x", (batch, M, 64), dtype), tg.weight("w", (N, 64), dtype)
    return tg.softmax(tg.linear(x, w, name="scores"), scale=scale, causal=causal, name="y")


@tg.spec
def norms(M=40, N=512, dtype="bfloat16"):
    """RMS norm, product, layer norm with an epilogue."""
    x, g, bias = tg.input("x", (M, N), dtype), tg.weight("g", (N,), dtype), tg.weight("bias", (N,), dtype)
    w = tg.weight("w", (N, N), dtype)
    h = tg.linear(tg.rms_norm(x, g, name="n1"), w, name="h")
    return tg.add(tg.gelu(tg.layer_norm(h, g, bias, name="n2")), x, name="y")


@tg.spec
def rotated(B=2, S=37, heads=3, D=64, dtype="bfloat16"):
    x, w = tg.input("x", (B, S, 64), dtype), tg.weight("w", (2 * heads * D, 64), dtype)
    q, k = tg.linear(x, w, name="qk").split([heads * D, heads * D])
    return tg.rope(q, heads=heads, name="q_rope"), tg.rope(k, heads=heads, theta=500000.0, name="k_rope")


@tg.spec
def by_tables(B=2, S=37, heads=3, D=64, R=0, interleaved=False, dtype="bfloat16", of_tables=None):
    """R: so many columns of each head turn; 0: all."""
    x = tg.input("x", (B, S, heads * D), dtype)
    tables = [tg.input(n, (S, R or D), of_tables or dtype) for n in ("cos", "sin")]
    return tg.rotary(tg.relu(x, name="h"), *tables, heads=heads, interleaved=interleaved, name="y")


@tg.spec
def alone(M=33, N=264, dtype="bfloat16"):
    """Pointwise ops that no op before can carry: two outputs of one input."""
    x, y = tg.input("x", (M, N), dtype), tg.input("y", (M, N), dtype)
    return tg.silu(tg.add(x, y, name="a"), name="b"), tg.mul(x, y, name="c")


@tg.spec
def pools(B=3, HW=13, C=24, dtype="float16"):
    x = tg.input("x", (B, HW, HW, C), dtype)
    y = tg.relu(tg.max_pool2d(x, 3, stride=2, padding=1, name="m"), name="y")
    return tg.global_avg_pool(y, name="mean")


@tg.spec
def products(B=2, M=40, K=72, N=88, dtype="bfloat16", transpose_a=False, transpose_b=False):
    a = tg.input("a", (B, K, M) if transpose_a else (B, M, K), dtype)
    b = tg.input("b", (B, N, K) if transpose_b else (B, K, N), dtype)
    return tg.softmax(
        tg.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, name="s"), scale=K**-0.5, name="y"
    )


@tg.spec
def unaligned(M=37, N=197, causal=False, scale=1.0, dtype="bfloat16"):
    """Softmax, both norms with an epilogue, and views of columns, over rows that are no whole eights."""
    x, y = tg.input("x", (M, N), dtype), tg.input("y", (M, N), dtype)
    g, bias = tg.weight("g", (N,), dtype), tg.weight("bias", (N,), dtype)
    left, right = x.split([N // 2, N - N // 2])
    return (
        tg.softmax(x, scale=scale, causal=causal, name="s"),
        tg.add(tg.rms_norm(x, g, name="r"), y, name="added"),
        tg.layer_norm(tg.gelu(tg.add(x, g), name="e"), g, bias, name="l"),
        tg.silu(left, name="of_left"),
        tg.mul(tg.softmax(right, name="of_right"), right, name="z"),
    )


THREADS = [
    Case("softmax", soft, {}),
    *(
        Case(f"{n} columns, {m} rows, {dtype}", unaligned, {"M": m, "N": n, "dtype": dtype})
        for m, n, dtype in (
            (37, 197, "bfloat16"),
            (1, 10, "float16"),
            (17, 1023, "float32"),
            (64, 3, "float16"),
        )
    ),
    Case("41 columns, causal", unaligned, {"M": 41, "N": 41, "causal": True, "scale": -0.7}),
    *(Case(f"{n} columns, rows read anew", unaligned, {"M": 3, "N": n}) for n in (20480, 32001)),
    Case("rows read anew, causal", unaligned, {"M": 2, "N": 17001, "causal": True}),
    Case("softmax, one row of 8192", soft, {"M": 1, "N": 8192}),
    Case("softmax, negative scale", soft, {"M": 17, "N": 1000, "scale": -1.0, "dtype": "float16"}),
    Case("softmax, causal", soft, {"M": 41, "N": 264, "causal": True, "batch": 2}, {"tiles": {"y": (8,)}}),
    Case("norms", norms, {}),
    Case("norms, M = 1, wide", norms, {"M": 1, "N": 4104}),
    Case(
        "norms, M = 1000, float16",
        norms,
        {"M": 1000, "N": 136, "dtype": "float16"},
        {"tiles": {"n1": (16,), "n2": (3,)}},
    ),
    Case("rope", rotated, {}),
    Case("rope, one token, heads of 32", rotated, {"B": 1, "S": 1, "heads": 2, "D": 32}),
    *(Case(f"rope, heads of {d}", rotated, {"D": d}) for d in (8, 40, 72)),
    *(Case(f"rotary, heads of {d}", by_tables, {"D": d}) for d in (64, 24)),
    *(
        Case(f"rotary, heads of {d}, tables of float32", by_tables, {"D": d, "of_tables": "float32"})
        for d in (64, 24)
    ),
    *(
        Case(f"rotary, {r} of {d} columns of each head", by_tables, {"D": d, "R": r})
        for d, r in ((64, 32), (80, 20), (96, 24), (64, 2))
    ),
    Case("rotary, interleaved", by_tables, {"interleaved": True}),
    Case(
        "rotary, 24 of 40 columns, interleaved",
        by_tables,
        {"D": 40, "R": 24, "interleaved": True, "of_tables": "float32"},
    ),
    Case("pointwise", alone, {}),
    Case("pointwise, float32", alone, {"dtype": "float32"}),
    Case("pools", pools, {}),
    *(Case(f"pools, {c} channels", pools, {"C": c}) for c in (3, 20)),
    Case("pools, 57 x 57, bfloat16", pools, {"B": 1, "HW": 57, "C": 64, "dtype": "bfloat16"}),
    *(
        Case(f"matmul {a} {b}", products, {"transpose_a": a, "transpose_b": b})
        for a in (False, True)
        for b in (False, True)
    ),
    *(
        Case(f"matmul {a} {b}, 77 columns", products, {"K": 51, "N": 77, "transpose_a": a, "transpose_b": b})
        for a in (False, True)
        for b in (False, True)
    ),
]

# --- norms fused into linears -------------------------------------------------------------------------------


@tg.spec
def normed(M=5, H=264, I=136, eps=1e-5, dtype="bfloat16"):
    """A product, and its norm fused into a gated pair and into another linear, whose epilogues read more."""
    x, g, w = tg.input("x", (M, 64), dtype), tg.weight("g", (H,), dtype), tg.weight("w", (H, 64), dtype)
    r = tg.linear(x, w, name="r")
    n = tg.rms_norm(r, g, eps=eps, name="n")
    gate, up = tg.linear(n, tg.weight("w1", (2 * I, H), dtype), name="pair").chunk(2)
    h = tg.mul(tg.silu(gate), up, name="h")
    other = tg.linear(n, tg.weight("w2", (H, H), dtype), tg.weight("bias", (H,), dtype), name="other")
    return tg.add(tg.linear(h, tg.weight("w3", (H, I), dtype), name="down"), r, name="y"), tg.add(
        other, r, name="z"
    )


FOLDED = {"norms": "fused"}
NORMED = [
    *(Case(f"norm fused, M = {m}", normed, {"M": m}, FOLDED) for m in (1, 2, 3, 8, 17, 33, 64)),
    Case("norm fused, wide", normed, {"M": 1, "H": 4104, "I": 1032}, FOLDED),
    Case(
        "norm fused, steps of 256",
        normed,
        {"M": 9, "H": 1096},
        {**FOLDED, "tiles": {"pair": (64, 32, 256), "other": (64, 48, 256)}},
    ),
    Case(
        "norm fused, 64 rows, steps of 256",
        normed,
        {"M": 64, "H": 1096},
        {**FOLDED, "tiles": {"pair": (64, 16, 256), "other": (64, 16, 192)}},
    ),
    Case(
        "norm fused, step policy",
        normed,
        {"M": 20, "H": 520, "eps": 0.5},
        {**FOLDED, "policies": {"r": "step"}},
    ),
]

# --- convolutions -------------------------------------------------------------------------------------------


@tg.spec
def viewed_pixels(B=1, HW=9, C=64, N=48, dtype="float16"):
    """y = conv(x) + r, r some channels of a wider tensor, from an odd one on"""
    x, w = tg.input("x", (B, HW, HW, C), dtype), tg.weight("w", (N, 3, 3, C), dtype)
    _, r, _ = tg.input("z", (B, HW, HW, N + 4), dtype).split([1, N, 3])
    return tg.add(tg.conv2d(x, w, padding=1, name="y"), r, name="sum")


@tg.spec
def pair(B=1, HW=14, C=64, N=0, size=3, stride=1, dilation=1, dtype="float16"):
    """Two convolutions, the second with a residual where the shape is kept: y = relu(conv(relu(conv(x))) +
    x)."""
    N = N or C
    x = tg.input("x", (B, HW, HW, C), dtype)
    w1, b1 = tg.weight("w1", (N, size, size, C), dtype), tg.weight("b1", (N,), dtype)
    w2, b2 = tg.weight("w2", (N, size, size, N), dtype), tg.weight("b2", (N,), dtype)
    padding = dilation * (size // 2)
    h = tg.relu(
        tg.conv2d(x, w1, b1, stride=stride, padding=padding, dilation=dilation, name="first"), name="h"
    )
    y = tg.conv2d(h, w2, b2, padding=padding, dilation=dilation, name="second")
    return tg.relu(y + x if stride == 1 and N == C else y, name="y")


@tg.spec
def pixels(B=3, HW=13, C=136, N=136, dtype="float16"):
    """A convolution of one pixel, which is a linear where it is alone, with a residual where channels are
    kept."""
    x = tg.input("x", (B, HW, HW, C), dtype)
    w, b = tg.weight("w", (N, 1, 1, C), dtype), tg.weight("b", (N,), dtype)
    y = tg.conv2d(x, w, b, name="conv")
    return tg.relu(y + x if N == C else y, name="y")


@tg.spec
def blocks(B=1, HW=13, C=64, count=3, newer=False, dtype="float16"):
    """Residual blocks of equal convolutions, which share their code. newer: each adds what comes after its
    activations, so that it is awaited last."""
    x = tg.input("x", (B, HW, HW, C), dtype)
    for n in range(count):
        weights = [
            (tg.weight(f"w{n}{m}", (C, 3, 3, C), dtype), tg.weight(f"b{n}{m}", (C,), dtype))
            for m in "abc"[: 2 + newer]
        ]
        h = tg.relu(tg.conv2d(x, *weights[0], padding=1, name=f"first{n}"), name=f"h{n}")
        beside = (
            tg.relu(tg.conv2d(x, *weights[2], padding=1, name=f"beside{n}"), name=f"r{n}") if newer else x
        )
        x = tg.relu(tg.conv2d(h, *weights[1], padding=1, name=f"second{n}") + beside, name=f"x{n}")
    return x


def of_blocks(tile: tuple[int, ...], count: int = 3, parts: int = 1, **given: Any) -> dict[str, Any]:
    names = [f"{which}{n}" for n in range(count) for which in ("first", "second")]
    return {
        "tiles": dict.fromkeys(names, tile),
        **({"cluster": dict.fromkeys(names, parts)} if parts > 1 else {}),
        **given,
    }


@tg.spec
def one(B=2, HW=9, C=64, N=10, size=3, dtype="bfloat16"):
    x, w = tg.input("x", (B, HW, HW, C), dtype), tg.weight("w", (N, size, size, C), dtype)
    return tg.relu(tg.conv2d(x, w, tg.weight("b", (N,), dtype), padding=size // 2, name="conv"), name="y")


@tg.spec
def patches(B=2, HW=9, C=64, N=64, size=3, stride=1, padding=1, dilation=1, dtype="bfloat16"):
    """A convolution that is a linear of patches where its tile says so, with a residual where the shape is
    kept: y = relu(conv(x) + b + x)"""
    x, w = tg.input("x", (B, HW, HW, C), dtype), tg.weight("w", (N, size, size, C), dtype)
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    y = tg.conv2d(x, w, tg.weight("b", (N,), dtype), **how, name="conv")
    return tg.relu(y + x if y.shape == x.shape else y, name="y")


def _patches(
    name: str, sizes: dict[str, Any], tile: tuple[int, ...], cluster: str = "1", sms: int = 4, **given: Any
) -> Case:
    options = {"tiles": {"conv": tile}, "cluster": {"conv": cluster}, **given}
    return Case(f"patches, {name}", patches, sizes, options, sms=sms)


PATCHES = [
    _patches("two images in a tile", {"N": 72}, (128, 64, 64)),
    _patches("residual", {"HW": 13, "B": 3}, (128, 64, 64)),
    _patches("5 x 5, 256 rows", {"HW": 19, "B": 1, "size": 5, "padding": 2, "N": 72}, (256, 64, 64)),
    _patches("stride 2, two blocks in a step", {"HW": 11, "B": 3, "C": 128, "stride": 2}, (64, 32, 128)),
    _patches("stride 2, of one pixel", {"HW": 11, "size": 1, "padding": 0, "stride": 2}, (64, 64, 64)),
    _patches("stride 3, no padding, last pixels unseen", {"HW": 12, "padding": 0, "stride": 3}, (64, 64, 64)),
    _patches("dilation 2", {"HW": 13, "dilation": 2, "padding": 2, "dtype": "float16"}, (192, 64, 64)),
    _patches("padding beyond the filter", {"HW": 5, "padding": 4, "N": 40}, (64, 48, 64)),
    _patches("swapped", {"HW": 10, "C": 128}, (80, 128, 64)),
    _patches("24 filters", {"N": 24}, (64, 32, 64)),
    _patches("one pixel of the result", {"HW": 3, "padding": 0, "B": 5}, (64, 64, 64)),
    _patches("pairs that share steps", {"HW": 7, "C": 192}, (64, 64, 64), "2:k"),
    _patches("swapped pairs that share steps", {"HW": 9, "C": 128, "N": 128}, (144, 128, 64), "2:km"),
    _patches("pairs that share patches", {"HW": 12, "N": 120}, (128, 128, 64), "2:n"),
    _patches("pairs that share filters", {"HW": 12, "N": 120}, (256, 64, 64), "2:m"),
    _patches("four CTAs that share both", {"HW": 20, "N": 120}, (256, 128, 64), "2x2", sms=8),
    _patches("warpgroups in turn", {"HW": 21}, (128, 64, 64), pingpong={"conv": True}),
    _patches("32 channels", {"HW": 11, "C": 32, "N": 72}, (128, 64, 32)),
    _patches("32 channels, every other slice", {"HW": 9, "C": 32}, (64, 64, 32)),
    _patches("16 channels, residual", {"HW": 13, "C": 16, "N": 16, "B": 3}, (64, 32, 16)),
    _patches("96 channels, swapped", {"HW": 10, "C": 96, "N": 128}, (80, 128, 96)),
    _patches("96 channels, stride 2, 192 rows", {"HW": 21, "C": 96, "N": 96, "stride": 2}, (192, 96, 96)),
    _patches("176 channels, pairs that share patches", {"HW": 9, "C": 176, "N": 96}, (64, 64, 176), "2:n"),
    _patches("96 channels, pairs that share steps", {"HW": 9, "C": 96, "N": 64}, (128, 64, 96), "2:k"),
    _patches("48 channels, in turn", {"HW": 21, "C": 48}, (128, 64, 48), pingpong={"conv": True}),
    _patches(
        "80 channels of one pixel, stride 2",
        {"HW": 21, "C": 80, "size": 1, "padding": 0, "stride": 2},
        (64, 64, 80),
    ),
]


def _sliding(
    name: str, sizes: dict[str, Any], tile: tuple[int, ...], cluster: str = "1", **given: Any
) -> Case:
    options = {"tiles": {"conv": (*tile, 32)}, "cluster": {"conv": cluster}, **given}
    return Case(f"sliding, {name}", patches, sizes, options)


SLIDING = [
    _sliding("96 channels, residual", {"HW": 20, "C": 96, "N": 96}, (1, 5, 20, 96)),
    _sliding("32 channels, all parts ragged", {"HW": 19, "C": 32, "N": 72, "B": 3}, (1, 6, 17, 48)),
    _sliding("40 channels, dilation 2", {"HW": 21, "C": 40, "dilation": 2, "padding": 2}, (1, 4, 21, 64)),
    _sliding("128 filters, by TMA", {"HW": 20, "N": 128, "dtype": "float16"}, (1, 5, 20, 128)),
    _sliding("pairs that share steps", {"HW": 13, "N": 64}, (1, 8, 13, 64), "2:k"),
    _sliding("no padding, lines of 126", {"HW": 40, "C": 96, "padding": 0}, (1, 3, 38, 64)),
    Case(
        "sliding, beside boxes of 64 channels",
        pair,
        {"HW": 14, "C": 64, "N": 64},
        {"tiles": {"first": (1, 7, 14, 64, 32), "second": (1, 7, 14, 64, 64)}},
    ),
]
CONVOLUTIONS = [
    *PATCHES,
    *SLIDING,
    Case("3 channels", pair, {"HW": 57, "C": 3, "N": 64, "B": 2}),
    Case(
        "3 channels, 7 x 7, stride 2",
        pair,
        {"HW": 57, "C": 3, "N": 64, "size": 7, "stride": 2, "dtype": "bfloat16"},
    ),
    *(
        Case(f"{n} filters, {size} x {size}", one, {"N": n, "size": size, "HW": hw})
        for n, size, hw in ((10, 3, 9), (7, 3, 30), (21, 1, 20), (1, 5, 7))
    ),
    *(Case(f"{n} filters of {c} channels", one, {"N": n, "C": c, "HW": 11}) for n, c in ((10, 3), (77, 12))),
    *(
        Case(f"{c} channels, float32", one, {"N": 12, "C": c, "HW": 7, "dtype": "float32"}) for c in (3, 16)
    ),
    Case("500 channels, no eights", one, {"N": 40, "C": 500, "HW": 5}),
    Case("14 x 14 x 64", pair, {}),
    Case(
        "7 x 7 x 512",
        pair,
        {"HW": 7, "C": 512},
        {"tiles": {n: (1, 7, 7, 16, 256) for n in ("first", "second")}},
    ),
    Case(
        "7 x 7, three images in a tile",
        pair,
        {"HW": 7, "B": 3, "C": 128},
        {"tiles": {n: (2, 7, 7, 128, 64) for n in ("first", "second")}},
    ),
    Case(
        "13 x 13, all parts ragged",
        pair,
        {"HW": 13, "B": 3, "C": 72, "N": 200},
        {"tiles": {n: (1, 5, 8, 64, 64) for n in ("first", "second")}},
    ),
    Case(
        "57 x 57 x 64, wide tiles",
        pair,
        {"HW": 57, "C": 64},
        {"tiles": {n: (1, 8, 16, 64, 64) for n in ("first", "second")}},
    ),
    Case(
        "57 x 57, tile policy",
        pair,
        {"HW": 57, "C": 64},
        {"tiles": {n: (1, 4, 8, 32, 64) for n in ("first", "second")}, "policies": {"h": "tile"}},
    ),
    Case("stride 2", pair, {"HW": 57, "C": 64, "N": 128, "stride": 2, "B": 3}),
    Case(
        "stride 2, wide tiles",
        pair,
        {"HW": 28, "C": 64, "N": 128, "stride": 2, "B": 3},
        {"tiles": {n: (2, 4, 14, 128, 64) for n in ("first", "second")}},
    ),
    Case("dilation 2", pair, {"HW": 13, "C": 64, "dilation": 2, "dtype": "bfloat16"}),
    Case("1 x 1", pair, {"HW": 13, "C": 136, "N": 264, "size": 1, "B": 3}),
    Case("1 x 1, stride 2", pair, {"HW": 13, "C": 64, "size": 1, "stride": 2}),
    Case("one pixel", pixels, {}),
    Case("one pixel, warpgroups in turn", pixels, {"HW": 57, "C": 64, "N": 64, "dtype": "bfloat16"}),
    Case("one pixel, other channels", pixels, {"HW": 7, "C": 264, "N": 1000, "B": 1}),
    Case("one pixel, in boxes", pixels, {}, {"tiles": {"conv": (1, 5, 8, 64, 64)}}),
    Case("one pixel, channels that are no eights", pixels, {"C": 12, "N": 40}),
    Case("bottleneck", resnet50_block, {"B": 3, "HW": 13}),
    Case("5 x 5, 8 channels", pair, {"HW": 13, "C": 8, "N": 16, "size": 5}),
    Case(
        "pairs that share steps",
        pair,
        {"HW": 14, "C": 256},
        {"tiles": {n: (1, 4, 14, 32, 64) for n in ("first", "second")}, "cluster": {"first": 2, "second": 2}},
    ),
    Case(
        "pairs that share channels",
        pair,
        {"HW": 28, "C": 128, "B": 2},
        {
            "tiles": {n: (1, 4, 28, 128, 64) for n in ("first", "second")},
            "cluster": dict.fromkeys(("first", "second"), "2:n"),
        },
    ),
    Case(
        "12 channels, dilation 2",
        pair,
        {"HW": 26, "C": 12, "N": 72, "dilation": 2, "B": 3},
        {"tiles": {"first": (2, 5, 7, 40, 64)}},
    ),
    Case("one channel, 5 x 5, stride 2", pair, {"HW": 56, "C": 1, "N": 40, "size": 5, "stride": 2}),
    Case("blocks", blocks, {}),
    Case("blocks, 13 x 13, all parts ragged", blocks, {"B": 3, "C": 72}, of_blocks((1, 5, 8, 32, 64))),
    Case(
        "blocks, 57 x 57, tile policy",
        blocks,
        {"HW": 57, "count": 2},
        of_blocks((1, 4, 8, 32, 64), 2, policies={"h0": "tile", "h1": "tile", "x0": "tile"}),
    ),
    Case(
        "blocks, wide tiles, bfloat16",
        blocks,
        {"HW": 28, "B": 3, "dtype": "bfloat16"},
        of_blocks((1, 8, 14, 64, 64)),
    ),
    Case(
        "blocks, pairs that share steps", blocks, {"HW": 14, "C": 256}, of_blocks((1, 4, 14, 32, 64), parts=2)
    ),
    Case("blocks, residuals newer than activations", blocks, {"C": 128, "newer": True}),
]

# --- attention ----------------------------------------------------------------------------------------------


@tg.spec
def attended(B=2, S=100, heads=4, kv_heads=2, D=64, H=128, causal=True, dtype="bfloat16"):
    x, w = tg.input("x", (B, S, H), dtype), tg.weight("w", ((heads + 2 * kv_heads) * D, H), dtype)
    q, k, v = tg.linear(x, w, name="qkv").split([heads * D, kv_heads * D, kv_heads * D])
    return tg.attention(q, k, v, heads=heads, kv_heads=kv_heads, causal=causal, name="attn")


@tg.spec
def heads_alone(B=2, S=300, heads=4, D=64, causal=True, scale=0.0, dtype="bfloat16"):
    """An attention in a launch of its own: the next tile's queries come while a tile's are used."""
    q, k, v = tg.input("qkv", (B, S, 3 * heads * D), dtype).chunk(3)
    return tg.attention(q, k, v, heads=heads, causal=causal, scale=scale or None, name="attn")


@tg.spec
def cached(
    B=2, S=1, S_max=300, heads=8, kv_heads=2, D=64, H=128, roped=False, window=0, cap=0.0, alibi=False,
    dtype="bfloat16"
):
    """New keys and values behind those in the caches, attention over all of them, or those of a window, with
    slopes or not; queries and keys turned by their position, or not."""
    x, w, pos = (
        tg.input("x", (B, S, H), dtype),
        tg.weight("w", ((heads + 2 * kv_heads) * D, H), dtype),
        tg.input("pos", (1,), "int32"),
    )
    k_cache, v_cache = (tg.state(f"{n}_cache", (B, S_max, kv_heads, D), dtype) for n in "kv")
    q, k, v = tg.linear(x, w, name="qkv").split([heads * D, kv_heads * D, kv_heads * D])
    if roped:
        q, k = (
            tg.rope(q, heads=heads, at=pos, name="q_rope"),
            tg.rope(k, heads=kv_heads, at=pos, name="k_rope"),
        )
    keys, values = (
        tg.append(k_cache, k, at=pos, name="k_append"),
        tg.append(v_cache, v, at=pos, name="v_append"),
    )
    slopes = tg.weight("slopes", (heads,), "float32") if alibi else None
    how = {"window": window or None, "softcap": cap or None, "alibi": slopes}
    return tg.attention(q, keys, values, heads=heads, kv_heads=kv_heads, at=pos, name="attn", **how)


@tg.spec
def windowed(B=2, S=300, heads=4, kv_heads=2, D=64, window=70, cap=0.0, made=False, dtype="bfloat16"):
    """Queries that see the last keys before them alone, with scores capped or not; keys that another op
    makes, or not."""
    q = tg.input("q", (B, S, heads * D), dtype)
    k, v = (tg.input(name, (B, S, kv_heads * D), dtype) for name in "kv")
    k = tg.relu(k, name="h") if made else k
    how = {"causal": True, "window": window or None, "softcap": cap or None}
    return tg.attention(q, k, v, heads=heads, kv_heads=kv_heads, name="y", **how)


@tg.spec
def masked(
    B=3, S=300, K=0, heads=4, kv_heads=2, D=64, causal=False, lengths=False, prefix=0, alibi=False, window=0,
    cap=0.0, made=False, every=0, bq=64, bk=64, bias=None, windows=0, wide=False, dtype="bfloat16"
):
    """S queries over K keys, or as many, of sequences that have lengths, or begin with a prefix, or whose
    scores rise by slopes, or that see one block of bk keys of so many; of keys that another op makes, or
    not. bias: what is added to scores, of all batches, heads and queries that it names, or of so many windows
    again and again; made as keys are; wide: as float32."""
    q = tg.input("q", (B, S, heads * D), dtype)
    k, v = (tg.input(name, (B, K or S, kv_heads * D), dtype) for name in "kv")
    k = tg.relu(k, name="h") if made else k
    how = {
        "lengths": tg.input("n", (B,), "int32") if lengths else None,
        "prefix": prefix or None,
        "alibi": tg.weight("slopes", (heads,), "float32") if alibi else None,
        "window": window or None,
        "softcap": cap or None,
        "block_mask": table(-(-S // bq), -(-(K or S) // bk), every) if every else None,
        "block_size": (bq, bk),
    }
    if bias is not None:
        sizes = (windows or B if "b" in bias else 1, heads if "h" in bias else 1, S if "q" in bias else 1)
        added = tg.input("bias", (*sizes, K or S), "float32" if wide else dtype)
        how["bias"] = tg.log(tg.relu(added), name="added") if made else added
    return tg.attention(q, k, v, heads=heads, kv_heads=kv_heads, causal=causal, name="y", **how)


def table(rows: int, columns: int, every: int) -> list[list[bool]]:
    """One of so many blocks of keys, other ones in each row; none in some rows."""
    return [[(2 * r + c) % every == 0 and r % 5 != 3 for c in range(columns)] for r in range(rows)]


AWAITED = {"appends": "awaited"}
CACHED = [
    Case("caches", cached, {}, AWAITED),
    *(
        Case(f"caches, heads of {d}, turned", cached, {"D": d, "roped": True, "S": s})
        for d, s in ((40, 1), (72, 20))
    ),
    Case(
        "caches, 100 tokens, 128 rows of four heads",
        cached,
        {"S": 100, "D": 128},
        {"tiles": {"attn": (32, 112, 4)}},
    ),
    Case(
        "caches, 13 tokens of four heads",
        cached,
        {"S": 13, "dtype": "float16"},
        {**AWAITED, "tiles": {"attn": (13, 64, 4)}},
    ),
    Case(
        "caches, keys shared out",
        cached,
        {"S_max": 1000, "D": 128, "B": 1},
        {**AWAITED, "split_kv": {"attn": 11}, "tiles": {"attn": (1, 64, 4)}},
    ),
    Case(
        "caches, 37 tokens, keys shared out",
        cached,
        {"S": 37, "D": 96},
        {"split_kv": {"attn": 3}, "tiles": {"attn": (16, 48, 4)}},
    ),
    Case(
        "caches, shares without keys",
        cached,
        {"S_max": 40, "dtype": "float16"},
        {**AWAITED, "split_kv": {"attn": 3}, "tiles": {"attn": (1, 16, 2)}},
    ),
    Case(
        "caches, one head a tile, keys shared out",
        cached,
        {"S": 3, "heads": 2},
        {**AWAITED, "split_kv": {"attn": 2}, "tiles": {"attn": (3, 80, 1)}},
    ),
]

PASSING = {"appends": "forwarded"}
PASSED = [
    Case("new rows forwarded", cached, {}, PASSING),
    Case("new rows forwarded, turned", cached, {"roped": True}, PASSING),
    Case(
        "new rows forwarded, turned, keys shared out",
        cached,
        {"S_max": 1000, "D": 128, "B": 1, "roped": True},
        {**PASSING, "split_kv": {"attn": 11}},
    ),
    Case(
        "new rows forwarded, 13 tokens, turned",
        cached,
        {"S": 13, "dtype": "float16", "roped": True},
        {**PASSING, "tiles": {"attn": (13, 64, 4)}},
    ),
    Case(
        "new rows forwarded, 16 tokens in small blocks",
        cached,
        {"S": 16, "S_max": 99},
        {**PASSING, "tiles": {"attn": (16, 16, 4)}},
    ),
    Case(
        "new rows forwarded, heads of 96, turned",
        cached,
        {"S": 3, "D": 96, "roped": True, "dtype": "float16"},
        {**PASSING, "split_kv": {"attn": 3}},
    ),
    Case(
        "new rows forwarded, two heads of a group",
        cached,
        {"S_max": 40, "roped": True},
        {**PASSING, "split_kv": {"attn": 3}, "tiles": {"attn": (1, 16, 2)}},
    ),
    Case(
        "new rows forwarded, tile policy",
        cached,
        {"roped": True, "B": 3},
        {**PASSING, "split_kv": {"attn": 2}, "policies": {"qkv": "tile"}},
    ),
]

ATTENTIONS = [
    Case("causal, shared heads", attended, {}),
    Case("full, float16", attended, {"causal": False, "dtype": "float16"}),
    Case("heads of 128", attended, {"D": 128, "heads": 3, "kv_heads": 3, "B": 1}),
    Case("heads of 96", attended, {"D": 96, "heads": 2, "kv_heads": 1}),
    *(
        Case(f"heads of {d}, {s} tokens", attended, {"D": d, "S": s, "dtype": dtype})
        for d, s, dtype in (
            (8, 130, "float16"),
            (40, 100, "bfloat16"),
            (72, 1, "bfloat16"),
            (72, 197, "float16"),
            (120, 17, "bfloat16"),
            (192, 100, "bfloat16"),
            (192, 17, "float16"),
            (256, 130, "bfloat16"),
            (256, 1, "bfloat16"),
        )
    ),
    Case("heads of 72, alone", heads_alone, {"D": 72, "causal": False}, sms=3),
    Case("one token", attended, {"S": 1}),
    Case("17 tokens", attended, {"S": 17, "D": 128}),
    Case(
        "1000 tokens, 128 queries a tile",
        attended,
        {"S": 1000, "D": 128, "B": 1},
        {"tiles": {"attn": (128, 112)}},
    ),
    Case(
        "1000 tokens, 64 queries a tile",
        attended,
        {"S": 1000, "B": 1, "causal": False},
        {"tiles": {"attn": (64, 64)}},
    ),
    Case("alone, many tiles of an SM", heads_alone, {}, {"tiles": {"attn": (128, 128)}}, sms=2),
    Case(
        "alone, 128 columns, full",
        heads_alone,
        {"D": 128, "causal": False, "S": 517},
        {"tiles": {"attn": (128, 128)}},
    ),
    Case("alone, ranks drawn", heads_alone, {"D": 80, "heads": 6}, {"scheduling": "dynamic"}, sms=3),
    Case("alone, lists", heads_alone, {"B": 1, "S": 1000, "D": 128}, {"scheduling": "lists"}, sms=3),
    Case("300 tokens, 40 queries, 48 keys", attended, {"S": 300, "D": 80}, {"tiles": {"attn": (40, 48)}}),
    Case(
        "300 tokens, tile policy",
        attended,
        {"S": 300, "D": 128, "B": 1},
        {"tiles": {"attn": (128, 64)}, "policies": {"qkv": "tile"}},
    ),
]

# --- examples -----------------------------------------------------------------------------------------------


def example(name: str, **sizes: Any) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), sizes)


EXAMPLE_SIZES: list[tuple[str, dict[str, Any]]] = [
    ("gpt3_mlp", {"M": 33, "H": 256, "I": 128}),
    ("llama_mlp", {"M": 33, "H": 256, "I": 128}),
    ("gpt3_attention", {"B": 2, "S": 137, "H": 256, "heads": 2}),
    ("llama_attention", {"B": 2, "S": 137, "H": 256, "heads": 4, "kv_heads": 2, "D": 64}),
    ("gpt_layer", {"B": 2, "S": 67, "H": 256, "heads": 4, "I": 512}),
    ("llama_layer", {"B": 3, "S": 1, "S_max": 300, "H": 256, "heads": 4, "kv_heads": 2, "D": 64, "I": 512}),
    ("llama_layer", {"B": 2, "S": 40, "S_max": 300, "H": 256, "heads": 4, "kv_heads": 2, "D": 64, "I": 512}),
    ("bert_layer", {"B": 3, "S": 77, "H": 256, "heads": 4, "I": 512}),
    ("vit_layer", {"B": 2, "S": 197, "H": 256, "heads": 4, "I": 512}),
    ("lora", {"M": 77, "H": 512, "R": 4}),
    ("moe_dense", {"M": 33, "H": 256, "I": 512}),
    ("unet_block", {"HW": 13, "C": 64, "N": 128, "T": 200, "groups": 8}),
    *(("resnet38", {"stage": stage, "B": 2}) for stage in (1, 2, 3, 4)),
    *(("resnet50", {"stage": stage, "B": 2}) for stage in (1, 2, 3, 4)),
    *(("vgg19", {"block": block}) for block in (1, 2, 3, 4, 5)),
    ("resnet38", {"B": 2, "HW": 64}),
    ("resnet38", {}),
    ("resnet50", {"B": 2, "HW": 64}),
    ("vgg19", {"B": 3, "HW": 64, "hidden": 264}),
]
EXAMPLE_CASES = [
    Case(
        f"{name} {' '.join(f'{k}={v}' for k, v in sizes.items())}",
        lambda name=name, **s: example(name, **s),
        sizes,
    )
    for name, sizes in EXAMPLE_SIZES
]


@tg.spec
def words(M=17, N=40, dtype="bfloat16"):
    """Every word of pointwise maths, and every operator."""
    x, y, v = tg.input("x", (M, N), dtype), tg.input("y", (M, N), dtype), tg.weight("v", (N,), dtype)
    p = tg.abs(x) + 0.5
    return (
        *(tg.log(p), tg.sqrt(p), tg.rsqrt(p), tg.exp(x), tg.tanh(y), tg.softplus(x)),
        *(tg.hardswish(3.0 * x), tg.leaky_relu(x, 0.2), tg.clamp(x, -0.5, 1.0)),
        *(x - y, 1.0 - x, x / p, 2 / p, -x, x**3, v - x, (x + y) / 4.0),
        *(x < y, v >= x, tg.where(x <= 0.25, y, v), tg.where(y > x, -1, x)),
        *(tg.maximum(x, v), tg.minimum(0.5, y)),
    )


@tg.spec
def words_behind(M=33, N=96, K=72, dtype="bfloat16"):
    """The same in an epilogue of a linear, whose sums leave without being written."""
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype)
    return tg.softplus(tg.linear(x, w, name="y")) / 2.5 - tg.tanh(tg.input("r", (M, N), dtype))


WORDS = [
    Case("words", words, {}),
    Case("words, float32", words, {"dtype": "float32", "M": 1}),
    Case("words, 21 columns", words, {"N": 21, "dtype": "float16"}),
    Case("words behind a linear", words_behind, {}),
    Case("words behind a linear, 77 columns", words_behind, {"N": 77, "M": 300}),
]


@tg.spec
def logs(M=40, N=512, K=0, scale=1.0, dtype="bfloat16"):
    """The logarithm of a softmax; behind a linear, where K is given."""
    if not K:
        return tg.log_softmax(tg.input("x", (M, N), dtype), scale=scale, name="y")
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype)
    return tg.log_softmax(tg.linear(x, w, name="scores"), scale=scale, name="y")


LOGS = [
    Case("log_softmax behind a linear", logs, {"K": 64, "scale": 0.7}),
    Case("log_softmax, 197 columns behind a linear", logs, {"M": 17, "N": 197, "K": 72, "dtype": "float16"}),
    Case("log_softmax, negative scale", logs, {"M": 1, "N": 1000, "scale": -1.0}),
    Case("log_softmax, 1023 columns, float32", logs, {"M": 17, "N": 1023, "dtype": "float32"}),
    *(Case(f"log_softmax, {n} columns, rows read anew", logs, {"M": 3, "N": n}) for n in (20480, 32001)),
]
WINDOWS = [
    Case("a window of 70 keys", windowed, {}),
    Case("a window of one key", windowed, {"window": 1, "S": 140, "B": 1}),
    Case("a window over all keys", windowed, {"window": 1000, "D": 128, "dtype": "float16"}),
    Case("a window of keys that another op makes", windowed, {"made": True}),
    Case("capped scores", windowed, {"window": 0, "cap": 2.0, "S": 150}),
    Case("capped scores, a window, heads of 40", windowed, {"cap": 1.0, "D": 40, "S": 200, "window": 33}),
    *(
        Case(f"a window of caches, {s} tokens", cached, {"S": s, "window": w, "cap": cap, "roped": True})
        for s, w, cap in ((1, 50, 0.0), (1, 7, 3.0), (20, 100, 0.0), (100, 64, 3.0))
    ),
    Case("a window of caches, split", cached, {"window": 150, "B": 1}, {"split_kv": {"attn": 3}}),
]
LENGTHS: dict[str, Any] = {"causal": True, "lengths": True}
SLOPES: dict[str, Any] = {"causal": True, "alibi": True}
BOTH = LENGTHS | SLOPES
WIDE, SMALL = ({"every": n, "bq": bq, "bk": bk} for n, bq, bk in ((2, 128, 128), (3, 3, 5)))
ROWS_128 = {"tiles": {"y": (128, 128)}}  # of queries, and so many keys a block
MASKS = [
    Case("lengths", masked, {"lengths": True}),
    Case("lengths, causal", masked, {**LENGTHS, "S": 150, "D": 128}),
    Case("lengths of other keys, one query", masked, {"lengths": True, "S": 1, "K": 1000, "B": 5}),
    Case("lengths, 17 queries, heads of 40", masked, {"lengths": True, "S": 17, "K": 130, "D": 40, "B": 7}),
    Case("lengths and a window", masked, {**LENGTHS, "window": 70, "dtype": "float16"}),
    Case("lengths of keys that another op makes", masked, {"lengths": True, "made": True}),
    Case("lengths, a window, keys made", masked, {**LENGTHS, "window": 33, "made": True}),
    Case("a prefix", masked, {"prefix": 141, "causal": True}),
    Case("a prefix of all keys, of few", masked, {"prefix": 40, "causal": True, "S": 40, "dtype": "float16"}),
    Case("a prefix before lengths", masked, {**LENGTHS, "prefix": 100, "made": True}),
    Case("slopes", masked, SLOPES),
    Case("slopes, all keys", masked, {"alibi": True, "S": 60, "K": 150, "dtype": "float16"}),
    Case("slopes, capped, a window", masked, {**SLOPES, "cap": 2.0, "window": 50, "S": 130}),
    Case("lengths and slopes, heads of 256", masked, {**BOTH, "D": 256, "S": 77, "K": 140}),
    Case("lengths, slopes, a prefix, capped", masked, {**BOTH, "S": 5, "K": 140, "prefix": 9, "cap": 1.5}),
    Case("lengths, 128 rows", masked, {"lengths": True, "D": 128}, ROWS_128),
    Case("lengths, slopes, a window, 128 rows", masked, {**BOTH, "window": 70}, ROWS_128),
    Case("a prefix, slopes, 128 rows", masked, {**SLOPES, "prefix": 200}, ROWS_128),
    *(
        Case(f"slopes over caches, {s} tokens", cached, {"S": s, "alibi": True, "roped": s == 3})
        for s in (1, 3, 70)
    ),
    Case("slopes over caches, split", cached, {"alibi": True, "B": 1}, {"split_kv": {"attn": 3}}),
    Case("blocks, keys made", masked, {"every": 3, "made": True}),
    Case("blocks of 128", masked, {**WIDE, "S": 520, "B": 1, "D": 128, "made": True}),
    Case("blocks, causal, as float16", masked, {"every": 2, "causal": True, "dtype": "float16"}),
    Case("blocks of odd sizes", masked, {"every": 3, "bq": 17, "bk": 23, "made": True}),
    Case("blocks of odd sizes, 17 queries", masked, {**SMALL, "S": 17, "K": 130, "D": 40}),
    Case("blocks, one query", masked, {"every": 4, "bq": 1, "S": 1, "K": 1000}),
    Case("blocks of one key", masked, {"every": 7, "bq": 1, "bk": 1, "S": 60, "K": 70}),
    Case("blocks, lengths, slopes", masked, {**BOTH, "every": 2, "made": True}),
    Case("blocks of odd sizes, a window, capped", masked,
         {"every": 2, "bq": 50, "bk": 70, "causal": True, "window": 90, "cap": 2.0, "made": True}),
    Case("blocks, a prefix", masked, {"every": 2, "bk": 32, "causal": True, "prefix": 100, "made": True}),
    Case("blocks of odd sizes, lengths, 128 rows", masked, {**LENGTHS, "every": 2, "bk": 100}, ROWS_128),
]
FOUR = {"heads": 4, "kv_heads": 4}
WINDOW_BIAS = {"S": 49, "D": 32, "B": 8, "bias": "bhq", "windows": 4, "dtype": "float16", **FOUR}
BIASES = [
    Case("a bias of heads, 197 keys", masked, {"S": 197, "bias": "hq", "B": 2, **FOUR}),
    Case("a bias of padding", masked, {"S": 130, "bias": "b", "dtype": "float16"}),
    Case("a bias of windows", masked, WINDOW_BIAS),
    Case("a bias of all, 17 queries, heads of 128", masked, {"S": 17, "D": 128, "bias": "bhq", "wide": True}),
    Case("a bias of keys alone", masked, {"S": 40, "K": 150, "bias": "", "wide": True}),
    Case("a bias of queries, causal", masked, {"S": 200, "bias": "q", "causal": True}),
    Case("a bias of batches and heads", masked, {"S": 70, "bias": "bh", "dtype": "float16"}),
    Case("a bias of batches and queries, 3 queries", masked, {"S": 3, "K": 200, "bias": "bq", "wide": True}),
    Case("a bias that another op makes", masked, {"S": 197, "bias": "hq", "B": 2, "made": True}),
    Case("a bias that another op makes, causal, 128 rows", masked,
         {"S": 300, "D": 128, "bias": "bq", "B": 2, "made": True, "causal": True}, ROWS_128),
    Case("a bias, capped, slopes", masked, {**SLOPES, "S": 77, "K": 140, "cap": 2.0, "bias": "hq"}),
    Case("a bias, capped, 5 queries, made", masked,
         {"S": 5, "K": 140, "D": 40, "cap": 2.0, "bias": "bhq", "made": True}),
    Case("a bias, lengths, a window", masked, {**LENGTHS, "S": 150, "window": 40, "bias": "h"}),
    Case("a bias, blocks", masked, {"every": 3, "made": True, "bias": "hq", "B": 1}),
]
MASKS += BIASES

OPS = [
    *(*THREADS, *NORMED, *CONVOLUTIONS, *ATTENTIONS, *CACHED, *PASSED, *WINDOWS, *MASKS),
    *(*EXAMPLE_CASES, *WORDS, *LOGS, *LANGUAGE, *FLOAT8, *INT8),
]
