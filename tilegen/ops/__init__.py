"""The ops. A new one is a file here (a function for specs and a Kind) and a template per target."""

from tilegen.frontend.spec import spec
from tilegen.ops import append, attention, conv2d, gemm, maths, norm, pointwise, pool, reduce, rope, softmax

__all__ = [
    "spec",
    "append",
    "attention",
    "conv2d",
    "gemm",
    "maths",
    "norm",
    "pointwise",
    "pool",
    "reduce",
    "rope",
    "softmax",
]
