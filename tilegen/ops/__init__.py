"""The ops. A new one is a file here (a function for specs and a Kind) and a template per target."""

from tilegen.ops import attention, conv2d, gemm, norm, pointwise, pool, softmax

__all__ = ["attention", "conv2d", "gemm", "norm", "pointwise", "pool", "softmax"]
