"""Llama-3-8B decoder layer over a KV cache: S new tokens at position `pos` of each of B sequences. S = 1
decodes, S > 1 prefills."""

import tilegen as tg


@tg.spec
def llama_layer(
    B=1, S=1, S_max=1088, H=4096, heads=32, kv_heads=8, D=128, I=14336, theta=500000.0, dtype="bfloat16"
):
    x = tg.input("x", (B, S, H), dtype)
    pos = tg.input("pos", (1,), "int32")
    norm1 = tg.weight("norm1", (H,), dtype)
    wqkv = tg.weight("wqkv", ((heads + 2 * kv_heads) * D, H), dtype)
    wo = tg.weight("wo", (H, heads * D), dtype)
    norm2 = tg.weight("norm2", (H,), dtype)
    w1 = tg.weight("w1", (2 * I, H), dtype)  # gate | up
    w2 = tg.weight("w2", (H, I), dtype)
    k_cache = tg.state("k_cache", (B, S_max, kv_heads, D), dtype)
    v_cache = tg.state("v_cache", (B, S_max, kv_heads, D), dtype)

    n1 = tg.rms_norm(x, norm1, name="n1")
    q, k, v = tg.linear(n1, wqkv, name="qkv").split([heads * D, kv_heads * D, kv_heads * D])
    q = tg.rope(q, heads=heads, theta=theta, at=pos, name="q_rope")
    k = tg.rope(k, heads=kv_heads, theta=theta, at=pos, name="k_rope")
    keys = tg.append(k_cache, k, at=pos, name="k_append")
    values = tg.append(v_cache, v, at=pos, name="v_append")
    a = tg.attention(q, keys, values, heads=heads, kv_heads=kv_heads, at=pos, name="attn")
    r = tg.add(tg.linear(a, wo, name="out"), x, name="r")

    n2 = tg.rms_norm(r, norm2, name="n2")
    gate, up = tg.linear(n2, w1, name="gate_up").chunk(2)
    h = tg.mul(tg.silu(gate), up, name="h")
    return tg.add(tg.linear(h, w2, name="down"), r, name="y")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
