"""GPT-3 6.7B decoder layer, prefill: layer norm, QKV, causal attention, projection, residual; layer norm,
feed-forward, residual."""

import tilegen as tg


@tg.spec
def gpt_layer(B=1, S=512, H=4096, heads=32, I=16384, dtype="bfloat16"):
    x = tg.input("x", (B, S, H), dtype)
    g1, b1 = tg.weight("g1", (H,), dtype), tg.weight("b1", (H,), dtype)
    wqkv, bqkv = tg.weight("wqkv", (3 * H, H), dtype), tg.weight("bqkv", (3 * H,), dtype)
    wo, bo = tg.weight("wo", (H, H), dtype), tg.weight("bo", (H,), dtype)
    g2, b2 = tg.weight("g2", (H,), dtype), tg.weight("b2", (H,), dtype)
    wu, bu = tg.weight("wu", (I, H), dtype), tg.weight("bu", (I,), dtype)
    wd, bd = tg.weight("wd", (H, I), dtype), tg.weight("bd", (H,), dtype)

    n1 = tg.layer_norm(x, g1, b1, name="n1")
    q, k, v = tg.linear(n1, wqkv, bqkv, name="qkv").chunk(3)
    a = tg.attention(q, k, v, heads=heads, causal=True, name="attn")
    r = tg.add(tg.linear(a, wo, bo, name="out"), x, name="r")
    n2 = tg.layer_norm(r, g2, b2, name="n2")
    h = tg.gelu(tg.linear(n2, wu, bu, name="up"), approximate="tanh", name="h")
    return tg.add(tg.linear(h, wd, bd, name="down"), r, name="y")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
