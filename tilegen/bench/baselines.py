"""What people use today for the same program: torch, op by op, in the storage type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tilegen.ops.base import Bound, TileOp
from tilegen.ops.pointwise import evaluate
from tilegen.reference import plan_view, view
from tilegen.spec import Call, Program


def eager(program: Program, arguments: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """A function that runs the program with torch's own ops on the given arguments."""
    held = {t.name: plan_view(t, a) for t, a in zip(program.arguments, arguments, strict=True)}

    def run() -> Any:
        values = dict(held)
        for c in program.calls:
            values[c.result] = _call(program, c, values)
        results = [values[name] for name in program.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    return run


def _call(program: Program, c: Call, values: dict[str, torch.Tensor]) -> torch.Tensor:
    b = Bound(TileOp(c.name, c.kind, c.operands, c.result, c.attributes), {t.name: t for t in program.tensors})
    x = [view(values[o.tensor], o) for o in c.operands]
    result = evaluate(b.expression, {f"e{n}": o for n, o in enumerate(x)}) if c.kind == "pointwise" else _OPS[c.kind](b, *x)
    return result.reshape(b.out)


def _matmul(b: Bound, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x.reshape(b.batch, -1, x.shape[1]), y.reshape(b.b_batch, -1, y.shape[1])
    return (x.mT if b.transpose_a else x) @ (y.mT if b.transpose_b else y)


def _conv2d(b: Bound, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, b.stride, b.padding, b.dilation).permute(0, 2, 3, 1)


def _softmax(b: Bound, x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(b.kind.reference(b, [x])[0])


def _attention(b: Bound, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
    def heads(t: torch.Tensor, length: int, n: int) -> torch.Tensor:
        return t.reshape(b.batch, length, n, b.head_dim).transpose(1, 2)

    q, k, v = heads(q, b.q_len, b.heads), heads(k, b.k_len, b.kv_heads), heads(v, b.k_len, b.kv_heads)
    mask = None
    if at is not None:
        seen = int(at[0]) + b.q_len
        k, v = k[:, :, :seen], v[:, :, :seen]
    if b.causal and k.shape[2] != b.q_len and b.q_len > 1:
        mask = torch.ones(b.q_len, k.shape[2], dtype=torch.bool).tril(k.shape[2] - b.q_len)
    plain = b.causal and mask is None and b.q_len > 1
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=plain, scale=b.scale, enable_gqa=b.heads != b.kv_heads)
    return y.transpose(1, 2)


def _append(b: Bound, cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
    first = b.at if at is None else int(at[0])
    cache.view(b.batch, b.max_len, -1)[:, first : first + b.seq] = x.reshape(b.batch, b.seq, -1)
    return cache


def _rope(b: Bound, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
    operands: list[Any] = [x.float()] if at is None else [x.float(), int(at[0])]
    return torch.as_tensor(b.kind.reference(b, operands)[0]).to(x.dtype)


_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda b, x, w: F.linear(x, w),
    "matmul": _matmul,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "attention": _attention,
    "append": _append,
    "rope": _rope,
    "rms_norm": lambda b, x, w: F.rms_norm(x, x.shape[-1:], w, b.eps),
    "layer_norm": lambda b, x, w, bias: F.layer_norm(x, x.shape[-1:], w, bias, b.eps),
    "max_pool2d": lambda b, x: F.max_pool2d(x.permute(0, 3, 1, 2), b.window, b.stride, b.padding).permute(0, 2, 3, 1),
    "global_avg_pool": lambda b, x: x.float().mean(dim=(1, 2)).to(x.dtype),
}
