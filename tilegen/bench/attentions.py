"""Attention as torch's users write it: one function for each kernel that they can call, all of the same face.

Each takes the op's attributes and q (B, S, H, D), k and v (B, seen, H_kv, D), and gives (B, S, H, D). causal:
query i sees the keys up to seen - S + i: aligned to the bottom right, as behind a cache.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance

Attention = Callable[..., Any]  # (bound, q, k, v, seen) -> y
BACKENDS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def causal(b: OpInstance) -> bool:
    a = AttentionAttributes.of(b)
    return bool(a.causal) and a.q_len > 1


def sdpa(b: OpInstance, q: Any, k: Any, v: Any, seen: int) -> Any:
    """scaled_dot_product_attention; is_causal is aligned to the top left there, so a mask says it where keys
    were cached."""
    a = AttentionAttributes.of(b)
    mask = (
        torch.ones(a.q_len, seen, dtype=torch.bool).tril(seen - a.q_len)
        if causal(b) and seen != a.q_len
        else None
    )
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    plain = causal(b) and mask is None
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=plain, scale=a.scale, enable_gqa=a.heads != a.kv_heads
    )
    return y.transpose(1, 2)


def flash(b: OpInstance, q: Any, k: Any, v: Any, seen: int) -> Any:
    """torch's FlashAttention kernel itself: bottom right, heads that share keys, keys shared out among SMs,
    no mask."""
    a = AttentionAttributes.of(b)
    forward = torch.ops.aten._flash_attention_forward
    return forward(q, k, v, None, None, a.q_len, seen, 0.0, causal(b), False, scale=a.scale)[0]


def flash3(b: OpInstance, q: Any, k: Any, v: Any, seen: int) -> Any:
    """FlashAttention-3, where flash_attn_interface is installed."""
    a = AttentionAttributes.of(b)
    return _flash3(q, k, v, a.scale, causal(b))


def flashinfer(b: OpInstance, q: Any, k: Any, v: Any, seen: int) -> Any:
    """FlashInfer's decode kernel, where that is installed: each sequence's cache is one page."""
    a = AttentionAttributes.of(b)
    return _flashinfer(q, k, v, float(a.scale))


@torch.fx.wrap
def _flash3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    from flash_attn_interface import flash_attn_func

    y = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal)
    return y[0] if isinstance(y, tuple) else y


_plans: dict[Any, Any] = {}  # FlashInfer's wrappers, planned outside any capture


@torch.fx.wrap
def _flashinfer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    import flashinfer as package

    batch, seen, kv_heads, d = k.shape
    key = (tuple(q.shape), tuple(k.shape), scale, q.dtype)
    if key not in _plans:
        made = package.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(128 << 20, dtype=torch.uint8, device=q.device), "NHD"
        )
        pages = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
        last = torch.full((batch,), seen, dtype=torch.int32, device=q.device)
        made.plan(
            pages,
            pages[:-1],
            last,
            q.shape[2],
            kv_heads,
            d,
            seen,
            q_data_type=q.dtype,
            kv_data_type=k.dtype,
            sm_scale=scale,
        )
        _plans[key] = made
    return _plans[key].run(q.reshape(batch, -1, d), (k, v)).reshape(q.shape)


def installed() -> dict[str, Attention]:
    """The optional kernels that this environment has, by the names of their contenders."""
    packages = {"flash-attn-3": ("flash_attn_interface", flash3), "flashinfer": ("flashinfer", flashinfer)}
    return {name: f for name, (package, f) in packages.items() if importlib.util.find_spec(package)}


class OnBackend:
    """Calls with one backend of scaled_dot_product_attention alone: where it cannot do what is asked, torch
    raises."""

    def __init__(self, call: Callable[..., Any], name: str):
        self.call, self.backend = call, BACKENDS[name]

    def __call__(self, *arguments: Any) -> Any:
        with sdpa_kernel(self.backend):
            return self.call(*arguments)
