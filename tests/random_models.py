"""Random blocks of PyTorch, of what models do: linears, norms, residuals, heads in any spelling, views of
columns, numbers and weights element by element, images and pools.

    python -m tests.random_models --count 200      # each is imported and held against PyTorch; wrong are told
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[Tensor], Tensor]


class Drawn(nn.Module):
    """Steps that were drawn, one after the other; `told` names them."""

    def __init__(self, seed: int, images: bool):
        super().__init__()
        self.chance, self.told, self.steps = random.Random(seed), [], []
        torch.manual_seed(seed)
        self.width = self.chance.choice([16, 24, 48])
        kinds = self._of_images() if images else self._of_rows()
        for _ in range(self.chance.randint(2, 6)):
            name, make = self.chance.choice(kinds)
            self.told.append(name)
            self.steps.append(make())
        if images:
            self.steps.append(self._leave_image())

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x

    def _weight(self, *shape: int) -> nn.Parameter:
        made = nn.Parameter(torch.randn(*shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0))
        self.register_parameter(f"w{len(list(self.parameters()))}", made)
        return made

    def _module(self, module: nn.Module) -> nn.Module:
        self.add_module(f"m{len(list(self.children()))}", module.eval())
        return module

    # --- rows ---------------------------------------------------------------------------------------------

    def _of_rows(self) -> list[tuple[str, Callable[[], Step]]]:
        return [
            ("linear", self._linear),
            ("gated", self._gated),
            ("int8", self._int8),
            ("norm", self._norm),
            ("attention", self._attention),
            ("numbers", self._numbers),
            ("vectors", self._vectors),
            ("columns", self._columns),
            ("matmul", self._matmul),
            ("softmax", lambda: lambda x: x.softmax(-1)),
            ("numbers of rows", self._of_row),
            ("log_softmax", lambda: lambda x: torch.maximum(x.log_softmax(-1), 0.5 * x)),
        ]

    def _linear(self) -> Step:
        n, bias = self.chance.choice([16, 40, self.width]), self.chance.random() < 0.5
        up, down = (self._module(nn.Linear(*s, bias=bias)) for s in ((self.width, n), (n, self.width)))
        act = self.chance.choice(
            [F.relu, F.silu, F.gelu, torch.sigmoid, lambda a: F.gelu(a, approximate="tanh"), torch.tanh,
             F.softplus, F.hardswish, F.relu6, lambda a: F.leaky_relu(a, 0.2), lambda a: a / (1 + a.abs())]
        )
        if self.chance.random() < 0.5:
            return lambda x: down(act(up(x))) + x
        return lambda x: down(act(up(x).view(-1, n)).view(*x.shape[:-1], n))

    def _gated(self) -> Step:
        n = self.chance.choice([16, 32])
        a, b = (self._module(nn.Linear(self.width, n, bias=False)) for _ in range(2))
        c = self._module(nn.Linear(n, self.width))
        return lambda x: c(F.silu(a(x)) * b(x))

    def _int8(self) -> Step:
        """Back to the width, by weights of one byte, dequantized behind the product or before it."""
        w = torch.randint(-128, 128, (self.width, self.width), dtype=torch.int8)
        self.register_buffer(f"b{len(list(self.buffers()))}", w)
        scales = self._weight(self.width)
        if self.chance.random() < 0.7:
            return lambda x: F.linear(x, w.to(x.dtype)) * (0.01 * scales)
        return lambda x: F.linear(x, w.to(x.dtype) * (0.01 * scales[:, None]))

    def _norm(self) -> Step:
        kind = self.chance.randrange(3)
        if kind == 0:
            return self._module(nn.LayerNorm(self.width))
        if kind == 1:
            return self._module(nn.RMSNorm(self.width, eps=1e-5))
        w = self._weight(self.width)
        return lambda x: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def _attention(self) -> Step:
        heads = self.chance.choice([h for h in (1, 2, 4) if self.width % h == 0])
        d, causal = self.width // heads, self.chance.random() < 0.5
        out = self._module(nn.Linear(self.width, self.width, bias=False))
        if self.chance.random() < 0.5:
            qkv = self._module(nn.Linear(self.width, 3 * self.width))

            def packed(x: Tensor) -> Tensor:
                b, s, _ = x.shape
                q, k, v = qkv(x).reshape(b, s, 3, heads, d).permute(2, 0, 3, 1, 4).unbind(0)
                a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                return out(a.transpose(1, 2).reshape(b, s, -1)) + x

            return packed
        kv = self.chance.choice([h for h in (1, 2, 4) if heads % h == 0])
        twice = self.chance.random() < 0.5
        wq, wk, wv = (self._module(nn.Linear(self.width, n * d, bias=False)) for n in (heads, kv, kv))

        def apart(x: Tensor) -> Tensor:
            q, k, v = (w(x).unflatten(-1, (-1, d)).transpose(1, 2) for w in (wq, wk, wv))
            times = heads // kv
            k, v = (a.repeat_interleave(times, 1) if twice else _repeated(a, times) for a in (k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return out(a.permute(0, 2, 1, 3).flatten(2))

        return apart

    def _numbers(self) -> Step:
        n = round(self.chance.uniform(-2, 2), 2) or 1.0
        return self.chance.choice(
            [lambda x: x * n, lambda x: n + x, lambda x: n - x, lambda x: x - n, lambda x: x / 3 - x * n,
             lambda x: -x + x.pow(2), lambda x: (x - n) * torch.sigmoid(1.7 * x),
             lambda x: x.abs().add(0.1).log() - x.clamp(-0.5, n + 3).exp(),
             lambda x: n / (x.abs() + 1).sqrt()]
        )  # fmt: skip

    def _vectors(self) -> Step:
        w, b = self._weight(self.width), self._weight(self.width)
        return self.chance.choice([lambda x: x * w + b, lambda x: b - x * w, lambda x: x / (w.abs() + 1)])

    def _of_row(self) -> Step:
        return self.chance.choice(
            [
                lambda x: x - x.mean(-1, keepdim=True),
                lambda x: x * x.amax(-1, keepdim=True).sigmoid(),
                lambda x: x.logsumexp(-1, keepdim=True) - x,
                lambda x: torch.cat([x.topk(5, -1).values, x[..., 5:]], -1),
                lambda x: torch.cat([x[..., 4:], x[..., :4] * x.sum(-1, keepdim=True)], -1),
            ]
        )

    def _columns(self) -> Step:
        half = self.width // 2
        w = self._module(nn.Linear(self.width, 2 * self.width))
        return self.chance.choice(
            [
                lambda x: w(x).chunk(2, -1)[1] + x,
                lambda x: w(x)[..., half : half + self.width] * x,
                lambda x: torch.mul(*w(x).split([self.width, self.width], dim=-1)),
                lambda x: w(x).view(*x.shape[:-1], 2, self.width).select(-2, 0),
            ]
        )

    def _matmul(self) -> Step:
        w, b = self._weight(self.width, self.width), self._weight(self.width)
        return self.chance.choice(
            [lambda x: torch.addmm(b, x.reshape(-1, self.width), w).view(x.shape), lambda x: x @ w]
        )

    # --- images -------------------------------------------------------------------------------------------

    def _of_images(self) -> list[tuple[str, Callable[[], Step]]]:
        return [
            ("conv", lambda: self._conv(residual=False)),
            ("residual", lambda: self._conv(residual=True)),
            ("pool", lambda: self._pool),
            ("batch norm", lambda: self._batch_norm()),
            ("group norm", lambda: self._module(nn.GroupNorm(self.chance.choice([1, 2, 8]), self.width))),
            ("means", lambda: lambda x: F.avg_pool2d(x, 2) if x.shape[-1] > 4 else x),
            ("upsampling", lambda: lambda x: torch.cat([F.interpolate(F.relu(x), scale_factor=2)[:, :4],
                                                        F.interpolate(x, scale_factor=2)[:, 4:]], 1)),
            ("transposed conv", self._transposed),
            ("numbers", self._numbers),
        ]

    def _transposed(self) -> Step:
        """Twice as many lines and pixels, or as many."""
        size, stride, padding, more = self.chance.choice(
            [(2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0)]
        )
        bias = self.chance.random() < 0.5
        conv = self._module(
            nn.ConvTranspose2d(self.width, self.width, size, stride, padding, more, bias=bias)
        )
        norm = self._batch_norm() if self.chance.random() < 0.5 else nn.Identity()
        return lambda x: norm(conv(x if stride == 1 else self._pool(x)))

    def _pool(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, 1) if x.shape[-1] > 4 else x

    def _batch_norm(self) -> nn.BatchNorm2d:
        norm = self._module(nn.BatchNorm2d(self.width))
        norm.running_mean.normal_(0, 0.3), norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight, 1, 0.2), nn.init.normal_(norm.bias)
        return norm

    def _conv(self, residual: bool) -> Step:
        size = self.chance.choice([1, 3])
        conv = self._module(
            nn.Conv2d(self.width, self.width, size, padding=size // 2, bias=self.chance.random() < 0.5)
        )
        norm = self._batch_norm() if self.chance.random() < 0.6 else nn.Identity()
        if residual:
            return lambda x: F.relu(norm(conv(x)) + x)
        return lambda x: F.relu(norm(conv(x)))

    def _leave_image(self) -> Step:
        last = self._module(nn.Linear(self.width, 10))
        return self.chance.choice(
            [
                lambda x: x,
                lambda x: last(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)),
                lambda x: last(x.mean((2, 3))),
            ]
        )


def _repeated(a: Tensor, times: int) -> Tensor:
    b, h, s, d = a.shape
    return a[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)


def drawn(seed: int) -> tuple[Drawn, Tensor]:
    """A block, and an input of it."""
    images = seed % 4 == 3
    block = Drawn(seed, images).eval()
    shape = (2, block.width, 8, 8) if images else (2, 7, block.width)
    return block, torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def verdict(seed: int) -> str:
    """ "right", or what is wrong; what a spec cannot say is "refused: …"."""
    import tilegen as tg

    block, x = drawn(seed)
    moving: Any = {"x": {0: tg.dim("B", max=3)}} if seed % 2 else None
    try:
        layer = tg.module.from_torch(block, x, dynamic_shapes=moving)
    except tg.SpecError as error:
        return f"refused: {error}"
    with torch.no_grad():
        for given in (x, x[:1]) if moving else (x,):
            a, b = layer(given), block(given)
            if a.shape != b.shape or not float((a - b).norm()) <= 1e-4 * float(b.norm()) + 1e-6:
                return f"wrong: {a.shape} {float((a - b).norm() / b.norm()):.1e} {block.told}"
    return "right"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    o = parser.parse_args()
    found: dict[str, int] = {}
    for seed in range(o.first, o.first + o.count):
        said = verdict(seed)
        found[said.split(":")[0]] = found.get(said.split(":")[0], 0) + 1
        if said != "right":
            print(seed, said, flush=True)
    print(found)


if __name__ == "__main__":
    main()
