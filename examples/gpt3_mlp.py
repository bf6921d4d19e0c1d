"""GPT-3 175B feed-forward block, one of 8 tensor-parallel shards: y = gelu(x w1ᵀ) w2ᵀ."""

import tilegen as tg


@tg.spec
def gpt3_mlp(M=256, H=12288, I=6144, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    w1 = tg.weight("w1", (I, H), dtype)
    w2 = tg.weight("w2", (H, I), dtype)
    h = tg.gelu(tg.linear(x, w1, name="up"), approximate="tanh", name="h")
    return tg.linear(h, w2, name="down")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
