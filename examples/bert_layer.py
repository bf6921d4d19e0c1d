"""BERT large encoder layer: attention over all tokens, feed-forward, each with a residual and a layer norm
behind it."""

import tilegen as tg


@tg.spec
def bert_layer(B=32, S=87, H=1024, heads=16, I=4096, dtype="bfloat16"):
    x = tg.input("x", (B, S, H), dtype)
    wqkv, bqkv = tg.weight("wqkv", (3 * H, H), dtype), tg.weight("bqkv", (3 * H,), dtype)
    wo, bo = tg.weight("wo", (H, H), dtype), tg.weight("bo", (H,), dtype)
    w1, b1 = tg.weight("w1", (I, H), dtype), tg.weight("b1", (I,), dtype)
    w2, b2 = tg.weight("w2", (H, I), dtype), tg.weight("b2", (H,), dtype)
    g1, c1, g2, c2 = (tg.weight(name, (H,), dtype) for name in ("g1", "c1", "g2", "c2"))

    q, k, v = tg.linear(x, wqkv, bqkv, name="qkv").chunk(3)
    a = tg.linear(tg.attention(q, k, v, heads=heads, name="attn"), wo, bo, name="out")
    h = tg.layer_norm(tg.add(a, x, name="r1"), g1, c1, name="n1")
    y = tg.linear(tg.gelu(tg.linear(h, w1, b1, name="up"), name="g"), w2, b2, name="down")
    return tg.layer_norm(tg.add(y, h, name="r2"), g2, c2, name="n2")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
