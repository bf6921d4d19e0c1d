"""Linears by int8 weights: scales of columns and numbers, rows of any width, tiles whose warps share k."""

from __future__ import annotations

import tilegen as tg
from tests.gpu.gemms import Case


@tg.spec
def int8(M=64, K=128, N=96, dtype="bfloat16"):
    """A product as it is, and times a number with an activation."""
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), "int8")
    y = tg.linear(x, w, name="y")
    return y, tg.relu(tg.linear(x, w, scale_w=0.01, name="z"))


@tg.spec
def dequantized(M=130, K=272, N=200, dtype="bfloat16"):
    """Scales of columns, a bias, an activation and a residual."""
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), "int8")
    columns = tg.weight("columns", (N,), "float32")
    y = tg.linear(x, w, tg.weight("b", (N,), dtype), scale_w=columns, name="y")
    return tg.add(tg.silu(y), tg.input("r", (M, N), dtype), name="z")


@tg.spec
def int8_mlp(M=5, H=256, I=344, dtype="bfloat16"):
    """down(silu(gate) · up): halves of a product's columns, and the row that another op makes."""
    x, pair = tg.input("x", (M, H), dtype), tg.weight("pair", (2 * I, H), "int8")
    gate, up = tg.linear(x, pair, scale_w=0.001, name="gate_up").chunk(2)
    down, columns = tg.weight("down", (H, I), "int8"), tg.weight("columns", (H,), "float32")
    return tg.linear(tg.mul(tg.silu(gate), up, name="h"), down, scale_w=columns, name="y")


INT8 = [
    Case("int8", int8, {}),
    Case("int8, one row", int8, {"M": 1, "K": 1040, "N": 50}),
    Case("int8, 17 rows of float16", int8, {"M": 17, "K": 48, "N": 40, "dtype": "float16"}),
    Case("int8, rows of 77", dequantized, {"M": 17, "K": 77, "N": 33}),
    Case("int8, one number", int8, {"M": 2, "K": 1, "N": 3}),
    Case("int8, scaled", dequantized, {}),
    Case("int8, scaled, 1000 rows of 202", dequantized, {"M": 1000, "K": 202, "N": 136, "dtype": "float16"}),
    Case("int8, float32", dequantized, {"M": 40, "K": 1000, "N": 77, "dtype": "float32"}),
    Case("int8, float32 by bytes", dequantized, {"M": 70, "K": 129, "N": 64, "dtype": "float32"}),
    Case("int8, many columns", dequantized, {"M": 16, "K": 1040, "N": 3200}),
    Case("int8, 32 rows", dequantized, {"M": 32, "K": 1040, "N": 1000}),
    Case("int8, 40 rows", dequantized, {"M": 40, "K": 200, "N": 500, "dtype": "float16"}),
    Case("int8, a gated pair", int8_mlp, {}),
    Case("int8, a gated pair of 300 rows", int8_mlp, {"M": 300, "H": 136, "I": 72, "dtype": "float16"}),
]
