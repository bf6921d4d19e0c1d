"""LLaMA-65B feed-forward block, one of 8 tensor-parallel shards: y = (silu(x wgᵀ) · (x wuᵀ)) w2ᵀ, gate and up
in one weight."""

import tilegen as tg


@tg.spec
def llama_mlp(M=256, H=8192, I=2752, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    w1 = tg.weight("w1", (2 * I, H), dtype)  # gate | up
    w2 = tg.weight("w2", (H, I), dtype)
    gate, up = tg.linear(x, w1, name="gate_up").chunk(2)
    h = tg.mul(tg.silu(gate), up, name="h")
    return tg.linear(h, w2, name="down")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
