"""Chains of GeMMs for the Hopper kernel: every way of cutting a tile, odd sizes, all epilogues. Compiled
everywhere, run on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tilegen as tg
from tilegen.frontend.program import Program
from tilegen.schedule.plan import Plan


@tg.spec
def gemm(M=128, N=256, K=512, dtype="bfloat16"):
    x = tg.input("x", (M, K), dtype)
    w = tg.weight("w", (N, K), dtype)
    return tg.linear(x, w, name="y")


@tg.spec
def mlp(M=128, H=512, I=384, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    w1 = tg.weight("w1", (I, H), dtype)
    w2 = tg.weight("w2", (H, I), dtype)
    h = tg.gelu(tg.linear(x, w1, name="up"), approximate="tanh", name="h")
    return tg.linear(h, w2, name="down")


@tg.spec
def gated(M=128, H=512, I=344, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    w1 = tg.weight("w1", (2 * I, H), dtype)
    w2 = tg.weight("w2", (H, I), dtype)
    gate, up = tg.linear(x, w1, name="gate_up").chunk(2)
    return tg.linear(tg.mul(tg.silu(gate), up, name="h"), w2, name="down")


@tg.spec
def gate(M=128, H=72, I=101, dtype="bfloat16"):
    """h = silu(x w1ᵀ) · x w2ᵀ"""
    x, w = tg.input("x", (M, H), dtype), tg.weight("w", (2 * I, H), dtype)
    left, right = tg.linear(x, w, name="pair").chunk(2)
    return tg.mul(tg.silu(left), right, name="h")


@tg.spec
def block(M=128, H=256, I=512, dtype="bfloat16"):
    """Bias, erf GeLU, a residual, a scale."""
    x = tg.input("x", (M, H), dtype)
    w1, b1 = tg.weight("w1", (I, H), dtype), tg.weight("b1", (I,), dtype)
    w2, b2 = tg.weight("w2", (H, I), dtype), tg.weight("b2", (H,), dtype)
    h = tg.gelu(tg.linear(x, w1, b1, name="up"), name="h")
    return tg.add(tg.scale(tg.linear(h, w2, b2, name="down"), 0.5), x, name="y")


@tg.spec
def biased(M=128, N=256, K=512, dtype="bfloat16"):
    """y = gelu(x wᵀ + b)"""
    x, w, b = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), tg.weight("b", (N,), dtype)
    return tg.gelu(tg.linear(x, w, b, name="y"), name="g")


@tg.spec
def added(M=128, N=256, K=512, dtype="bfloat16"):
    """y = gelu(x wᵀ + b) + r"""
    x, r = tg.input("x", (M, K), dtype), tg.input("r", (M, N), dtype)
    w, b = tg.weight("w", (N, K), dtype), tg.weight("b", (N,), dtype)
    return tg.add(tg.gelu(tg.linear(x, w, b, name="y"), name="g"), r, name="z")


@tg.spec
def viewed(M=128, N=77, K=72, dtype="bfloat16"):
    """y = x wᵀ + r, r some columns of a wider tensor, from an odd one on"""
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype)
    _, r, _ = tg.input("z", (M, N + 4), dtype).split([1, N, 3])
    return tg.add(tg.linear(x, w, name="y"), r, name="sum")


@tg.spec
def chain(M=64, H=256, dtype="bfloat16"):
    """Four GeMMs, one after the other; the last adds what the second made."""
    h = tg.input("x", (M, H), dtype)
    w = [tg.weight(f"w{n}", (H, H), dtype) for n in range(4)]
    a = tg.relu(tg.linear(h, w[0], name="first"), name="a")
    b = tg.relu(tg.linear(a, w[1], name="second"), name="b")
    c = tg.relu(tg.linear(b, w[2], name="third"), name="c")
    return tg.add(tg.linear(c, w[3], name="fourth"), b, name="y")


@tg.spec
def fan(M=64, H=256, I=384, dtype="bfloat16"):
    """One activation into three weights, then a fan-in: y = ((x wqᵀ) + silu(x wkᵀ)) woᵀ + x wvᵀ."""
    x = tg.input("x", (M, H), dtype)
    wq, wk = tg.weight("wq", (I, H), dtype), tg.weight("wk", (I, H), dtype)
    wv, wo = tg.weight("wv", (H, H), dtype), tg.weight("wo", (H, I), dtype)
    q = tg.linear(x, wq, name="q")
    k = tg.add(tg.silu(tg.linear(x, wk, name="k")), q, name="qk")
    v = tg.linear(x, wv, name="v")
    return tg.add(tg.linear(k, wo, name="o"), v, name="y")


@dataclass(frozen=True)
class Case:
    """A program at a size, cut in one way. sms: of the GPU that the emulator plays."""

    name: str
    spec: Any
    sizes: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    packed: bool = False
    sms: int = 4

    @property
    def program(self) -> Program:
        return self.spec(**self.sizes)

    @cached_property
    def _plans(self) -> dict[tuple[str | int, str], Plan]:
        return {}

    def plan(self, sms: str | int = "h200", target: str = "auto") -> Plan:
        """Made once: many tests ask for it."""
        if (sms, target) not in self._plans:
            self._plans[sms, target] = tg.plan(self.program, sms, target=target, **self.options)
        return self._plans[sms, target]


def both(
    a: str,
    b: str,
    tile_a: tuple[int, ...],
    tile_b: tuple[int, ...],
    parts_a: Any = 1,
    parts_b: Any = 1,
    **more: Any,
) -> dict[str, Any]:
    return {"tiles": {a: tile_a, b: tile_b}, "cluster": {a: parts_a, b: parts_b}, **more}


CASES = [
    Case("one tile", gemm, {}, {"tiles": {"y": (128, 256, 64)}}),
    Case("one gemm, 64 rows", gemm, {"M": 17, "N": 1000, "K": 520}, {"tiles": {"y": (64, 96, 64)}}),
    Case("one gemm, 256 rows", gemm, {"M": 1000, "N": 1000, "K": 1032}, {"tiles": {"y": (256, 128, 64)}}),
    Case("one gemm, 256 x 176", gemm, {"M": 1000, "N": 1000, "K": 1032}, {"tiles": {"y": (256, 176, 64)}}),
    Case("one gemm, wide steps", gemm, {"M": 129, "N": 520, "K": 1000}, {"tiles": {"y": (128, 128, 128)}}),
    Case(
        "one gemm, rows shared",
        gemm,
        {"M": 1000, "N": 1000, "K": 1032},
        {"tiles": {"y": (256, 256, 64)}, "cluster": {"y": "2:m"}},
    ),
    Case(
        "one gemm, columns shared",
        gemm,
        {"M": 1000, "N": 1000, "K": 1032},
        {"tiles": {"y": (128, 352, 64)}, "cluster": {"y": "2:n"}},
    ),
    Case(
        "one gemm, steps shared",
        gemm,
        {"M": 300, "N": 1000, "K": 1032},
        {"tiles": {"y": (128, 192, 64)}, "cluster": {"y": 2}},
    ),
    Case("one gemm, 192 rows", gemm, {"M": 500, "N": 200, "K": 520}, {"tiles": {"y": (192, 96, 64)}}),
    Case("one gemm, 130 of 192 rows", gemm, {"M": 130, "N": 200, "K": 520}, {"tiles": {"y": (192, 176, 64)}}),
    Case(
        "one gemm, a warpgroup idle", gemm, {"M": 300, "N": 200, "K": 520}, {"tiles": {"y": (256, 104, 64)}}
    ),
    Case("residual by TMA", added, {"M": 500, "N": 200, "K": 520}, {"tiles": {"y": (192, 96, 64)}}),
    Case(
        "residual by TMA, steps shared",
        added,
        {"M": 300, "N": 1000, "K": 520, "dtype": "float16"},
        {"tiles": {"y": (128, 192, 64)}, "cluster": {"y": 2}},
    ),
    Case("swapped, gelu, a bias", biased, {"M": 267, "N": 304, "K": 200}, {"tiles": {"y": (104, 128, 64)}}),
    Case(
        "swapped, a bias, an eighth over",
        biased,
        {"M": 130, "N": 312, "K": 200, "dtype": "float16"},
        {"tiles": {"y": (104, 128, 64)}},
    ),
    Case("swapped, a residual", added, {"M": 267, "N": 304, "K": 200}, {"tiles": {"y": (72, 128, 64)}}),
    Case("swapped, 72 rows", gemm, {"M": 267, "N": 304, "K": 520}, {"tiles": {"y": (72, 128, 64)}}),
    Case("swapped, 64 columns", gemm, {"M": 130, "N": 200, "K": 264}, {"tiles": {"y": (144, 64, 64)}}),
    Case(
        "swapped, 256 columns, drawn",
        gemm,
        {"M": 267, "N": 600, "K": 264},
        {"tiles": {"y": (88, 256, 64)}, "scheduling": "dynamic"},
    ),
    Case(
        "swapped, many tiles of an SM, more blocks than buffers",
        gemm,
        {"M": 267, "N": 600, "K": 136},
        {"tiles": {"y": (152, 256, 64)}},
        sms=2,
    ),
    Case("swapped gate, 64 columns", gate, {"M": 267, "I": 304}, {"tiles": {"pair": (96, 64, 64)}}),
    Case(
        "swapped gate, many tiles of an SM",
        gate,
        {"M": 267, "I": 304, "dtype": "float16"},
        {"tiles": {"pair": (120, 128, 64)}},
        sms=2,
    ),
    Case(
        "swapped, wide steps",
        gemm,
        {"M": 75, "N": 520, "K": 520, "dtype": "float16"},
        {"tiles": {"y": (80, 128, 128)}},
        packed=True,
    ),
    Case(
        "swapped pairs, rows shared",
        gemm,
        {"M": 267, "N": 304, "K": 264},
        {"tiles": {"y": (144, 128, 64)}, "cluster": {"y": "2:m"}},
    ),
    Case(
        "swapped mlp, columns shared",
        mlp,
        {"M": 150, "I": 384},
        both("up", "down", (80, 256, 64), (80, 512, 64), "2:n", "2:n"),
        packed=True,
    ),
    Case(
        "swapped gated, beside one that is not",
        gated,
        {"M": 145},
        both("gate_up", "down", (48, 64, 64), (128, 96, 64)),
    ),
    Case("swapped block", block, {"M": 129}, both("up", "down", (136, 128, 64), (48, 64, 64))),
    Case(
        "swapped, two CTAs, steps shared",
        gemm,
        {"M": 267, "N": 304, "K": 584},
        {"tiles": {"y": (112, 128, 64)}, "cluster": {"y": "2:km"}},
    ),
    Case(
        "swapped, two CTAs, steps shared, 64 columns, drawn",
        gemm,
        {"M": 190, "N": 304, "K": 264, "dtype": "float16"},
        {"tiles": {"y": (112, 64, 64)}, "cluster": {"y": "2:km"}, "scheduling": "dynamic"},
        packed=True,
    ),
    Case(
        "swapped, two CTAs, steps shared, 256 columns, a residual",
        added,
        {"M": 130, "N": 600, "K": 264},
        {"tiles": {"y": (80, 256, 64)}, "cluster": {"y": "2:km"}},
    ),
    Case(
        "swapped, four CTAs, steps shared, gelu, a bias",
        biased,
        {"M": 181, "N": 312, "K": 520},
        {"tiles": {"y": (96, 128, 64)}, "cluster": {"y": "4:km"}},
        packed=True,
        sms=12,
    ),
    Case(
        "swapped, five CTAs, steps shared, a residual",
        added,
        {"M": 130, "N": 600, "K": 1032},
        {"tiles": {"y": (80, 256, 64)}, "cluster": {"y": "5:km"}},
        packed=True,
        sms=15,
    ),
    Case(
        "swapped, six CTAs, steps shared, 64 columns",
        gemm,
        {"M": 200, "N": 200, "K": 584},
        {"tiles": {"y": (144, 64, 64)}, "cluster": {"y": "6:km"}},
        sms=18,
    ),
    Case(
        "swapped, four CTAs, steps shared, 64 columns",
        gemm,
        {"M": 200, "N": 200, "K": 584},
        {"tiles": {"y": (160, 64, 64)}, "cluster": {"y": "4:km"}},
        sms=12,
    ),
    Case(
        "swapped block, steps shared",
        block,
        {"M": 129},
        both("up", "down", (144, 128, 64), (48, 64, 64), "2:km", "2:km"),
    ),
    Case(
        "swapped gated, steps shared, beside one that is not",
        gated,
        {"M": 145},
        both("gate_up", "down", (48, 64, 64), (128, 96, 64), "2:km", 2),
    ),
    Case(
        "clusters of 2 x 2",
        gemm,
        {"M": 600, "N": 304, "K": 264},
        {"tiles": {"y": (256, 160, 64)}, "cluster": {"y": "2x2"}},
        sms=16,
    ),
    Case(
        "clusters of 2 x 4, drawn",
        gemm,
        {"M": 300, "N": 600, "K": 264},
        {"tiles": {"y": (256, 288, 64)}, "cluster": {"y": "2x4"}, "scheduling": "dynamic"},
        packed=True,
        sms=20,
    ),
    Case(
        "clusters of 2 x 2, CTAs without rows and columns",
        gemm,
        {"M": 300, "N": 224, "K": 264},
        {"tiles": {"y": (256, 128, 64)}, "cluster": {"y": "2x2"}},
        sms=8,
    ),
    Case(
        "more columns than there are",
        gemm,
        {"M": 300, "N": 200, "K": 264},
        {"tiles": {"y": (128, 256, 64)}},
    ),
    Case(
        "clusters of 4 x 2, swapped",
        gemm,
        {"M": 500, "N": 600, "K": 264},
        {"tiles": {"y": (288, 256, 64)}, "cluster": {"y": "4x2"}},
        sms=20,
    ),
    Case(
        "four CTAs share rows",
        gemm,
        {"M": 600, "N": 104, "K": 264},
        {"tiles": {"y": (768, 80, 64)}, "cluster": {"y": "4:m"}},
        sms=16,
    ),
    Case(
        "mlp, four CTAs share columns",
        mlp,
        {"M": 150, "I": 384},
        both("up", "down", (128, 192, 64), (64, 256, 64), "4:n", "4:n"),
        sms=16,
    ),
    Case(
        "four CTAs, steps shared",
        gemm,
        {"M": 300, "N": 1000, "K": 1096},
        {"tiles": {"y": (128, 192, 64)}, "cluster": {"y": "4:k"}},
        sms=12,
    ),
    Case(
        "four CTAs, steps shared, 64 rows, drawn",
        gemm,
        {"M": 130, "N": 200, "K": 520, "dtype": "float16"},
        {"tiles": {"y": (64, 128, 64)}, "cluster": {"y": "4:k"}, "scheduling": "dynamic"},
        sms=12,
    ),
    Case(
        "three CTAs, steps shared",
        gemm,
        {"M": 300, "N": 1000, "K": 1096},
        {"tiles": {"y": (256, 96, 64)}, "cluster": {"y": "3:k"}},
        packed=True,
        sms=12,
    ),
    Case(
        "six CTAs, steps shared, 64 rows, drawn",
        gemm,
        {"M": 130, "N": 200, "K": 1032, "dtype": "float16"},
        {"tiles": {"y": (64, 96, 64)}, "cluster": {"y": "6:k"}, "scheduling": "dynamic"},
        sms=18,
    ),
    Case(
        "eight CTAs, steps shared, warpgroups alternate",
        gemm,
        {"M": 17, "N": 200, "K": 1032},
        {"tiles": {"y": (64, 64, 64)}, "cluster": {"y": "8:k"}},
        packed=True,
        sms=18,
    ),
    Case(
        "eight CTAs, steps shared, 256 rows, residual",
        block,
        {"M": 300, "H": 520, "I": 520},
        both("up", "down", (256, 64, 64), (192, 128, 64), "8:k", "8:k"),
        sms=18,
    ),
    Case(
        "gated, four CTAs, steps shared",
        gated,
        {"M": 70, "I": 200},
        both("gate_up", "down", (64, 32, 64), (64, 64, 64), "4:k", "4:k"),
        packed=True,
        sms=12,
    ),
    Case(
        "192 rows, rows shared",
        gemm,
        {"M": 600, "N": 200, "K": 520},
        {"tiles": {"y": (384, 80, 64)}, "cluster": {"y": "2:m"}},
    ),
    Case(
        "mlp, 192 rows, steps and columns shared",
        mlp,
        {"M": 200, "I": 384},
        both("up", "down", (192, 96, 64), (192, 208, 64), 2, "2:n"),
        packed=True,
    ),
    Case(
        "gated, 192 and 256 rows, partly empty",
        gated,
        {"M": 145},
        both("gate_up", "down", (192, 48, 64), (256, 96, 64)),
        packed=True,
    ),
    Case(
        "split sum",
        mlp,
        {"M": 129},
        {**both("up", "down", (128, 64, 64), (128, 64, 64)), "split_k": {"up": 3}},
    ),
    Case(
        "mlp, M = 1",
        mlp,
        {"M": 1},
        both("up", "down", (64, 64, 64), (64, 128, 64), 2, "2:n", scheduling="static"),
        packed=True,
    ),
    Case(
        "mlp, M = 17, static",
        mlp,
        {"M": 17},
        both("up", "down", (64, 32, 64), (64, 64, 64), scheduling="lists"),
        packed=True,
    ),
    Case(
        "mlp, M = 64, deep steps",
        mlp,
        {"M": 64},
        both("up", "down", (64, 32, 128), (64, 64, 128), 2, 2),
        packed=True,
    ),
    Case(
        "mlp, M = 128, steps shared",
        mlp,
        {"M": 128},
        both("up", "down", (128, 96, 64), (128, 192, 64), 2, "2:n", scheduling="static"),
        packed=True,
    ),
    Case(
        "mlp, M = 1000, tile policy",
        mlp,
        {"M": 1000},
        both("up", "down", (128, 64, 64), (128, 128, 64), policies={"h": "tile"}),
    ),
    Case(
        "mlp, M = 1000, bands",
        mlp,
        {"M": 1000},
        both("up", "down", (128, 64, 64), (128, 128, 64), order="banded:4", scheduling="lists"),
    ),
    Case(
        "mlp, rows shared",
        mlp,
        {"M": 1000},
        both("up", "down", (256, 128, 64), (256, 256, 64), "2:m", "2:m"),
    ),
    Case(
        "mlp, columns shared",
        mlp,
        {"M": 1000, "dtype": "float16"},
        both("up", "down", (128, 128, 64), (256, 256, 64), "2:n", "2:n", scheduling="static"),
    ),
    Case(
        "gated, M = 1",
        gated,
        {"M": 1},
        both("gate_up", "down", (64, 48, 64), (64, 96, 64), 2, "2:n", scheduling="static"),
        packed=True,
    ),
    Case(
        "gated, odd steps shared",
        gated,
        {"M": 17, "H": 320},
        both("gate_up", "down", (64, 48, 64), (64, 96, 64), 2, 2),
        packed=True,
    ),
    Case(
        "gated, M = 64, steps shared, activations to both",
        gated,
        {"M": 64},
        both("gate_up", "down", (64, 48, 64), (64, 128, 64), 2, "2:n", scheduling="static"),
        packed=True,
    ),
    Case(
        "mlp, odd steps shared twice",
        mlp,
        {"M": 100, "H": 320, "I": 448},
        both("up", "down", (128, 64, 64), (128, 64, 64), 2, 2),
    ),
    Case("gated, M = 129", gated, {"M": 129}, both("gate_up", "down", (128, 88, 64), (128, 128, 64))),
    Case(
        "gated, rows shared",
        gated,
        {"M": 1000},
        both("gate_up", "down", (256, 96, 64), (256, 128, 64), "2:m", "2:m"),
    ),
    Case(
        "gated, steps shared, 128 rows",
        gated,
        {"M": 128},
        both("gate_up", "down", (128, 48, 64), (128, 96, 64), 2, 2),
        packed=True,
    ),
    Case("block", block, {"M": 129}, both("up", "down", (128, 96, 64), (128, 64, 64))),
    Case(
        "block, 64 rows, float16",
        block,
        {"M": 33, "dtype": "float16"},
        both("up", "down", (64, 96, 64), (64, 64, 64), 2, 2),
    ),
    Case("chain of four", chain, {"M": 100}),
    Case("fan", fan, {"M": 200}),
    Case("fan, M = 1", fan, {"M": 1}),
]
# math warpgroups that take turns, which only a Hopper kernel has
# results that are no whole 16-byte units, which sm_80 does not store
UNALIGNED = [
    *(
        Case(f"{n} columns, {m} rows", added, {"M": m, "N": n, "K": 72})
        for m, n in ((1, 1), (17, 10), (64, 101), (150, 77), (300, 1001), (400, 77), (1000, 2))
    ),
    *(
        Case(f"{n} columns, {name}, {of.name}", of, {"M": 150, "N": n, "K": 136, "dtype": dtype}, options)
        for name, of, dtype, options in (
            ("128 rows", added, "float16", {"tiles": {"y": (128, 96, 64)}}),
            ("swapped", biased, "bfloat16", {"tiles": {"y": (144, 128, 64)}}),
            ("swapped", added, "bfloat16", {"tiles": {"y": (80, 256, 64)}}),
            ("a pair, steps shared", added, "bfloat16", {"tiles": {"y": (256, 96, 64)}, "cluster": {"y": 2}}),
        )
        for n in (301, 302)
    ),
    Case("a residual from column 1", viewed, {}),
    Case("a residual from column 1, 78 columns", viewed, {"N": 78}),
    Case("a residual from column 1, 80 columns, swapped", viewed, {"N": 80, "M": 90}),
    Case("gated, 101 columns", gate, {"M": 150}),
    Case("77 columns, packed", added, {"M": 17, "N": 77, "K": 136}, packed=True),
]
IN_TURN = [
    *(
        Case(
            f"{n} columns, in turn",
            added,
            {"M": 150, "N": n, "K": 136},
            {"tiles": {"y": (128, 96, 64)}, "pingpong": {"y": True}},
        )
        for n in (301, 302)
    ),
    Case(
        "in turn",
        gemm,
        {"M": 1300, "N": 1000, "K": 136},
        {"tiles": {"y": (128, 72, 64)}, "pingpong": {"y": True}},
    ),
    Case(
        "in turn, 192 rows, drawn",
        gemm,
        {"M": 1540, "N": 2120, "K": 72, "dtype": "float16"},
        {"tiles": {"y": (192, 128, 64)}, "pingpong": {"y": True}, "scheduling": "dynamic"},
        sms=20,
    ),
    Case(
        "in turn, one step",
        gemm,
        {"M": 1300, "N": 2120, "K": 40},
        {"tiles": {"y": (128, 64, 64)}, "pingpong": {"y": True}},
        sms=16,
    ),
    Case(
        "in turn, residual",
        added,
        {"M": 1300, "N": 1000, "K": 72},
        {"tiles": {"y": (128, 80, 64)}, "pingpong": {"y": True}},
    ),
    Case(
        "in turn, rows shared",
        added,
        {"M": 1430, "N": 1000, "K": 200},
        {"tiles": {"y": (256, 128, 64)}, "cluster": {"y": "2:m"}, "pingpong": {"y": True}},
        sms=8,
    ),
    Case(
        "in turn, swapped",
        gemm,
        {"M": 1300, "N": 1000, "K": 136},
        {"tiles": {"y": (72, 64, 64)}, "pingpong": {"y": True}},
    ),
    Case(
        "in turn, swapped, two blocks, residual",
        added,
        {"M": 730, "N": 328, "K": 200},
        {"tiles": {"y": (120, 128, 64)}, "pingpong": {"y": True}},
        sms=4,
    ),
    Case(
        "in turn, swapped, columns shared, float16",
        gemm,
        {"M": 333, "N": 600, "K": 264, "dtype": "float16"},
        {"tiles": {"y": (104, 128, 64)}, "cluster": {"y": "2:n"}, "pingpong": {"y": True}},
        sms=6,
    ),
    Case(
        "in turn, swapped, steps of 128",
        gemm,
        {"M": 333, "N": 200, "K": 456},
        {"tiles": {"y": (88, 64, 128)}, "pingpong": {"y": True}},
        sms=3,
    ),
]
BY_GPC = [
    Case(
        "lists by GPC, swapped",
        gemm,
        {"M": 130, "N": 200, "K": 4104},
        {"tiles": {"y": (48, 64, 64)}},
        sms=14,
    ),
    Case(
        "lists by GPC, in turn, a residual",
        added,
        {"M": 300, "N": 136, "K": 4096},
        {"tiles": {"y": (72, 64, 64)}, "pingpong": {"y": True}},
        sms=15,
    ),
    Case(
        "lists by GPC, several tiles each",
        gemm,
        {"M": 310, "N": 456, "K": 1032},
        {"tiles": {"y": (160, 128, 64)}},
        sms=3,
    ),
]
HOPPER = [*CASES, *IN_TURN, *UNALIGNED, *BY_GPC]
