"""Blocks of PyTorch models, spelled as transformers and torchvision spell them, at small sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self, width: int = 48, inner: int = 96):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class GatedMlp(nn.Module):
    def __init__(self, width: int = 64, inner: int = 96):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


def turned(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    other = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    return (q * cos.unsqueeze(1)) + (other * sin.unsqueeze(1))


class Attention(nn.Module):
    """LLaMA's: keys shared by heads, tables of angles."""

    def __init__(self, width: int = 64, heads: int = 4, kv_heads: int = 2, repeats: bool = True):
        super().__init__()
        self.d, self.repeats, self.group = width // heads, repeats, heads // kv_heads
        self.q_proj = nn.Linear(width, heads * self.d, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, kv_heads * self.d, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(heads * self.d, width, bias=False)

    def forward(
        self, x: Tensor, positions: tuple[Tensor, Tensor], attention_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        shape = (*x.shape[:-1], -1, self.d)
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, *positions), turned(k, *positions)
        if self.repeats:
            k, v = (self._repeated(a) for a in (k, v))
        a = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attention_mask, is_causal=attention_mask is None, enable_gqa=not self.repeats
        )
        a = a.transpose(1, 2).contiguous().reshape(*x.shape[:-1], -1)
        return self.o_proj(a), None

    def _repeated(self, a: Tensor) -> Tensor:
        b, h, s, d = a.shape
        return a[:, :, None].expand(b, h, self.group, s, d).reshape(b, h * self.group, s, d)


class DecoderLayer(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(width), RmsNorm(width)
        self.self_attn, self.mlp = Attention(width), GatedMlp(width)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        attended, _ = self.self_attn(
            self.input_layernorm(hidden_states), kwargs["position_embeddings"], attention_mask
        )
        x = hidden_states + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Conv1D(nn.Module):
    """GPT-2's linear, its weight the other way round."""

    def __init__(self, out: int, width: int):
        super().__init__()
        self.out = out
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) * 0.1), nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.out)


class Gpt2Block(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.width, self.heads = width, heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        self.c_fc, self.c_down = Conv1D(4 * width, width), Conv1D(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            a.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)
            for a in self.c_attn(self.ln_1(x)).split(self.width, dim=2)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
        x = x + self.c_proj(a.transpose(1, 2).reshape(x.shape))
        h = self.c_fc(self.ln_2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.c_down(h)


class Bottleneck(nn.Module):
    def __init__(self, inside: int, between: int, stride: int = 1):
        super().__init__()
        out = 4 * between
        self.conv1, self.bn1 = nn.Conv2d(inside, between, 1, bias=False), nn.BatchNorm2d(between)
        self.conv2 = nn.Conv2d(between, between, 3, stride, 1, bias=False)
        self.bn2, self.bn3 = nn.BatchNorm2d(between), nn.BatchNorm2d(out)
        self.conv3, self.relu = nn.Conv2d(between, out, 1, bias=False), nn.ReLU(inplace=True)
        plain = stride == 1 and inside == out
        self.downsample = (
            None
            if plain
            else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        same = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += same
        return self.relu(y)


class Classifier(nn.Module):
    """A convolution, pools, and linears over images and over their means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.wide, self.mean, self.last = nn.Linear(16 * 16, 24), nn.AdaptiveAvgPool2d(1), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(torch.relu(self.conv(x)))
        return self.wide(torch.flatten(y, 1)) + self.last(torch.flatten(self.mean(y), 1))


class Separable(nn.Module):
    """A pixel's channels, then each channel alone, weighed by what the whole image says, as mobile networks
    have them; and groups of channels."""

    def __init__(self, inside: int = 8, between: int = 24):
        super().__init__()
        self.up, self.bn1 = nn.Conv2d(inside, between, 1, bias=False), nn.BatchNorm2d(between)
        self.each = nn.Conv2d(between, between, 5, 1, 2, groups=between, bias=False)
        self.bn2, self.mean = nn.BatchNorm2d(between), nn.AdaptiveAvgPool2d(1)
        self.less, self.more = nn.Conv2d(between, 4, 1), nn.Conv2d(4, between, 1)
        self.down, self.mix = nn.Conv2d(between, inside, 1), nn.Conv2d(inside, inside, 3, 2, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.bn2(self.each(F.silu(self.bn1(self.up(x))))))
        h = h * torch.sigmoid(self.more(F.silu(self.less(self.mean(h)))))
        return self.mix(self.down(h) + x)


class Pixels(nn.Module):
    """A block of ConvNeXt: channels alone, then the channels of each pixel as rows. of_images: these are
    weighed as torchvision's are, after they are images again."""

    def __init__(self, width: int = 16, of_images: bool = False):
        super().__init__()
        self.each = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 40), nn.Linear(40, width)
        self.gamma, self.of_images = nn.Parameter(torch.randn(width)), of_images

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(F.gelu(self.up(self.norm(self.each(x).permute(0, 2, 3, 1)))))
        if self.of_images:
            return x + self.gamma[:, None, None] * h.permute(0, 3, 1, 2)
        return x + (self.gamma * h).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Model:
    """A block, and arguments of it for so many sequences, images or rows."""

    make: Callable[[], nn.Module]
    arguments: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    moving: str  # the argument whose first dimension is so many


def _rows(width: int) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda n: ((torch.randn(n, 9, width),), {})


def _angles(s: int, d: int) -> tuple[Tensor, Tensor]:
    phi = torch.arange(s)[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
    phi = torch.cat((phi, phi), dim=-1)[None]
    return phi.cos(), phi.sin()


class Head(nn.Module):
    """Rows of a table, normed as a model spells it, and scores against the same table."""

    def __init__(self, words: int = 50, width: int = 24):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x - x.mean(-1, keepdim=True)
        x = x / (x * x).sum(-1, keepdim=True).add(1.0).sqrt()
        return F.linear(torch.cat([x, x[..., :24]], -1)[..., :24], self.table.weight)


class Numbers(nn.Module):
    """Numbers of rows, one by one."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        top = x.amax(-1, keepdim=True)
        return torch.maximum(top * 0.5, x), torch.logsumexp(x, 2), x.amin(-1), (x - top).sum(-1)


class Router(nn.Module):
    """Of a mixture of experts: each token's best, their shares, and the scores of all beside the best's."""

    def __init__(self, width: int = 32, experts: int = 12):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = self.gate(x)
        shares, ids = scores.softmax(-1).topk(3)
        first = scores.gather(-1, scores.argmax(-1, keepdim=True))
        taken = scores.gather(2, ids)
        return shares / shares.sum(-1, keepdim=True), ids, scores - first, scores.argmax(2), F.silu(taken)


class UNet(nn.Module):
    """Down and up again, with what was there beside it."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.into, self.norm = nn.Conv2d(8, channels, 3, padding=1), nn.GroupNorm(4, channels)
        self.below, self.up = nn.Conv2d(channels, channels, 3, padding=1), nn.Upsample(scale_factor=2)
        self.learnt = nn.Sequential(nn.ConvTranspose2d(channels, channels, 2, 2), nn.BatchNorm2d(channels))
        self.out = nn.Conv2d(2 * channels, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.norm(self.into(x)))
        below = F.relu(self.below(F.avg_pool2d(h, 2)))
        return self.out(torch.cat([h, self.up(below) + self.learnt(below)], 1))


MODELS = {
    "mlp": Model(Mlp, lambda n: ((torch.randn(n, 48),), {}), "x"),
    "gated_mlp": Model(GatedMlp, _rows(64), "x"),
    "attention": Model(Attention, lambda n: ((torch.randn(n, 9, 64), _angles(9, 16)), {}), "x"),
    "shared_keys": Model(
        lambda: Attention(repeats=False), lambda n: ((torch.randn(n, 9, 64), _angles(9, 16)), {}), "x"
    ),
    "decoder_layer": Model(
        DecoderLayer,
        lambda n: (
            (torch.randn(n, 9, 64),),
            {
                "attention_mask": None,
                "position_ids": torch.arange(9)[None],
                "use_cache": False,
                "position_embeddings": _angles(9, 16),
            },
        ),
        "hidden_states",
    ),
    "gpt2_block": Model(Gpt2Block, _rows(64), "x"),
    "encoder_layer": Model(
        lambda: nn.TransformerEncoderLayer(64, 4, 96, batch_first=True, norm_first=True), _rows(64), "src"
    ),
    "stage": Model(
        lambda: nn.Sequential(Bottleneck(16, 8, 2), Bottleneck(32, 8)),
        lambda n: ((torch.randn(n, 16, 8, 8),), {}),
        "input",
    ),
    "head": Model(Head, lambda n: ((torch.randint(50, (n, 9)),), {}), "ids"),
    "router": Model(Router, _rows(32), "x"),
    "numbers": Model(Numbers, _rows(24), "x"),
    "unet": Model(UNet, lambda n: ((torch.randn(n, 8, 8, 12),), {}), "x"),
    "pixels": Model(Pixels, lambda n: ((torch.randn(n, 16, 7, 9),), {}), "x"),
    "weighed_pixels": Model(lambda: Pixels(of_images=True), lambda n: ((torch.randn(n, 16, 7, 9),), {}), "x"),
    "separable": Model(Separable, lambda n: ((torch.randn(n, 8, 9, 7),), {}), "x"),
    "classifier": Model(Classifier, lambda n: ((torch.randn(n, 8, 7, 7),), {}), "x"),
}


def made(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """A block with random weights and statistics."""
    torch.manual_seed(0)
    module = MODELS[name].make().eval()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.weight, 1.0, 0.2), nn.init.normal_(norm.bias, 0.0, 0.2)
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.normal_(0.0, 0.2), norm.running_var.uniform_(0.5, 2.0)
    return module.to(device, dtype)


def call_of(
    name: str, n: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a block for so many sequences, images or rows."""
    torch.manual_seed(seed)
    given = MODELS[name].arguments(n)
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda a: a.to(device, dtype if a.is_floating_point() else a.dtype), given
    )


def first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
