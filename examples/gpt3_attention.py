"""GPT-3 175B attention block, one of 8 tensor-parallel shards: QKV projection, causal attention over 12
heads, output projection."""

import tilegen as tg


@tg.spec
def gpt3_attention(B=1, S=512, H=12288, heads=12, D=128, dtype="bfloat16"):
    x = tg.input("x", (B, S, H), dtype)
    wqkv = tg.weight("wqkv", (3 * heads * D, H), dtype)  # Q | K | V
    wo = tg.weight("wo", (H, heads * D), dtype)
    q, k, v = tg.linear(x, wqkv, name="qkv").chunk(3)
    a = tg.attention(q, k, v, heads=heads, causal=True, name="attn")
    return tg.linear(a, wo, name="out")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
