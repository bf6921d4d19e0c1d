"""LLaMA-65B attention block, one of 8 tensor-parallel shards: QKV projection, rotary embedding, causal
attention, output projection."""

import tilegen as tg


@tg.spec
def llama_attention(B=1, S=512, H=8192, heads=8, kv_heads=8, D=128, theta=10000.0, dtype="bfloat16"):
    x = tg.input("x", (B, S, H), dtype)
    wqkv = tg.weight("wqkv", ((heads + 2 * kv_heads) * D, H), dtype)  # Q | K | V
    wo = tg.weight("wo", (H, heads * D), dtype)
    q, k, v = tg.linear(x, wqkv, name="qkv").split([heads * D, kv_heads * D, kv_heads * D])
    q = tg.rope(q, heads=heads, theta=theta, name="q_rope")
    k = tg.rope(k, heads=kv_heads, theta=theta, name="k_rope")
    a = tg.attention(q, k, v, heads=heads, kv_heads=kv_heads, causal=True, name="attn")
    return tg.linear(a, wo, name="out")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
