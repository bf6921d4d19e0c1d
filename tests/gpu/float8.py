"""Linears of float8_e4m3fn: scales of rows and columns, results of every type, tiles of every form."""

from __future__ import annotations

import tilegen as tg
from tests.gpu.gemms import Case

F8 = "float8_e4m3fn"


@tg.spec
def float8(M=64, K=128, N=96, dtype="bfloat16"):
    """A product as it is, and times a number with an activation."""
    x, w = tg.input("x", (M, K), F8), tg.weight("w", (N, K), F8)
    y = tg.linear(x, w, dtype=dtype, name="y")
    return y, tg.relu(tg.linear(x, w, scale_x=0.5, scale_w=3.0, dtype=dtype, name="z"))


@tg.spec
def scaled(M=130, K=272, N=200, dtype="bfloat16"):
    """Scales of rows and of columns, a bias, an activation and a residual."""
    x, w = tg.input("x", (M, K), F8), tg.weight("w", (N, K), F8)
    rows, columns = tg.input("rows", (M, 1), "float32"), tg.weight("columns", (N,), "float32")
    y = tg.linear(x, w, tg.weight("b", (N,), dtype), scale_x=rows, scale_w=columns, dtype=dtype, name="y")
    return tg.add(tg.silu(y), tg.input("r", (M, N), dtype), name="z")


FLOAT8 = [
    Case("float8", float8, {}),
    Case("float8, one row", float8, {"M": 1, "K": 1040, "N": 50}),
    Case("float8, 17 rows to float16", float8, {"M": 17, "K": 48, "N": 40, "dtype": "float16"}),
    Case("float8, scaled", scaled, {}),
    Case("float8, scaled, to float16", scaled, {"M": 1000, "N": 328, "dtype": "float16"}),
    Case("float8, scaled, to float32, 77 columns", scaled, {"M": 70, "N": 77, "K": 144, "dtype": "float32"}),
    Case("float8, swapped", scaled, {"M": 72, "N": 128, "K": 256}, {"tiles": {"y": (80, 64, 64)}}),
    Case("float8, deep steps", scaled, {"M": 20, "K": 1024}, {"tiles": {"y": (64, 64, 128)}}),
    Case(
        "float8, shared sums",
        scaled,
        {"M": 64, "K": 512},
        {"cluster": {"y": 2}, "tiles": {"y": (64, 64, 64)}},
    ),
    Case("float8, split sums", scaled, {"M": 40, "K": 1024}, {"split_k": {"y": 2}}),
]
