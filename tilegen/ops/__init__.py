"""The ops. A new one is a file here (a function for specs and a Kind) and a template per target."""

from tilegen.frontend.spec import spec
from tilegen.ops import (
    append,
    attention,
    cat,
    conv2d,
    embedding,
    gemm,
    group_norm,
    grouped_conv2d,
    maths,
    norm,
    pointwise,
    pool,
    reduce,
    rope,
    softmax,
    strided_copy,
    upsample,
)

__all__ = [
    "spec",
    "append",
    "attention",
    "cat",
    "conv2d",
    "embedding",
    "gemm",
    "group_norm",
    "grouped_conv2d",
    "maths",
    "norm",
    "pointwise",
    "pool",
    "reduce",
    "rope",
    "softmax",
    "strided_copy",
    "upsample",
]
