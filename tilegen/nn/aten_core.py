"""What torch's dispatcher makes of operators below autograd, as a joint graph has them.

    native_layer_norm → layer_norm     convolution → conv1d, conv2d, conv_transpose2d
    _scaled_dot_product_flash_attention → attention

Of operators with several results the first alone is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilegen.errors import SpecError
from tilegen.nn.aten_images import convolved, convolved_along, transposed
from tilegen.nn.table import TABLE, Entry, Trace, entry
from tilegen.nn.views import View

aten = torch.ops.aten


@entry(aten.native_layer_norm.default)
def _native_layer_norm(t: Trace, x: View, shape: Sequence[int], w: Any, bias: Any, eps: float) -> list[View]:
    return [TABLE[aten.layer_norm.default](t, x, shape, w, bias, eps)]


@entry(aten._fused_rms_norm.default)
def _fused_rms_norm(t: Trace, x: View, shape: Sequence[int], w: Any, eps: float | None) -> list[View]:
    return [TABLE[aten.rms_norm.default](t, x, shape, w, eps)]


@entry(aten.native_group_norm.default)
def _native_group_norm(
    t: Trace, x: View, w: Any, bias: Any, n: int, c: int, pixels: int, groups: int, eps: float
) -> list[View]:
    return [TABLE[aten.group_norm.default](t, x, groups, w, bias, eps)]


@entry(aten.convolution.default)
def _convolution(
    t: Trace,
    x: View,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    turned: bool,
    output_padding: Any,
    groups: int,
    norm: Any = None,
) -> View:
    if len(stride) == 1 and not turned:
        return convolved_along(t, x, w, bias, stride, padding, dilation, groups, norm)
    if len(stride) != 2:
        raise SpecError(f"a convolution over {len(stride)} dimensions; expected images")
    if turned:
        return transposed(t, x, w, bias, stride, padding, output_padding, groups, dilation, norm)
    return convolved(t, x, w, bias, stride, padding, dilation, groups, norm)


@entry(aten.max_pool2d_with_indices.default)
def _max_pool(t: Trace, x: View, *how: Any) -> list[View]:
    return [TABLE[aten.max_pool2d.default](t, x, *how)]


@entry(aten._adaptive_avg_pool2d.default)
def _adaptive_avg_pool(t: Trace, x: View, size: Sequence[int]) -> View:
    return TABLE[aten.adaptive_avg_pool2d.default](t, x, size)


def _attended(masked: bool) -> Entry:
    """Attention of one of torch's kernels; masked: whether a mask and another flag follow the values."""

    def made(
        t: Trace, q: View, k: View, v: View, *how: Any, attn_mask: Any = None, scale: float | None = None
    ) -> list[View]:
        mask, rest = (how[0], how[2:]) if masked else (attn_mask, how)
        dropout, causal = (*rest, *(0.0, False)[len(rest) :])[:2]
        attention: Callable[..., View] = TABLE[aten.scaled_dot_product_attention.default]
        return [attention(t, q, k, v, mask, dropout, causal, scale=scale)]

    return made


@entry(aten._scaled_dot_product_attention_math.default)
def _math(t: Trace, *args: Any, scale: float | None = None, **how: Any) -> list[View]:
    return [TABLE[aten.scaled_dot_product_attention.default](t, *args, scale=scale, **how)]


TABLE |= {
    aten._scaled_dot_product_flash_attention.default: _attended(False),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attended(False),
    aten._scaled_dot_product_efficient_attention.default: _attended(True),
    aten._scaled_dot_product_cudnn_attention.default: _attended(True),
}


def _as(operator: Any) -> Entry:
    return lambda t, *args, **kwargs: TABLE[operator](t, *args, **kwargs)


TABLE |= {
    aten.add.Scalar: _as(aten.add.Tensor),
    aten.sub.Scalar: _as(aten.sub.Tensor),
    aten.mul.Scalar: _as(aten.mul.Tensor),
    aten.div.Scalar: _as(aten.div.Tensor),
}
