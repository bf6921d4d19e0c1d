"""A small language model in PyTorch whose blocks become kernels, one line each; its batch changes from call
to call.

    python examples/use_in_a_model.py        # on the GPU if there is one, else on the CPU
"""

import torch
import torch.nn.functional as F
from torch import nn

import tilegen as tg


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(a.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Model(nn.Module):
    def __init__(self, words: int = 1000, width: int = 256, heads: int = 4, depth: int = 2):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = Model().eval().to(device, dtype)
    batches = [torch.randint(0, 1000, (b, 32), device=device) for b in (1, 5, 2, 8)]
    wanted = [model(ids) for ids in batches]

    x = torch.randn(2, 32, 256, device=device, dtype=dtype)  # an example of what a block is called with
    batch = tg.dim("B", max=8)
    for n, block in enumerate(model.blocks):
        model.blocks[n] = tg.module.from_torch(block, x, dynamic_shapes={"x": {0: batch}})

    print(model.blocks[0])
    for ids, before in zip(batches, wanted, strict=True):
        error = (model(ids).float() - before.float()).norm() / before.float().norm()
        print(f"batch {len(ids)}: {error:.1e} from PyTorch's")
        assert error < 2e-2


if __name__ == "__main__":
    main()
